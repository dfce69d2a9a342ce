//! How the frames of samples were found, of stacks that were walked when they were recorded: a
//! section of the file, since samples have addresses alone.
//!
//! Most stacks were found in one of a few hundred ways, so a sample has the number of its way.

use std::collections::HashMap;
use std::io;

use serde::{Deserialize, Serialize};

use crate::recording::error::PerfError;
use crate::recording::header::Feature;
use crate::recording::reader::PerfReader;
use crate::walks::found_by::FoundBy;
use crate::walks::found_calls::{FoundCalls, FoundCallsBuilder, places_in_order};
use crate::walks::walked_stack::{WalkedFrame, WalkedStack};

/// The feature section. perf leaves out those that it does not know.
pub(crate) const FOUND_FRAMES: Feature = Feature(254);

/// The version of the section: it rises when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

/// How many different stacks of ways are kept, how many runs each has, and of how many samples
/// they are kept: with these and the calls the section stays below 64 MiB, which a reader allows.
const MAX_STACKS: usize = 1 << 13;
const MAX_RUNS: usize = 32;
const MAX_SAMPLES: usize = 4_000_000;

/// A number of frames, one after the other, that were found in the way of this place.
type Run = (u8, u32);

/// How the frames of all samples were found, as the section has it in JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct FoundFrames {
    schema: u32,
    /// The words for the ways.
    ways: Vec<String>,
    /// For each different stack its runs, from the innermost frame of the program on.
    stacks: Vec<Vec<Run>>,
    /// For each sample, in the order of the file, the place of its stack plus one; 0 if it is
    /// not known.
    samples: Vec<u32>,
    /// The calls of interpreters, if there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    calls: Option<FoundCalls>,
}

impl FoundFrames {
    /// What a recording says; nothing if it has no such section or one that is of no use.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if the section cannot be where the file says.
    pub fn read(reader: &mut PerfReader) -> Result<Option<Self>, PerfError> {
        let Some(place) = reader.place_of(FOUND_FRAMES)? else { return Ok(None) };
        let section = reader.section("list of how frames were found", place)?;
        Ok(Self::of_section(&section))
    }

    /// What the bytes of the section say; `None` if they are none.
    #[must_use]
    pub fn of_section(section: &[u8]) -> Option<Self> {
        let found: Option<Self> = serde_json::from_slice(section).ok();
        let mut found = found.filter(|found| found.schema == SCHEMA)?;
        found.calls.iter_mut().for_each(FoundCalls::prepare);
        Some(found)
    }

    /// The calls of interpreters, if there are some.
    #[must_use]
    pub const fn calls(&self) -> Option<&FoundCalls> {
        self.calls.as_ref()
    }

    /// How many samples it is about.
    #[must_use]
    pub const fn samples(&self) -> usize {
        self.samples.len()
    }

    /// The same of a file that has the samples in this order, by their places here.
    #[must_use]
    pub(crate) fn in_order(self, order: &[u64]) -> Self {
        let calls = self.calls.map(|calls| calls.in_order(order));
        Self { samples: places_in_order(&self.samples, order, MAX_SAMPLES), calls, ..self }
    }

    /// The bytes of the section.
    pub(crate) fn to_section(&self) -> io::Result<Vec<u8>> {
        Ok(serde_json::to_vec(self)?)
    }

    /// How the frames of a sample's user part were found, the innermost first, as far as that is
    /// known. `number` is its place in the order of the file.
    pub fn of_sample(&self, number: u64) -> impl Iterator<Item = FoundBy> {
        let stack = usize::try_from(number).ok().and_then(|number| self.samples.get(number));
        let stack = stack.and_then(|&stack| usize::try_from(stack).ok()?.checked_sub(1));
        let runs = stack.and_then(|stack| self.stacks.get(stack)).into_iter().flatten();
        runs.flat_map(|&(way, count)| {
            let word = self.ways.get(usize::from(way)).map_or("", String::as_str);
            let found = FoundBy::of_word(word).unwrap_or(FoundBy::Unchecked);
            std::iter::repeat_n(found, usize::try_from(count).unwrap_or(usize::MAX))
        })
    }
}

/// Collects how the frames of samples are found, while these are written.
#[derive(Debug, Default)]
pub(crate) struct FoundFramesBuilder {
    places: HashMap<Box<[Run]>, u32>,
    stacks: Vec<Vec<Run>>,
    samples: Vec<u32>,
    calls: FoundCallsBuilder,
}

impl FoundFramesBuilder {
    /// Takes the stack of the sample of this number, or of a later one than those before. Returns whether there is
    /// room for its calls. Those of a chain that was cut would stand at other frames.
    #[must_use]
    pub(crate) fn take_stack(&mut self, number: usize, walked: &WalkedStack, is_cut: bool) -> bool {
        self.take(number, &walked.frames);
        is_cut || self.calls.take(number, walked)
    }

    fn take(&mut self, number: usize, frames: &[WalkedFrame]) {
        self.take_ways(number, frames.iter().map(WalkedFrame::found_by));
    }

    /// Takes how the frames of the sample of this number were found, which is a later one than those before.
    pub(crate) fn take_ways(&mut self, number: usize, frames: impl Iterator<Item = FoundBy>) {
        if number >= MAX_SAMPLES {
            return;
        }
        let stack = self.place_of(runs(frames));
        self.samples.resize(number, 0);
        self.samples.push(stack);
    }

    /// The place of a stack plus one, or 0 if there is no room for it.
    fn place_of(&mut self, runs: Vec<Run>) -> u32 {
        if let Some(&place) = self.places.get(runs.as_slice()) {
            return place;
        }
        if self.stacks.len() >= MAX_STACKS || runs.is_empty() {
            return 0;
        }
        let place = u32::try_from(self.stacks.len()).unwrap_or(u32::MAX).saturating_add(1);
        self.places.insert(runs.as_slice().into(), place);
        self.stacks.push(runs);
        place
    }

    /// The section.
    #[must_use]
    pub(crate) fn finish(self) -> FoundFrames {
        let ways = FoundBy::ALL.map(|found| found.words().0.to_owned()).to_vec();
        let calls = self.calls.finish();
        FoundFrames { schema: SCHEMA, ways, stacks: self.stacks, samples: self.samples, calls }
    }
}

/// The frames in runs, as many as are kept.
fn runs(frames: impl Iterator<Item = FoundBy>) -> Vec<Run> {
    let ways = frames.map(FoundBy::code);
    let mut runs: Vec<Run> = Vec::new();
    for way in ways {
        let is_full = runs.len() >= MAX_RUNS;
        match runs.last_mut() {
            Some((last, count)) if *last == way => *count = count.saturating_add(1),
            _ if is_full => break,
            _ => runs.push((way, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walks::call_stacks::FrameSource;

    fn frames(sources: &[FrameSource]) -> Vec<WalkedFrame> {
        let frame = |&source| WalkedFrame {
            pc: 1,
            call: 0,
            after_gap: false,
            source: Some(source),
            found: None,
        };
        sources.iter().map(frame).collect()
    }

    #[test]
    fn d15_each_sample_has_the_ways_of_its_own_frames() {
        use FoundBy::{BranchRecord, Sampled, Unchecked};
        use FrameSource::{Record, Sampled as First, Walk};
        let mut builder = FoundFramesBuilder::default();
        builder.take(0, &frames(&[First, Walk, Walk]));
        // One is written without its stack.
        builder.take(2, &frames(&[First, Record]));
        builder.take(3, &frames(&[First, Walk, Walk]));
        let alternating = [First, Walk].repeat(100);
        builder.take(4, &frames(&alternating));
        let text = serde_json::to_vec(&builder.finish()).unwrap();
        let found: FoundFrames = serde_json::from_slice(&text).unwrap();
        let of_sample = |number| found.of_sample(number).collect::<Vec<_>>();
        assert_eq!(of_sample(0), [Sampled, Unchecked, Unchecked]);
        assert_eq!(of_sample(1), []);
        assert_eq!(of_sample(2), [Sampled, BranchRecord]);
        assert_eq!(of_sample(3), of_sample(0));
        // What has no room is not known.
        assert_eq!(of_sample(4), [Sampled, Unchecked].repeat(MAX_RUNS / 2));
        assert_eq!(of_sample(5), []);
        assert_eq!(found.stacks.len(), 3);
    }

    #[test]
    fn the_section_is_never_longer_than_a_reader_allows() {
        use crate::walks::found_calls::{MAX_CALLS, MAX_NAMES, MAX_SAMPLES as SAMPLES_WITH_CALLS};
        let len = |text: &str| text.len();
        let stacks = MAX_STACKS * (len("[],") + MAX_RUNS * len("[12,65536],"));
        let samples = MAX_SAMPLES * len("8192,") + SAMPLES_WITH_CALLS * len("262144,");
        let calls = MAX_CALLS * len("[262144,262144,9999999,65536],");
        // Each code has a name or two, and each of these a mark around it.
        let names = MAX_NAMES + MAX_CALLS * len(r#"["javascript",,],"#);
        assert!(stacks + samples + calls + names < 64 << 20);
    }

    #[test]
    fn d15_samples_in_another_order_keep_their_ways_and_calls() {
        use crate::recording::code_names::{InterpretedCall, InterpretedCode};
        use FrameSource::{Record, Sampled as First, Walk};
        let mut builder = FoundFramesBuilder::default();
        let stack = |sources: &[FrameSource], line| {
            let call = InterpretedCall { code: InterpretedCode::MAYBE_INLINED.into(), line };
            let calls = vec![(0, vec![call])];
            WalkedStack { frames: frames(sources), cut: None, end: "", calls }
        };
        assert!(builder.take_stack(0, &stack(&[First, Walk], 7), false));
        assert!(builder.take_stack(1, &stack(&[First, Record], 8), false));
        let section = builder.finish().in_order(&[1, 2, 0]).to_section().unwrap();
        let found = FoundFrames::of_section(&section).unwrap();
        let ways = [0, 1, 2].map(|number| found.of_sample(number).collect::<Vec<_>>());
        let (record, walk) = (FoundBy::BranchRecord, FoundBy::Unchecked);
        assert_eq!(ways, [vec![FoundBy::Sampled, record], vec![], vec![FoundBy::Sampled, walk]]);
        let calls = found.calls().unwrap();
        let lines = [0, 1, 2].map(|number| {
            calls.of_sample(number, 2).iter().map(|(at, call)| (*at, call.line)).collect::<Vec<_>>()
        });
        assert_eq!(lines, [vec![(0, 8)], vec![], vec![(0, 7)]]);
    }

    #[test]
    fn d15_a_list_that_lies_says_nothing_of_a_frame() {
        let text = br#"{"schema":1,"ways":["fp","xyz"],"stacks":[[[0,4000000000],[9,1]],[[1,1]]],
            "samples":[1,7,2,4294967295]}"#;
        let found: FoundFrames = serde_json::from_slice(text).unwrap();
        assert_eq!(found.of_sample(0).take(3).collect::<Vec<_>>(), [FoundBy::FramePointer; 3]);
        assert_eq!(found.of_sample(1).next(), None);
        assert_eq!(found.of_sample(2).next(), Some(FoundBy::Unchecked));
        assert_eq!(found.of_sample(3).next(), None);
        assert_eq!(found.of_sample(u64::MAX).next(), None);
    }
}

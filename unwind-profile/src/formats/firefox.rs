//! The format of the Firefox Profiler, by the crate that profilers share for it.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use fxprof_processed_profile::debugid::DebugId;
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, LibraryInfo, Profile,
    ReferenceTimestamp, SamplingInterval, StackHandle, Symbol, SymbolTable, ThreadHandle,
    Timestamp,
};
use serde::Serialize;

use crate::collected::call_tree::{CallTree as Stacks, Frame as OwnFrame, NOT_KEPT};
use crate::collected::time_line::TimeLine;
use crate::collected::time_line::cell::{Cell, KeptStack, SHORTENED};
use crate::collected::view::View;
use crate::session::ledger::Ledger;
use crate::walks::found_by::FoundBy;

/// How many stacks there may be of all threads together, each with its callers: what threads
/// share is in each of them again.
const MAX_STACKS: usize = 1 << 22;

/// The name of the thread of samples that have no time.
const WITHOUT_TIME: &str = "[without a time]";

#[derive(Serialize)]
struct File<'f> {
    #[serde(flatten)]
    profile: &'f Profile,
    /// Not of the format, whose readers leave it out.
    ledger: &'f Ledger,
    notes: String,
}

/// Writes the file.
pub(crate) fn write(out: &mut dyn Write, view: &View<'_>) -> io::Result<()> {
    let View { title, profile: stacks, time_line, ledger, .. } = *view;
    let interval = SamplingInterval::from_nanos(time_line.width);
    let start = ReferenceTimestamp::from_millis_since_unix_epoch(0.0);
    let product = format!("{title}: {}", ledger.summary());
    let mut profile = Profile::new(&product, start, interval);
    profile.set_os_name("Linux");
    profile.set_symbolicated(true);
    let mut writer = Samples::new(&mut profile, stacks);
    let rest = writer.add_time_line(time_line);
    writer.add_rest(&rest);
    let file = File { profile: &profile, ledger, notes: view.notes() };
    serde_json::to_writer(&mut *out, &file)?;
    writeln!(out)
}

/// The colour of a way in which frames are found, of those that the format has.
const fn colour(found: FoundBy) -> CategoryColor {
    match found {
        FoundBy::Sampled => CategoryColor::LightBlue,
        FoundBy::Table => CategoryColor::Green,
        FoundBy::CallFrames => CategoryColor::LightGreen,
        FoundBy::FramePointer => CategoryColor::Yellow,
        FoundBy::Instructions => CategoryColor::Orange,
        FoundBy::Guess => CategoryColor::LightRed,
        FoundBy::Signal => CategoryColor::Purple,
        FoundBy::BranchRecord => CategoryColor::Blue,
        FoundBy::Unchecked => CategoryColor::Brown,
        FoundBy::Kernel => CategoryColor::Red,
        FoundBy::Inlined => CategoryColor::Magenta,
        FoundBy::Interpreted => CategoryColor::DarkGray,
        FoundBy::Nothing => CategoryColor::Gray,
    }
}

/// Puts samples into the profile.
struct Samples<'p> {
    profile: &'p mut Profile,
    stacks: &'p Stacks,
    categories: Vec<CategoryHandle>,
    /// What each frame is in the format.
    frames: Vec<Frame>,
    /// The stacks that end at nodes, of each thread.
    kept: HashMap<(ThreadHandle, usize), StackHandle>,
}

impl<'p> Samples<'p> {
    fn new(profile: &'p mut Profile, stacks: &'p Stacks) -> Self {
        let categories =
            FoundBy::ALL.map(|found| profile.add_category(found.words().1, colour(found)));
        let frames = frames(profile, stacks);
        Self { profile, stacks, categories: categories.to_vec(), frames, kept: HashMap::new() }
    }

    /// Adds the samples of a time line. Returns how many samples of each node are not in it.
    fn add_time_line(&mut self, time_line: &TimeLine) -> Vec<u64> {
        let mut rest: Vec<u64> = self.stacks.nodes.iter().map(|node| node.own).collect();
        let mut processes = HashMap::new();
        let zero = Timestamp::from_nanos_since_reference(0);
        let mut threads = Vec::new();
        for thread in &time_line.threads {
            let process = *processes
                .entry(thread.process)
                .or_insert_with(|| self.profile.add_process(&thread.name, thread.process, zero));
            let is_main = thread.process == thread.thread;
            let handle = self.profile.add_thread(process, thread.thread, zero, is_main);
            self.profile.set_thread_name(handle, &thread.name);
            threads.push(handle);
        }
        for (node, count) in time_line.shortened() {
            take(&mut rest, node, count);
        }
        let cells = time_line.cells();
        let groups =
            cells.chunk_by(|(a, _), (b, _)| (a.thread(), a.span()) == (b.thread(), b.span()));
        let mut before = None;
        for group in groups {
            let Some(&(first, _)) = group.first() else { continue };
            let Some(&thread) = threads.get(first.thread()) else { continue };
            // Between spans with samples the thread did not run.
            let follows = before == Some((first.thread(), first.span()));
            if !follows {
                let begin = first.span().saturating_mul(time_line.width);
                let begin = Timestamp::from_nanos_since_reference(begin);
                self.profile.add_sample(thread, begin, None, CpuDelta::ZERO, 0);
            }
            before = Some((first.thread(), first.span().saturating_add(1)));
            self.add_span(thread, group, time_line);
            for &(cell, count) in group {
                cell.stack.end().into_iter().for_each(|end| take(&mut rest, end, count.into()));
            }
        }
        rest
    }

    /// Adds the samples of a thread in a span, one after the other: each has its share of the span
    /// and of the CPU time in it.
    fn add_span(&mut self, thread: ThreadHandle, group: &[(Cell, u32)], time_line: &TimeLine) {
        let Some(&(first, _)) = group.first() else { return };
        let all = group.iter().fold(0_u64, |sum, &(_, count)| sum.saturating_add(count.into()));
        let share = |of: u64, part: u64| {
            let share = u128::from(of).saturating_mul(part.into()).checked_div(all.into());
            share.and_then(|share| u64::try_from(share).ok()).unwrap_or(of)
        };
        let begin = first.span().saturating_mul(time_line.width);
        // In whole microseconds, as they are in the file.
        let cpu_time = time_line.cpu_time(first) / 1_000;
        let (mut part, mut cpu_before) = (0_u64, 0);
        for &(cell, count) in group {
            part = part.saturating_add(count.into());
            let time = begin.saturating_add(share(time_line.width, part));
            let time = Timestamp::from_nanos_since_reference(time);
            let cpu_after = share(cpu_time, part);
            let cpu = CpuDelta::from_micros(cpu_after.saturating_sub(cpu_before));
            cpu_before = cpu_after;
            let stack = self.kept_stack(thread, cell.stack);
            let weight = i32::try_from(count).unwrap_or(i32::MAX);
            self.profile.add_sample(thread, time, stack, cpu, weight);
        }
    }

    /// What is kept of a stack.
    fn kept_stack(&mut self, thread: ThreadHandle, stack: KeptStack) -> Option<StackHandle> {
        let node = |node: u32| usize::try_from(node).ok();
        let outer = match stack {
            KeptStack::Whole(end) => return self.stack(thread, node(end)?),
            KeptStack::UpTo(outer) => self.stack(thread, node(outer)?),
            KeptStack::Nothing => None,
        };
        Some(self.label(thread, outer, SHORTENED))
    }

    /// Adds samples that have no time, as a thread of their own.
    fn add_rest(&mut self, rest: &[u64]) {
        let zero = Timestamp::from_nanos_since_reference(0);
        let mut thread = None;
        for (node, &count) in rest.iter().enumerate().filter(|&(_, &count)| count > 0) {
            let thread = *thread.get_or_insert_with(|| {
                let process = self.profile.add_process(WITHOUT_TIME, 0, zero);
                let thread = self.profile.add_thread(process, 0, zero, true);
                self.profile.set_thread_name(thread, WITHOUT_TIME);
                thread
            });
            self.add(thread, zero, node, count);
        }
    }

    fn add(&mut self, thread: ThreadHandle, time: Timestamp, node: usize, count: u64) {
        let stack = self.stack(thread, node);
        let weight = i32::try_from(count).unwrap_or(i32::MAX);
        self.profile.add_sample(thread, time, stack, CpuDelta::ZERO, weight);
    }

    /// The stack that ends at a node.
    fn stack(&mut self, thread: ThreadHandle, node: usize) -> Option<StackHandle> {
        // From the innermost frame out to one that is known.
        let mut missing = Vec::new();
        let mut at = Some(node);
        let mut stack = None;
        while let Some(node) = at {
            stack = self.kept.get(&(thread, node)).copied();
            if stack.is_some() {
                break;
            }
            missing.push(node);
            at = self.stacks.nodes.get(node)?.caller;
        }
        if self.kept.len().saturating_add(missing.len()) > MAX_STACKS {
            return Some(self.label(thread, None, NOT_KEPT));
        }
        for node in missing.into_iter().rev() {
            let of_node = self.stacks.nodes.get(node)?;
            let category = *self.categories.get(of_node.found.shown())?;
            let info = FrameInfo {
                frame: self.frames.get(of_node.frame)?.clone(),
                category_pair: category.into(),
                flags: FrameFlags::empty(),
            };
            let frame = self.profile.intern_frame(thread, info);
            let made = self.profile.intern_stack(thread, stack, frame);
            self.kept.insert((thread, node), made);
            stack = Some(made);
        }
        stack
    }

    /// What is no function, called by the end of a stack.
    fn label(
        &mut self,
        thread: ThreadHandle,
        caller: Option<StackHandle>,
        text: &str,
    ) -> StackHandle {
        let name = self.profile.intern_string(text);
        let info = FrameInfo {
            frame: Frame::Label(name),
            category_pair: CategoryHandle::OTHER.into(),
            flags: FrameFlags::empty(),
        };
        let frame = self.profile.intern_frame(thread, info);
        self.profile.intern_stack(thread, caller, frame)
    }
}

/// Takes samples from those of a node.
fn take(rest: &mut [u64], node: usize, count: u64) {
    if let Some(rest) = rest.get_mut(node) {
        *rest = rest.saturating_sub(count);
    }
}

/// The frames as functions of files: the address of a function is its number.
fn frames(profile: &mut Profile, stacks: &Stacks) -> Vec<Frame> {
    let mut symbols: HashMap<&str, Vec<Symbol>> = HashMap::new();
    for (address, frame) in (0..).zip(&stacks.frames) {
        if let Some(file) = &frame.file {
            let symbol = Symbol { address, size: Some(1), name: frame.name.clone() };
            symbols.entry(file).or_default().push(symbol);
        }
    }
    let libraries: HashMap<&str, _> = symbols
        .into_iter()
        .map(|(file, symbols)| {
            let name = file.rsplit('/').next().unwrap_or(file);
            let library = profile.add_lib(LibraryInfo {
                name: name.to_owned(),
                debug_name: name.to_owned(),
                path: file.to_owned(),
                debug_path: file.to_owned(),
                debug_id: DebugId::nil(),
                code_id: None,
                arch: None,
                symbol_table: Some(Arc::new(SymbolTable::new(symbols))),
            });
            (file, library)
        })
        .collect();
    let frame = |(address, frame): (u32, &OwnFrame)| {
        let library = frame.file.as_deref().and_then(|file| libraries.get(file));
        match library {
            Some(&library) => Frame::RelativeAddressFromInstructionPointer(library, address),
            None => Frame::Label(profile.intern_string(&frame.name)),
        }
    };
    (0..).zip(&stacks.frames).map(frame).collect()
}

#[cfg(test)]
mod tests {
    use unwind_target::Untrusted;

    use super::*;
    use crate::collected::labels::Labels;
    use crate::collected::source_lines::SourceLines;
    use crate::collected::time_line::{Detail, Timed};

    #[test]
    fn d15_a_profile_for_firefox_has_each_sample_once() {
        let mut stacks = Stacks::with_room(usize::MAX);
        let (name, file) = (Untrusted::from("f"), Untrusted::from("/lib/</script>"));
        let frame = stacks.frame(OwnFrame::new(Some(&name), Some(&file), false));
        let node = stacks.add([(frame, FoundBy::Table)], 5).unwrap();
        let lost = stacks.frame(OwnFrame::note("[lost in a ring]"));
        stacks.add([(lost, FoundBy::Nothing)], 3);
        let mut time_line = TimeLine::default();
        for time in [1, 2, 5 << 20] {
            let (task, name) = ((7, 8), "worker");
            time_line.add(
                Timed { time, task, name, node, cpu_time: 400_500, count: 1, length: 0 },
                &stacks.nodes,
            );
        }
        let (ledger, labels) = (Ledger::new(), &Labels::default());
        let lines = &SourceLines::default();
        let view = View {
            title: "a",
            profile: &stacks,
            time_line: &time_line,
            ledger: &ledger,
            labels,
            lines,
            names_options: false,
        };
        let mut out = Vec::new();
        write(&mut out, &view).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let threads = file["threads"].as_array().unwrap();
        assert_eq!(threads.len(), 2);
        for (name, weights) in [("worker", &[0_u64, 2, 0, 1][..]), (WITHOUT_TIME, &[2, 3])] {
            let thread = threads.iter().find(|thread| thread["name"] == name).unwrap();
            let told = thread["samples"]["weight"].as_array().unwrap();
            let told: Vec<u64> = told.iter().map(|weight| weight.as_u64().unwrap()).collect();
            assert_eq!(told, weights, "{name}");
        }
        // Microseconds, of the time since the sample before.
        let worker = threads.iter().find(|thread| thread["name"] == "worker").unwrap();
        assert_eq!(worker["samples"]["threadCPUDelta"], serde_json::json!([0, 801, 0, 400]));
        let span = f64::from(1 << 20) / 1e6;
        let deltas = [0.0, span, 3.0 * span, span];
        assert_eq!(worker["samples"]["timeDeltas"], serde_json::json!(deltas));
        assert_eq!(file["libs"][0]["path"], "/lib/</script>");
        assert_eq!(file["ledger"]["schema"], 1);
        // Nor are samples lost or counted twice whose stacks are not kept whole.
        let mut time_line = TimeLine::new(Detail::OfTimes(4));
        let mut stacks = Stacks::with_room(usize::MAX);
        for time in 1..=100_u32 {
            let name = stacks.frame(OwnFrame::note(&time.to_string()));
            let outer = stacks.frame(OwnFrame::note("outer"));
            let stack = [(outer, FoundBy::Nothing), (name, FoundBy::Nothing)];
            let (node, task) = (stacks.add(stack, 1).unwrap(), (7, 8));
            let time = time.into();
            let sample =
                Timed { time, task, name: "worker", node, cpu_time: 10_000, count: 1, length: 0 };
            time_line.add(sample, &stacks.nodes);
        }
        let view = View { profile: &stacks, time_line: &time_line, ..view };
        let mut out = Vec::new();
        write(&mut out, &view).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let [worker] = file["threads"].as_array().unwrap().as_slice() else { panic!("{file}") };
        let sum = |column: &str| -> u64 {
            let column = worker["samples"][column].as_array().unwrap();
            column.iter().map(|number| number.as_u64().unwrap()).sum()
        };
        assert_eq!((sum("weight"), sum("threadCPUDelta")), (100, 1_000));
        assert!(file.to_string().contains(SHORTENED));
        // A profile without samples is one, too.
        let (stacks, time_line) = (Stacks::with_room(0), TimeLine::default());
        let view = View { profile: &stacks, time_line: &time_line, ..view };
        write(&mut Vec::new(), &view).unwrap();
    }
}

//! What the walks of a whole corpus came to.

use std::collections::BTreeMap;
use std::fmt;

use unwind_snapshot::Snapshot;

use crate::Unwinder;
use crate::contestant::{Contestant, RIVALS, walkers};
use crate::corpus::Corpus;
use crate::finding::{Finding, Kind};
use crate::known::Known;
use crate::reference::{End, Reference};
use crate::verdict::{Verdict, judge, more_than_ours};

/// All walks of a corpus beside the reference.
#[derive(Debug)]
pub struct Report {
    /// The corpus's name.
    pub corpus: String,
    /// How many stacks there are.
    pub stacks: usize,
    /// How many the reference followed to the outermost frame, or to as many
    /// frames as are kept.
    pub complete: usize,
    /// What each unwinder found, those of this workspace first.
    pub counts: Vec<(&'static str, Count)>,
    /// What must not be or needs a reason, with how often and where first.
    pub findings: BTreeMap<Finding, (usize, String)>,
}

/// The verdicts on one unwinder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// As many as there are stacks where it is right.
    pub same: usize,
    /// Right as far as the reference leads.
    pub unjudged: usize,
    /// Too few frames, and it knows that it is not complete or does not say.
    pub short: usize,
    /// Another frame, or one too many.
    pub differing: usize,
    /// Too few frames, but it says that it is complete.
    pub falsely_complete: usize,
    /// Complete by its own word where the reference cannot say.
    pub boldly_complete: usize,
    /// Complete by its own word.
    pub complete: usize,
    /// More frames than this workspace's walk, and nothing contradicts them.
    pub more: usize,
    /// Frames that this workspace's walk has not, which the reference has for
    /// certain; which it guesses; and which it has not.
    pub frames: [usize; 3],
}

impl Count {
    fn add(&mut self, verdict: Verdict, is_complete: bool) {
        self.complete += usize::from(is_complete);
        let of_it = match verdict {
            Verdict::Same => &mut self.same,
            Verdict::Unjudged => &mut self.unjudged,
            Verdict::Short { .. } => &mut self.short,
            Verdict::Differs { .. } => &mut self.differing,
            Verdict::FalselyComplete { .. } => &mut self.falsely_complete,
            Verdict::BoldlyComplete => &mut self.boldly_complete,
        };
        *of_it += 1;
    }

    /// Counts the frames that a rival has and `ours` has not.
    fn add_frames(&mut self, reference: &Reference, ours: &dyn Unwinder, rival: &dyn Unwinder) {
        let take = |from: &mut Vec<u64>, frame| {
            let at = from.iter().position(|other| *other == frame);
            at.map(|at| from.swap_remove(at)).is_some()
        };
        let (frames, mut ours) = (reference.frames(), ours.frames());
        let (certain, guessed) = frames.split_at(reference.certain());
        let (mut certain, mut guessed) = (certain.to_vec(), guessed.to_vec());
        for frame in rival.frames() {
            let is_certain = take(&mut certain, frame);
            let is_guessed = !is_certain && take(&mut guessed, frame);
            if !take(&mut ours, frame) {
                let [of_certain, of_guessed, of_others] = &mut self.frames;
                let of_it = match (is_certain, is_guessed) {
                    (true, _) => of_certain,
                    (_, true) => of_guessed,
                    _ => of_others,
                };
                *of_it += 1;
            }
        }
    }

    fn and(self, other: Self) -> Self {
        let [certain, guessed, others] = self.frames;
        let [more_certain, more_guessed, more_others] = other.frames;
        Self {
            same: self.same + other.same,
            unjudged: self.unjudged + other.unjudged,
            short: self.short + other.short,
            differing: self.differing + other.differing,
            falsely_complete: self.falsely_complete + other.falsely_complete,
            boldly_complete: self.boldly_complete + other.boldly_complete,
            complete: self.complete + other.complete,
            more: self.more + other.more,
            frames: [certain + more_certain, guessed + more_guessed, others + more_others],
        }
    }

    /// In how many stacks it is not known to be wrong.
    #[must_use]
    pub const fn not_wrong(&self) -> usize {
        self.same + self.unjudged + self.boldly_complete
    }
}

impl Report {
    /// Walks all stacks of a corpus.
    #[must_use]
    pub fn new(corpus: &Corpus) -> Self {
        Self::beside(corpus, &[])
    }

    /// Walks all stacks of a corpus, by `own` unwinders too, as rivals.
    #[must_use]
    pub fn beside(corpus: &Corpus, own: &[Contestant]) -> Self {
        Self::between(corpus, &walkers(), &[RIVALS, own].concat())
    }

    /// Walks all stacks of a corpus by these, as [`of`](Self::of) does.
    #[must_use]
    pub fn between(corpus: &Corpus, ours: &[Contestant], rivals: &[Contestant]) -> Self {
        let open = |contestants: &[Contestant]| {
            let opened = contestants.iter().map(|one| (one.name, one.open(corpus)));
            opened.collect()
        };
        Self::of(corpus, open(ours), open(rivals))
    }

    /// Walks all stacks of a corpus by `ours`, which have to be right, and by
    /// `rivals`, which must not have more frames than the first of `ours`.
    ///
    /// # Panics
    ///
    /// If there is none of `ours`.
    #[must_use]
    pub fn of(
        corpus: &Corpus,
        ours: Vec<(&'static str, Box<dyn Unwinder + '_>)>,
        rivals: Vec<(&'static str, Box<dyn Unwinder + '_>)>,
    ) -> Self {
        let own = ours.len();
        assert!(own > 0, "nothing to judge");
        let mut walks: Vec<_> = ours.into_iter().chain(rivals).collect();
        let names = walks.iter().map(|(name, _)| (*name, Count::default()));
        let mut report = Self {
            corpus: corpus.name.clone(),
            stacks: corpus.snapshots.len(),
            complete: 0,
            counts: names.collect(),
            findings: BTreeMap::new(),
        };
        let mut reference = Reference::new(corpus);
        for (number, snapshot) in corpus.snapshots.iter().enumerate() {
            reference.walk(snapshot);
            let place = Place { corpus, snapshot, number };
            report.add_end(&place, &reference);
            for (index, (name, walk)) in walks.iter_mut().enumerate() {
                walk.walk(snapshot);
                let verdict = judge(&reference, &**walk);
                report.counts[index].1.add(verdict, walk.is_complete() == Some(true));
                if index < own {
                    report.add_verdict(&place, name, verdict, &reference);
                }
            }
            let (ours, rivals) = walks.split_at(own);
            for (index, (name, rival)) in (own..).zip(rivals) {
                let (ours, rival) = (&*ours[0].1, &**rival);
                report.counts[index].1.add_frames(&reference, ours, rival);
                let Some(at) = more_than_ours(&reference, ours, rival) else { continue };
                report.counts[index].1.more += 1;
                let is_guess =
                    matches!(reference.end(), End::NotCovered { .. }) && at >= reference.certain();
                let kind = if is_guess { Kind::RivalGuesses } else { Kind::RivalHasMore };
                report.add(kind, name, &place, at.saturating_sub(1), &rival.frames());
            }
        }
        report
    }

    fn add_end(&mut self, place: &Place<'_>, reference: &Reference) {
        let kind = match reference.end() {
            End::Outermost | End::Limit => {
                self.complete += 1;
                return;
            }
            End::NotCovered { .. } => Kind::NotCovered,
            End::BytesEnd => Kind::BytesEnd,
            End::Unreadable { .. } | End::UnknownRegister(_) | End::BadRow { .. } => {
                Kind::Incomplete
            }
        };
        self.add(kind, "reference", place, reference.certain() - 1, &reference.frames());
    }

    fn add_verdict(
        &mut self,
        place: &Place<'_>,
        name: &'static str,
        verdict: Verdict,
        reference: &Reference,
    ) {
        let last = reference.certain() - 1;
        let (kind, at) = match verdict {
            Verdict::Same | Verdict::Unjudged => return,
            Verdict::Short { at } if reference.needs_register() == Some(at - 1) => {
                (Kind::NeedsRegister, at - 1)
            }
            Verdict::Short { at } => (Kind::Short, at - 1),
            Verdict::Differs { at } => (Kind::Differs, at.saturating_sub(1).min(last)),
            Verdict::FalselyComplete { at } => (Kind::FalselyComplete, at - 1),
            Verdict::BoldlyComplete => (Kind::BoldlyComplete, last),
        };
        self.add(kind, name, place, at, &reference.frames());
    }

    /// Adds a finding about the frame of number `at`.
    fn add(&mut self, kind: Kind, who: &'static str, place: &Place<'_>, at: usize, pcs: &[u64]) {
        let pc = pcs.get(at).copied().unwrap_or_default();
        let lookup = pc.wrapping_sub(u64::from(at > 0));
        let module = place.corpus.modules.iter().find(|module| module.text.contains(&lookup));
        let image = module.map_or("", |m| m.tables.path.rsplit('/').next().unwrap_or_default());
        let linked = module.map_or(lookup, |module| lookup.wrapping_sub(module.bias));
        let (number, time) = (place.number, place.snapshot.time);
        let first = || format!("stack {number}, time {time}, frame {at}, {image} {linked:#x}");
        let key = Finding { kind, who, image: image.into() };
        self.findings.entry(key).or_insert_with(|| (0, first())).0 += 1;
    }

    /// Adds the walks of another part of the same corpus, by the same unwinders.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.stacks += other.stacks;
        self.complete += other.complete;
        for ((_, count), (_, more)) in self.counts.iter_mut().zip(other.counts) {
            *count = count.and(more);
        }
        for (finding, (count, first)) in other.findings {
            self.findings.entry(finding).or_insert((0, first)).0 += count;
        }
        self
    }

    /// The findings that no entry of `known` gives a reason for, each by the first
    /// entry that fits and is not used up.
    #[must_use]
    pub fn unknown(&self, known: &[Known]) -> Vec<(&Finding, usize, &str)> {
        let mut left: Vec<_> = known.iter().map(|known| known.allowed(self.stacks)).collect();
        let mut has_reason = |finding: &Finding, count: usize| {
            let of_it = known
                .iter()
                .zip(&mut left)
                .find(|(known, left)| known.explains(&self.corpus, finding) && **left >= count);
            of_it.map(|(_, left)| *left -= count).is_some()
        };
        let findings = self.findings.iter();
        let unknown = findings.filter(|(finding, (count, _))| !has_reason(finding, *count));
        unknown.map(|(finding, (count, first))| (finding, *count, &**first)).collect()
    }

    /// Fails if there is a finding that no entry of `known` gives a reason for.
    ///
    /// # Panics
    ///
    /// If there is one.
    pub fn assert_known(&self, known: &[Known]) {
        let unknown = self.unknown(known);
        assert!(unknown.is_empty(), "{self}\nwithout a reason in known.rs: {unknown:#?}");
    }
}

/// Where a finding is.
struct Place<'a> {
    corpus: &'a Corpus,
    snapshot: &'a Snapshot<'static>,
    number: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { corpus, stacks, complete, counts, findings } = self;
        writeln!(f, "{corpus}: {stacks} stacks, {complete} to the end by the reference")?;
        writeln!(
            f,
            "    {:20} same unjudged short differ falsely boldly complete more  frames that the \
             first has not: certain guessed others",
            ""
        )?;
        for (name, count) in counts {
            let Count { same, unjudged, short, differing, complete, .. } = count;
            let Count { falsely_complete, boldly_complete, more, frames, .. } = count;
            let [certain, guessed, others] = frames;
            writeln!(
                f,
                "    {name:20} {same:>4} {unjudged:>8} {short:>5} {differing:>6} \
                 {falsely_complete:>7} {boldly_complete:>6} {complete:>8} {more:>4}  \
                 {certain:>29} {guessed:>7} {others:>6}"
            )?;
        }
        for (Finding { kind, who, image }, (count, first)) in findings {
            let image = if image.is_empty() { "code of no file" } else { image };
            writeln!(f, "    {count:>6} {kind:?}, {who}, {image}; first: {first}")?;
        }
        Ok(())
    }
}

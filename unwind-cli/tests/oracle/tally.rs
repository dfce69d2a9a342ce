//! What many comparisons came to.

use std::collections::BTreeMap;
use std::fmt;

use crate::stops::{GdbThread, UnwindFrame, UnwindThread};

/// How the stack of one thread by `unwind` compares with the one by gdb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All frames up to the wanted one are equal.
    Equal,
    /// The frames that are there are equal, but they are too few.
    Short(String),
    /// All frames are gdb's, in gdb's order, but some between them are left out.
    Skips(String),
    /// There is a frame that gdb does not have.
    Differs(String),
}

/// Functions that align their frame further than the stack is, and copy the
/// return address next to the saved frame pointer for it: a frame pointer leads
/// to the right caller, but the caller's stack pointer is not right above.
const REALIGNED: [&str; 2] = ["aligned", "align128_alloca"];

/// One comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub outcome: Outcome,
    /// How many frames from the innermost one on are equal, and of how many.
    pub frames: (usize, usize),
    /// `unwind` takes the stack for complete.
    pub is_complete: bool,
}

/// Compares pc and stack pointer of the frames up to `last`.
pub fn compare(gdb: &GdbThread, unwind: &UnwindThread, last: usize) -> Comparison {
    let pairs = unwind.frames.iter().enumerate().take(last + 1);
    let equal = pairs.take_while(|(index, frame)| is_same(frame, gdb, *index)).count();
    Comparison {
        outcome: outcome(gdb, unwind, equal, last),
        frames: (equal, last + 1),
        is_complete: unwind.end.complete,
    }
}

/// What to say where the first `equal` frames are equal.
fn outcome(gdb: &GdbThread, unwind: &UnwindThread, equal: usize, last: usize) -> Outcome {
    let (found, all) = (unwind.frames.len(), gdb.frames.len());
    if unwind.end.complete && found < all {
        return Outcome::Differs(format!(
            "{found} of {all} frames are said to be all: {}",
            unwind.end.text
        ));
    }
    if equal > last {
        let continues = last + 1 == all && found > all;
        let text = || format!("{found} frames where there are {all}");
        return if continues { Outcome::Differs(text()) } else { Outcome::Equal };
    }
    let first = &gdb.frames[equal];
    let name = first.name.as_deref().unwrap_or("?");
    let first = format!("#{equal} is {name} pc {:#x} sp {:#x}", first.pc, first.sp);
    let Some(frame) = unwind.frames.get(equal) else {
        return Outcome::Short(format!("{first}, but the walk ended: {}", unwind.end.text));
    };
    let name = frame.function.as_deref().unwrap_or("?");
    let by = &frame.found_by;
    let text = format!("{first}, but by {by} {name} pc {:#x} sp {:#x}", frame.pc, frame.sp);
    // What is above the last frame to compare is not gdb's to say.
    let top = if last + 1 == all { u64::MAX } else { gdb.frames[last].sp };
    let mut rest = 0..all;
    let mut found = unwind.frames.iter().take_while(|frame| frame.sp <= top);
    if found.all(|frame| rest.any(|index| is_same(frame, gdb, index))) {
        Outcome::Skips(text)
    } else {
        Outcome::Differs(text)
    }
}

/// Whether a frame is gdb's with this number.
fn is_same(frame: &UnwindFrame, gdb: &GdbThread, index: usize) -> bool {
    let Some(expected) = gdb.frames.get(index) else { return false };
    let callee = index.checked_sub(1).and_then(|index| gdb.frames[index].name.as_deref());
    let is_realigned = callee.is_some_and(|name| REALIGNED.contains(&name));
    let is_sp_unknown = is_realigned && frame.found_by != "sframe";
    frame.pc == expected.pc && (frame.sp == expected.sp || is_sp_unknown)
}

/// The comparisons of one kind of stop by one method.
#[derive(Clone, Debug, Default)]
pub struct Count {
    /// How many stacks `unwind` followed to the outermost frame.
    pub complete: u32,
    /// How many frames were equal from the innermost one on, and of how many.
    pub frames: (usize, usize),
    pub equal: u32,
    pub short: Others,
    pub skipping: Others,
    pub differing: Others,
}

/// Comparisons that did not come out equal.
#[derive(Clone, Debug, Default)]
pub struct Others {
    pub count: u32,
    pub first: Option<String>,
}

impl Others {
    fn add(&mut self, what: &str, text: &str) {
        self.count += 1;
        self.first.get_or_insert_with(|| format!("{what}: {text}"));
    }
}

impl Count {
    fn add(&mut self, what: &str, comparison: &Comparison) {
        self.complete += u32::from(comparison.is_complete);
        self.frames.0 += comparison.frames.0;
        self.frames.1 += comparison.frames.1;
        match &comparison.outcome {
            Outcome::Equal => self.equal += 1,
            Outcome::Short(text) => self.short.add(what, text),
            Outcome::Skips(text) => self.skipping.add(what, text),
            Outcome::Differs(text) => self.differing.add(what, text),
        }
    }

    pub fn all(&self) -> u32 {
        self.equal + self.short.count + self.skipping.count + self.differing.count
    }
}

/// A table of counts: by program, kind of stop and method.
#[derive(Clone, Debug, Default)]
pub struct Tally(pub BTreeMap<(String, &'static str, String), Count>);

impl Tally {
    pub fn add(
        &mut self,
        program: &str,
        class: &'static str,
        method: &str,
        what: &str,
        comparison: &Comparison,
    ) {
        let key = (program.to_owned(), class, method.to_owned());
        self.0.entry(key).or_default().add(what, comparison);
    }

    /// Checks that all comparisons of a kind of stop came out equal, and that
    /// how many each program has by each method.
    ///
    /// # Panics
    ///
    /// If not.
    pub fn assert_equal(&self, class: &str, at_least: u64) {
        let counts: Vec<_> = self.0.iter().filter(|((_, of, _), _)| *of == class).collect();
        assert!(!counts.is_empty(), "no {class}");
        for (key, count) in counts {
            assert_eq!(count.equal, count.all(), "{key:?}: {count:#?}");
            assert!(u64::from(count.all()) >= at_least, "{key:?}: only {} stops", count.all());
        }
    }

    /// Checks that no walk of a kind of stop has a frame that gdb does not have.
    ///
    /// # Panics
    ///
    /// If one has.
    pub fn assert_not_differing(&self, class: &str) {
        for (key, count) in self.0.iter().filter(|((_, of, _), _)| *of == class) {
            assert_eq!(count.differing.count, 0, "{key:?}: {count:#?}");
        }
    }

    /// Checks that the comparisons of a kind of stop by a method came out equal,
    /// but for one in twenty that may be short: some of the C library's code has
    /// rules that no table can say.
    ///
    /// # Panics
    ///
    /// If not.
    pub fn assert_mostly_equal(&self, class: &str, method: &str) {
        let counts = self.0.iter().filter(|((_, of, m), _)| *of == class && m == method);
        let counts: Vec<_> = counts.collect();
        assert!(!counts.is_empty(), "no {class} by {method}");
        for (key, count) in counts {
            assert!(count.all() - count.equal <= count.all() / 20, "{key:?}: {count:#?}");
        }
    }

    /// Checks that all comparisons of a kind of stop by a method came out short.
    ///
    /// # Panics
    ///
    /// If not.
    pub fn assert_short(&self, class: &str, method: &str) {
        for (key, count) in self.0.iter().filter(|((_, c, m), _)| *c == class && m == method) {
            assert_eq!(count.short.count, count.all(), "{key:?}: {count:#?}");
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.keys().map(|(program, ..)| program.len()).max().unwrap_or(0);
        writeln!(
            f,
            "{:width$}  stopped in         method      equal  short  skip  differ  complete  frames",
            "program"
        )?;
        for ((program, class, method), count) in &self.0 {
            let Count { complete, frames, equal, short, skipping, differing } = count;
            writeln!(
                f,
                "{program:width$}  {class:17}  {method:10}  {equal:>5}  {:>5}  {:>4}  {:>6}  \
                 {complete:>8}  {} of {}",
                short.count, skipping.count, differing.count, frames.0, frames.1
            )?;
            for (kind, others) in
                [("short", short), ("skipping", skipping), ("differing", differing)]
            {
                if let Some(first) = &others.first {
                    writeln!(f, "    first {kind}: {first}")?;
                }
            }
        }
        Ok(())
    }
}

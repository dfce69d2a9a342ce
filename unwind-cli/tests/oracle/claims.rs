//! Stacks that `unwind` says are complete, held against each witness alone.

use std::collections::BTreeMap;
use std::fmt;

use crate::stops::{GdbThread, Stop, UnwindThread};

/// What the walks of one program by one method claimed.
#[derive(Clone, Debug, Default)]
struct Count {
    stacks: u32,
    complete: u32,
    /// Complete by their own word, though gdb, eu-stack or both have a frame that
    /// they lack: what and where first.
    lacking: BTreeMap<&'static str, (u32, String)>,
    /// In which a witness has frames after a function that switches stacks.
    past_switch: u32,
    /// In which a witness has an address where the program has no code.
    no_code: u32,
}

/// Functions of Go's runtime that call on the stack of the thread. By call frame information their
/// caller is on that stack, too, where its words are those that earlier calls have left; it is on
/// the stack of the goroutine, or there is none. `tests/stack_switches.rs` holds that against Go's
/// own traces.
const SWITCHES: [&str; 4] =
    ["runtime.mcall", "runtime.systemstack", "runtime.asmcgocall", "runtime.morestack"];

/// Whether a function switches stacks, by its name.
fn switches(name: Option<&str>) -> bool {
    name.is_some_and(|name| SWITCHES.contains(&name.trim_end_matches(".abi0")))
}

/// By program and method.
#[derive(Clone, Debug, Default)]
pub struct Claims(BTreeMap<(String, String), Count>);

impl Claims {
    /// Counts the stack of one thread at a stop.
    pub fn add(
        &mut self,
        title: &str,
        method: &str,
        stop: &Stop,
        unwind: &UnwindThread,
        gdb: &GdbThread,
    ) {
        let elfutils = stop.elfutils(gdb.thread);
        let count = self.0.entry((title.to_owned(), method.to_owned())).or_default();
        count.stacks += 1;
        if !unwind.end.complete {
            return;
        }
        count.complete += 1;
        let ours: Vec<u64> = unwind.frames.iter().map(|frame| frame.pc).collect();
        // gdb may show a return address of zero, which ends a stack, as one frame more, and
        // other words where it has lost the stack: in Go, at the end of its threads and after its
        // signal handlers; in node, above built-ins that have no table. Both witnesses take a
        // register that was pushed for the return address where call frame information leaves
        // the push out, as that of glibc's 32-bit `memcpy`.
        let gdbs = gdb.frames.iter().map(|frame| frame.pc);
        let mut gdbs: Vec<u64> = gdbs.take_while(|pc| stop.is_code(*pc)).collect();
        let code = elfutils.iter().take_while(|pc| stop.is_code(**pc)).count();
        count.no_code += u32::from(gdbs.len() < gdb.frames.len() || code < elfutils.len());
        let elfutils = &elfutils[..code];
        // Names are those of addresses, whoever has found these.
        let by_gdb = gdb.frames.iter().map(|frame| (frame.pc, frame.name.as_deref()));
        let by_unwind = unwind.frames.iter().map(|frame| (frame.pc, frame.function.as_deref()));
        let names = by_gdb.chain(by_unwind);
        let switching: Vec<u64> =
            names.filter(|(_, name)| switches(*name)).map(|(pc, _)| pc).collect();
        let up_to_switch = |of: &[u64]| {
            let last = of.iter().position(|pc| switching.contains(pc));
            last.map_or(of.len(), |last| last + 1)
        };
        let ends = (up_to_switch(&gdbs), up_to_switch(elfutils));
        count.past_switch += u32::from(gdbs.len() > ends.0 || elfutils.len() > ends.1);
        gdbs.truncate(ends.0);
        let elfutils = &elfutils[..ends.1];
        let missing = |of: &[u64]| first_missing(of, &ours);
        let (who, at, theirs) = match (missing(&gdbs), missing(elfutils)) {
            (None, None) => return,
            (Some(at), None) => ("gdb", at, &*gdbs),
            (None, Some(at)) => ("eu-stack", at, elfutils),
            (Some(at), Some(_)) => ("gdb and eu-stack", at, &*gdbs),
        };
        let text = || {
            let name = gdb.frames.get(at).and_then(|frame| frame.name.as_deref()).unwrap_or("?");
            format!(
                "{} {} thread {}: #{at} is {:#x} {name}; {ours:x?} where there are {theirs:x?}",
                stop.phase, stop.number, unwind.thread, theirs[at]
            )
        };
        count.lacking.entry(who).or_insert_with(|| (0, text())).0 += 1;
    }

    /// Checks that no stack says that it is complete and lacks a frame.
    ///
    /// # Panics
    ///
    /// If one does, or there is none.
    pub fn assert_true(&self) {
        assert!(self.0.values().any(|count| count.stacks > 0), "no stack was looked at");
        for (key, Count { lacking, .. }) in &self.0 {
            assert!(lacking.is_empty(), "{key:?}: {lacking:#?}");
        }
    }
}

/// The number of the first frame of `theirs` that is not among `ours`, in the same
/// order.
fn first_missing(theirs: &[u64], ours: &[u64]) -> Option<usize> {
    let mut rest = ours.iter();
    theirs.iter().position(|pc| !rest.any(|our| our == pc))
}

impl fmt::Display for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((title, method), count) in &self.0 {
            let Count { stacks, complete, lacking, past_switch, no_code } = count;
            let lack: u32 = lacking.values().map(|(count, _)| count).sum();
            writeln!(
                f,
                "{title}, {method}: {stacks} stacks, {complete} say complete, {lack} of them lack \
                 a frame"
            )?;
            if *past_switch > 0 {
                writeln!(f, "    {past_switch} that a witness follows past {SWITCHES:?}")?;
            }
            if *no_code > 0 {
                writeln!(f, "    {no_code} in which a witness has an address of no code")?;
            }
            for (who, (count, first)) in lacking {
                writeln!(f, "    {count} that {who} has, first: {first}")?;
            }
        }
        Ok(())
    }
}

#[test]
fn a_frame_that_a_witness_has_is_missed_wherever_it_is() {
    assert_eq!(first_missing(&[1, 2, 2, 3], &[1, 2, 2, 3]), None);
    assert_eq!(first_missing(&[1, 2, 2, 3], &[1, 2, 3]), Some(2));
    assert_eq!(first_missing(&[1, 2, 3], &[1, 2]), Some(2));
    assert_eq!(first_missing(&[1, 3], &[1, 2, 3, 4]), None);
    assert_eq!(first_missing(&[], &[1]), None);
    assert_eq!(first_missing(&[2, 1], &[1, 2]), Some(1));
}

//! The threads of CPython's interpreters, and the frames of each.

use std::collections::{BTreeSet, HashMap};

use unwind_core::Memory;

use crate::interpreters::bounded_memory::{BoundedMemory, Doubt};
use crate::interpreters::python::code::CodeObjects;
use crate::interpreters::python::frames::read_frame;
use crate::interpreters::python::offsets::{Chain, Layout, Record};
use crate::interpreters::runs::{Run, ThreadRuns};

/// How many interpreters and threads are looked at.
const THREADS: u32 = 1 << 16;
/// How many frames of a thread are read, and records of its evaluators.
const FRAMES: u32 = 1 << 14;

/// Reads the frames of the threads that are `wanted`, in all interpreters of a runtime. Returns what is wrong
/// with the list of threads.
pub(super) fn read_threads<M: Memory>(
    (runtime, layout): (u64, &Layout),
    wanted: &[u64],
    codes: &mut CodeObjects<'_>,
    memory: &mut BoundedMemory<'_, M>,
    found: &mut HashMap<u64, ThreadRuns>,
) -> Option<Doubt> {
    let wanted: BTreeSet<u64> = wanted.iter().copied().collect();
    let mut parts: HashMap<u64, Vec<ThreadRuns>> = HashMap::new();
    let mut read = || {
        let state = layout.state;
        let (mut interpreters, mut threads) = (Steps::new(THREADS), Steps::new(THREADS));
        let mut interpreter = memory.word(runtime, state.first_interpreter)?;
        while interpreter != 0 {
            interpreters.to(interpreter)?;
            let mut thread = memory.word(interpreter, state.first_thread)?;
            while thread != 0 {
                threads.to(thread)?;
                let id = memory.word(thread, state.thread_id)?;
                if wanted.contains(&id) {
                    let runs = read_runs(thread, layout.chain, codes, memory);
                    parts.entry(id).or_default().push(runs);
                }
                thread = memory.word(thread, state.next_thread)?;
            }
            interpreter = memory.word(interpreter, state.next_interpreter)?;
        }
        Ok(())
    };
    let doubt = read().err();
    found.extend(parts.into_iter().map(|(id, parts)| (id, one_of(parts))));
    doubt
}

/// What all interpreters have of a thread. Which of them called which is told by their places on the stack.
fn one_of(parts: Vec<ThreadRuns>) -> ThreadRuns {
    let parts_with_runs = parts.iter().filter(|part| !part.runs.is_empty()).count();
    let mut thread = ThreadRuns::default();
    for part in parts {
        thread.doubt = thread.doubt.or(part.doubt);
        thread.runs.extend(part.runs);
    }
    if parts_with_runs > 1 {
        if thread.runs.iter().any(|run| run.anchor.is_none()) {
            thread.doubt = Some(Doubt::Strange("interpreters whose order is not known"));
        }
        thread.runs.sort_by_key(|run| run.anchor);
    }
    thread
}

/// Reads the frames of one thread of an interpreter, up to the first that is in doubt.
pub(super) fn read_runs<M: Memory>(
    thread: u64,
    chain: Chain,
    codes: &mut CodeObjects<'_>,
    memory: &mut BoundedMemory<'_, M>,
) -> ThreadRuns {
    let mut runs = ThreadRuns::default();
    let read = match chain {
        Chain::Single { innermost } => single(thread, innermost, codes, memory, &mut runs.runs),
        Chain::Records { .. } => records(thread, chain, codes, memory, &mut runs.runs),
        Chain::Entries { .. } => entries(thread, chain, codes, memory, &mut runs.runs),
    };
    runs.doubt = read.err();
    runs
}

/// Notices that a list is a circle before all of its room is used.
struct Steps {
    left: u32,
    taken: u32,
    mark: u64,
}

impl Steps {
    /// `most` steps at most.
    const fn new(most: u32) -> Self {
        Self { left: most, taken: 0, mark: 0 }
    }

    /// Counts the step to `addr`.
    fn to(&mut self, addr: u64) -> Result<(), Doubt> {
        if addr == self.mark {
            return Err(Doubt::Circle);
        }
        self.taken = self.taken.saturating_add(1);
        self.left = self.left.checked_sub(1).ok_or(Doubt::TooMuch)?;
        if self.taken.is_power_of_two() {
            self.mark = addr;
        }
        Ok(())
    }
}

fn single<M: Memory>(
    thread: u64,
    innermost: u64,
    codes: &mut CodeObjects<'_>,
    memory: &mut BoundedMemory<'_, M>,
    runs: &mut Vec<Run>,
) -> Result<(), Doubt> {
    let mut steps = Steps::new(FRAMES);
    let mut frame = memory.word(thread, innermost)?;
    while frame != 0 {
        steps.to(frame)?;
        let frames = read_frame(frame, codes, memory)?.into_iter().collect();
        runs.push(Run { anchor: None, frames });
        frame = memory.word(frame, codes.layout.frame.previous)?;
    }
    Ok(())
}

fn records<M: Memory>(
    thread: u64,
    chain: Chain,
    codes: &mut CodeObjects<'_>,
    memory: &mut BoundedMemory<'_, M>,
    runs: &mut Vec<Run>,
) -> Result<(), Doubt> {
    let Chain::Records { record, previous, .. } = chain else { return Ok(()) };
    let record = memory.word(thread, record)?;
    // The thread is about to start.
    if record == 0 {
        return Ok(());
    }
    let read = from_record(record, chain, codes, memory, runs);
    let outer = memory.word(record, previous)?;
    if outer != 0 && read.is_err() && runs.is_empty() {
        // A call that begins has a record already, with nothing in it: the others are there.
        from_record(outer, chain, codes, memory, runs)?;
    }
    read
}

/// Reads the frames of a record and those further out.
fn from_record<M: Memory>(
    mut record: u64,
    chain: Chain,
    codes: &mut CodeObjects<'_>,
    memory: &mut BoundedMemory<'_, M>,
    runs: &mut Vec<Run>,
) -> Result<(), Doubt> {
    let Chain::Records { innermost, previous, is_entry, .. } = chain else { return Ok(()) };
    let mut steps = Steps::new(FRAMES);
    let mut frame = memory.word(record, innermost)?;
    loop {
        let outer = memory.word(record, previous)?;
        if outer == 0 {
            // The outermost record is the thread's own, and no evaluator's.
            return match frame {
                0 => Ok(()),
                _ => Err(Doubt::Strange("a frame without an evaluator")),
            };
        }
        let caller = memory.word(outer, innermost)?;
        let mut run = Run { anchor: Some(record), frames: Vec::new() };
        // Generators that something is thrown into are marked like the outermost frame, and have callers in the
        // same run.
        let mut is_outermost = false;
        while !(is_outermost && frame == caller) {
            if frame == 0 {
                return Err(Doubt::Strange("two callers of a frame"));
            }
            steps.to(frame)?;
            run.frames.extend(read_frame(frame, codes, memory)?);
            is_outermost = memory.array(frame, is_entry)? != [0];
            frame = memory.word(frame, codes.layout.frame.previous)?;
        }
        runs.push(run);
        record = outer;
    }
}

fn entries<M: Memory>(
    thread: u64,
    chain: Chain,
    codes: &mut CodeObjects<'_>,
    memory: &mut BoundedMemory<'_, M>,
    runs: &mut Vec<Run>,
) -> Result<(), Doubt> {
    let Chain::Entries { record, innermost } = chain else { return Ok(()) };
    let Some(Record { record, previous }) = record else {
        let frame = memory.word(thread, innermost)?;
        return from_frame(frame, None, codes, memory, runs);
    };
    let record = memory.word(thread, record)?;
    if record == 0 {
        return Ok(());
    }
    let frame = memory.word(record, innermost)?;
    let caller = match memory.word(record, previous)? {
        0 => return from_frame(frame, None, codes, memory, runs),
        outer => memory.word(outer, innermost)?,
    };
    let read = from_frame(frame, Some(caller), codes, memory, runs);
    if read.is_err() && runs.is_empty() {
        // A call that begins has a record already, with nothing in it: the others are there.
        from_frame(caller, None, codes, memory, runs)?;
    }
    read
}

/// Reads a frame and those further out. If the `caller` of the innermost evaluator is known, the first entry
/// frame has to have it.
fn from_frame<M: Memory>(
    mut frame: u64,
    mut caller: Option<u64>,
    codes: &mut CodeObjects<'_>,
    memory: &mut BoundedMemory<'_, M>,
    runs: &mut Vec<Run>,
) -> Result<(), Doubt> {
    /// Who has an entry frame: the native stack; and, since 3.14, who has one that is no call.
    const ENTRY: u8 = 3;
    const NONE: u8 = 4;
    let layout = codes.layout.frame;
    let (owner, mut steps) = (layout.owner.unwrap_or(0), Steps::new(FRAMES));
    let mut run = Run::default();
    while frame != 0 {
        steps.to(frame)?;
        let previous = memory.word(frame, layout.previous)?;
        match memory.array(frame, owner)? {
            [ENTRY] => {
                if caller.take().is_some_and(|caller| caller != previous) {
                    return Err(Doubt::Strange("two callers of a frame"));
                }
                run.anchor = Some(frame);
                runs.push(std::mem::take(&mut run));
            }
            [NONE] => {}
            [0..ENTRY] => run.frames.extend(read_frame(frame, codes, memory)?),
            _ => return Err(Doubt::Strange("a frame that nobody has")),
        }
        frame = previous;
    }
    match run.frames.is_empty() {
        true => Ok(()),
        false => Err(Doubt::Strange("a frame without an evaluator")),
    }
}

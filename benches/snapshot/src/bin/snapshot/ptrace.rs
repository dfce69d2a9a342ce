//! Snapshots with whole stacks, of a process that is stopped for each.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use unwind_snapshot::{Snapshot, Writer};
use unwind_target::target::held_process::{HeldProcess, HeldThread};

use crate::Args;
use crate::address_spaces::Spaces;
use crate::command::Subject;
use crate::error::Error;

/// The most bytes of a stack that are copied.
const STACK_LIMIT: u64 = 64 << 20;

/// Stops the program again and again and writes its stacks; returns the number of
/// snapshots.
///
/// # Errors
///
/// [`Error`].
pub(crate) fn capture(args: &Args) -> Result<usize, Error> {
    let written = |error| Error::Write { path: args.output.clone(), error };
    let file = io::BufWriter::new(File::create(&args.output).map_err(written)?);
    let mut writer = Writer::new(file).map_err(written)?;
    let mut subject = Subject::new(args.pid, &args.command)?;
    let taken = capture_all(args, &mut subject, &mut writer);
    // Whatever went wrong, the command is not left alone.
    subject.finish(args.kill);
    let taken = taken?;
    writer.finish().map_err(written)?;
    Ok(taken)
}

fn capture_all<W: Write>(
    args: &Args,
    subject: &mut Subject,
    writer: &mut Writer<W>,
) -> Result<usize, Error> {
    let pause = Duration::from_secs(1).checked_div(args.rate).unwrap_or_default();
    let begin = Instant::now();
    let (mut last, mut spaces) = (Last::default(), Spaces::default());
    let (mut stops, mut taken) = (0_usize, 0_usize);
    while taken < args.count && subject.runs()? {
        sleep(pause);
        let is_left_out = args.leaves_out(stops);
        stops = stops.saturating_add(1);
        if is_left_out {
            continue;
        }
        let mut held = match HeldProcess::stop(subject.id(), args.hold_limit()) {
            Ok(held) => held,
            Err(error) if error.is_gone() => break,
            Err(error) => return Err(error.into()),
        };
        let time = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let left = args.count.saturating_sub(taken);
        let copied = write(&mut held, time, left, (&mut last, &mut spaces), writer)
            .map_err(|error| Error::Write { path: args.output.clone(), error })?;
        taken = taken.saturating_add(copied);
    }
    Ok(taken)
}

/// Where each thread stood last. One that sleeps is not captured again and
/// again.
type Last = HashMap<u32, HeldThread>;

/// Writes the stacks of at most `limit` threads.
fn write<W: Write>(
    held: &mut HeldProcess,
    time: u64,
    limit: usize,
    (last, spaces): (&mut Last, &mut Spaces),
    writer: &mut Writer<W>,
) -> io::Result<usize> {
    let process = u32::try_from(held.id()).unwrap_or_default();
    let space = spaces.index(held.code(), writer)?;
    let mut taken = 0_usize;
    let threads: Vec<_> = held.threads().collect();
    for thread in threads {
        let has_moved = last.insert(thread.id, thread) != Some(thread);
        if taken == limit || !has_moved {
            continue;
        }
        let HeldThread { id, rip, gpr, .. } = thread;
        let [_, _, _, _, _, _, _, stack_start, ..] = gpr;
        let Some(stack) = held.bytes_from(stack_start, STACK_LIMIT) else { continue };
        let stack = &stack;
        let is_whole = true;
        writer.snapshot(&Snapshot {
            space,
            process,
            thread: id,
            time,
            rip,
            gpr,
            is_whole,
            stack_start,
            stack,
        })?;
        taken = taken.saturating_add(1);
    }
    Ok(taken)
}

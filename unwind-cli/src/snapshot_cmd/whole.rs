//! Snapshots with whole stacks, of a process that is stopped for each.

use std::collections::HashMap;
use std::io::{self, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use unwind_core::{Memory as _, VirtAddr};
use unwind_snapshot::{Snapshot, Writer};

use crate::error::Error;
use crate::snapshot_cmd::command::Subject;
use crate::snapshot_cmd::spaces::Spaces;
use crate::snapshot_cmd::{Args, failed};
use crate::target::hold::{Held, Hold};
use crate::target::maps::{self, Backing, Mapping};
use crate::target::memory::ProcessMemory;
use crate::target::registers::{CodeMode, UserRegisters};

/// The most of a stack that is copied.
const STACK_LIMIT: u64 = 64 << 20;

/// Stops the program again and again and writes its stacks; returns how many
/// snapshots.
///
/// # Errors
///
/// [`Error`].
pub(crate) fn capture<W: Write>(
    args: &Args,
    mut subject: Subject,
    writer: &mut Writer<W>,
) -> Result<usize, Error> {
    let pause = Duration::from_secs(1).checked_div(args.rate).unwrap_or_default();
    let begin = Instant::now();
    let mut last = Last::default();
    let mut spaces = Spaces::default();
    let (mut stops, mut taken) = (0_usize, 0_usize);
    while taken < args.count && subject.runs()? {
        sleep(pause);
        let is_left_out = stops.checked_rem(args.skip.saturating_add(1)) != Some(0);
        stops = stops.saturating_add(1);
        if is_left_out {
            continue;
        }
        let (hold, held) = match Hold::stop(subject.id(), args.hold_limit()) {
            Ok(stopped) => stopped,
            Err(Error::NoSuchProcess(_) | Error::Ended(_)) => break,
            Err(error) => {
                subject.finish(args.kill);
                return Err(error);
            }
        };
        let time = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let left = args.count.saturating_sub(taken);
        let copied = Stopped::read(held).and_then(|mut stopped| {
            stopped
                .write(time, left, (&mut last, &mut spaces), writer)
                .map_err(|error| failed(&args.output, error))
        });
        drop(hold);
        taken = taken.saturating_add(copied?);
    }
    subject.finish(args.kill);
    Ok(taken)
}

/// Where each thread stood last. One that sleeps is not captured again and
/// again.
type Last = HashMap<i32, UserRegisters>;

/// A process that stands still.
struct Stopped {
    held: Held,
    mappings: Vec<Mapping>,
    memory: ProcessMemory,
}

impl Stopped {
    fn read(held: Held) -> Result<Self, Error> {
        // After the first thread has ended only the others lead to the memory.
        let id = held.some_thread;
        let failed = |path: String| move |error| Error::Read { path: path.into(), error };
        let path = format!("/proc/{id}/maps");
        let mappings = maps::parse(&std::fs::read(&path).map_err(failed(path))?);
        let memory = ProcessMemory::open(id).map_err(failed(format!("/proc/{id}/mem")))?;
        Ok(Self { held, mappings, memory })
    }

    /// Writes the stacks of at most `limit` of its threads.
    fn write<W: Write>(
        &mut self,
        time: u64,
        limit: usize,
        (last, spaces): (&mut Last, &mut Spaces),
        writer: &mut Writer<W>,
    ) -> io::Result<usize> {
        let process = u32::try_from(self.held.process).unwrap_or_default();
        spaces.exec(process);
        for mapping in self.mappings.iter().filter(|mapping| mapping.executable) {
            if let Backing::File(file) = &mapping.backing {
                let path = file.path.as_os_str().as_encoded_bytes();
                spaces.map(process, mapping.range.clone(), mapping.offset, path, writer)?;
            }
        }
        let mut taken = 0_usize;
        for &(thread, registers) in &self.held.threads {
            let has_moved = last.insert(thread, registers) != Some(registers);
            let is_64 = registers.code_mode() == Some(CodeMode::X86_64);
            if taken == limit || !is_64 || !has_moved {
                continue;
            }
            let stack = stack_of(&registers, &self.mappings, &mut self.memory);
            let Some(stack) = stack else { continue };
            let space = spaces.index(process, writer)?;
            writer.snapshot(&snapshot(thread, process, space, time, &registers, &stack))?;
            taken = taken.saturating_add(1);
        }
        Ok(taken)
    }
}

/// The bytes from the stack pointer to the end of what is mapped there.
fn stack_of(
    registers: &UserRegisters,
    mappings: &[Mapping],
    memory: &mut ProcessMemory,
) -> Option<Vec<u8>> {
    let mapping = mappings.iter().find(|mapping| mapping.range.contains(&registers.rsp))?;
    let len = mapping.range.end.saturating_sub(registers.rsp).min(STACK_LIMIT);
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    memory.read(VirtAddr::new(registers.rsp), &mut bytes).ok()?;
    Some(bytes)
}

fn snapshot<'s>(
    thread: i32,
    process: u32,
    space: u32,
    time: u64,
    regs: &UserRegisters,
    stack: &'s [u8],
) -> Snapshot<'s> {
    #[rustfmt::skip]
    let gpr = [
        regs.rax, regs.rdx, regs.rcx, regs.rbx, regs.rsi, regs.rdi, regs.rbp, regs.rsp,
        regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
    ];
    let thread = u32::try_from(thread).unwrap_or_default();
    let (rip, stack_start) = (regs.rip, regs.rsp);
    Snapshot { space, process, thread, time, rip, gpr, is_whole: true, stack_start, stack }
}

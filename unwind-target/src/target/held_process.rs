//! A process that is held still, for a tool that copies whole stacks.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use unwind_core::{Memory as _, VirtAddr};

use crate::target::capture::mappings_and_memory;
use crate::target::error::TargetError;
use crate::target::maps::{self, Backing, Mapping};
use crate::target::memory::ProcessMemory;
use crate::target::pause::{HoldLimit, Pause, PausedProcess};
use crate::target::registers::{CodeMode, UserRegisters};

/// A process that stands still for as long as this value lives.
///
/// When the limit is over, whatever the program does at that time, the process continues; what is read
/// from then on may be of later times. [`HoldLimit::on_late`] tells of it.
#[derive(Debug)]
pub struct HeldProcess {
    held: PausedProcess,
    mappings: Vec<Mapping>,
    memory: ProcessMemory,
    /// The process continues when this is dropped.
    _hold: Pause,
}

/// The registers of a thread of 64-bit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldThread {
    /// The id of the thread.
    pub id: u32,
    /// The instruction pointer.
    pub rip: u64,
    /// The general registers in the order of their DWARF numbers: rax, rdx, rcx, rbx,
    /// rsi, rdi, rbp, rsp, r8 to r15.
    pub gpr: [u64; 16],
}

/// A range of addresses where a process has code of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappedCode {
    /// The addresses.
    pub range: Range<u64>,
    /// Where in the file the range starts, in bytes.
    pub offset: u64,
    /// The path of the file, also where the file is deleted.
    pub path: PathBuf,
}

impl HeldProcess {
    /// Stops the process that has `task` as its id or as that of one of its threads.
    /// It continues after `limit` at the latest.
    ///
    /// # Errors
    ///
    /// [`TargetError`] if there is no such process, if it may not be traced, or if it ends.
    pub fn stop(task: i32, limit: HoldLimit) -> Result<Self, TargetError> {
        let (hold, held) = Pause::stop(task, limit, || ())?;
        // After the first thread has ended only the others lead to the memory.
        let id = held.some_thread;
        let (mappings, memory) = mappings_and_memory(id)?;
        Ok(Self { held, mappings, memory, _hold: hold })
    }

    /// The id of the process.
    #[must_use]
    pub const fn id(&self) -> i32 {
        self.held.process
    }

    /// The threads that execute 64-bit code: the first one first, then by their ids.
    pub fn threads(&self) -> impl Iterator<Item = HeldThread> {
        let threads = self.held.threads.iter();
        let wide = threads.filter(|(_, regs)| regs.code_mode() == Some(CodeMode::X86_64));
        wide.filter_map(|(id, regs)| {
            let (id, rip, gpr) = (u32::try_from(*id).ok()?, regs.rip, general_registers(regs));
            Some(HeldThread { id, rip, gpr })
        })
    }

    /// Where the process has code of files, ascending.
    pub fn code(&self) -> impl Iterator<Item = MappedCode> {
        self.mappings.iter().filter_map(mapped_code)
    }

    /// The bytes from `start` to the end of what is mapped there, at most `limit`.
    pub fn bytes_from(&mut self, start: u64, limit: u64) -> Option<Vec<u8>> {
        let mapping = self.mappings.iter().find(|mapping| mapping.range.contains(&start))?;
        let len = mapping.range.end.saturating_sub(start).min(limit);
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.memory.read(VirtAddr::new(start), &mut bytes).ok()?;
        Some(bytes)
    }
}

/// Where a process that runs has code of files, ascending.
///
/// # Errors
///
/// What reading `/proc/PID/maps` fails with.
pub fn code_of(process: i32) -> io::Result<Vec<MappedCode>> {
    let text = std::fs::read(format!("/proc/{process}/maps"))?;
    Ok(maps::parse(&text).iter().filter_map(mapped_code).collect())
}

fn mapped_code(mapping: &Mapping) -> Option<MappedCode> {
    let Backing::File(file) = &mapping.backing else { return None };
    let (range, offset) = (mapping.range.clone(), mapping.offset);
    mapping.executable.then(|| MappedCode { range, offset, path: file.path.clone() })
}

/// In the order of the DWARF numbers.
#[rustfmt::skip]
#[must_use]
pub const fn general_registers(r: &UserRegisters) -> [u64; 16] {
    [
        r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp,
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15,
    ]
}

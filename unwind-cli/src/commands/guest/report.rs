//! What is shown of a guest: to people as text, to programs as JSON.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::Serialize;
use unwind_guest::CodeKind;
use unwind_guest::paging::PagingMode;
use unwind_target::{FoundBy, Frame, StackEnd, Untrusted};

use crate::commands::guest::files::GuestFiles;
use crate::commands::guest::registers::VcpuState;
use crate::commands::guest::walk::{Part, VcpuStack};
use crate::commands::stack::text::write_frames;

/// Everything that one look at a guest found out.
#[derive(Debug, Serialize)]
pub(crate) struct GuestReport {
    /// The version of this structure: it rises when a field changes its meaning
    /// or goes.
    pub(crate) schema: u32,
    pub(crate) vcpus: Vec<VcpuReport>,
    /// What is not as it should be, a line each.
    pub(crate) warnings: Vec<String>,
}

/// What one vCPU executes.
#[derive(Debug, Serialize)]
pub(crate) struct VcpuReport {
    pub(crate) vcpu: u64,
    /// `x86-64` or `ia32`; nothing for 16-bit code.
    pub(crate) arch: Option<&'static str>,
    /// `user` or `kernel`.
    pub(crate) privilege: &'static str,
    /// It waits for an interrupt.
    pub(crate) halted: bool,
    /// What runs, of a Linux kernel that tells.
    pub(crate) task: Option<TaskReport>,
    /// `none`, `2-level`, `pae`, `4-level` or `5-level`.
    pub(crate) paging: &'static str,
    /// Innermost first.
    pub(crate) frames: Vec<Frame>,
    pub(crate) end: StackEnd,
    /// The user code that has entered the kernel.
    pub(crate) user: Option<UserReport>,
}

/// A thread of a Linux kernel.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TaskReport {
    pub(crate) comm: Untrusted,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
}

/// The stack of the user code that has entered a kernel.
#[derive(Debug, Serialize)]
pub(crate) struct UserReport {
    /// `x86-64` or `ia32`.
    pub(crate) arch: Option<&'static str>,
    /// Innermost first.
    pub(crate) frames: Vec<Frame>,
    pub(crate) end: StackEnd,
}

impl GuestReport {
    /// The version of the structure.
    const SCHEMA: u32 = 1;

    pub(crate) fn new(
        vcpus: Vec<VcpuReport>,
        warnings: impl Iterator<Item = String>,
        troubles: &BTreeSet<String>,
    ) -> Self {
        let warnings = warnings.chain(troubles.iter().cloned()).collect();
        Self { schema: Self::SCHEMA, vcpus, warnings }
    }

    /// Writes it for people.
    ///
    /// # Errors
    ///
    /// As writing to `out`.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for (number, vcpu) in self.vcpus.iter().enumerate() {
            if number > 0 {
                writeln!(out)?;
            }
            let VcpuReport { privilege, paging, .. } = vcpu;
            let halted = if vcpu.halted { ", halted" } else { "" };
            let arch = vcpu.arch.unwrap_or("16-bit");
            write!(out, "vCPU {}, {privilege} {arch}, paging {paging}{halted}", vcpu.vcpu)?;
            match &vcpu.task {
                Some(TaskReport { comm, pid, tid }) if pid == tid => {
                    writeln!(out, ", {} {pid}", comm.escaped())?;
                }
                Some(TaskReport { comm, pid, tid }) => {
                    writeln!(out, ", {} {pid}/{tid}", comm.escaped())?;
                }
                None => writeln!(out)?,
            }
            write_frames(out, vcpu.arch, &vcpu.frames, &vcpu.end)?;
            if let Some(user) = &vcpu.user {
                writeln!(out, "entered from user {}", user.arch.unwrap_or("16-bit"))?;
                write_frames(out, user.arch, &user.frames, &user.end)?;
            }
        }
        Ok(())
    }
}

impl VcpuReport {
    /// Names the frames of a stack. What is wrong with the files of their code
    /// goes to `troubles`.
    pub(crate) fn new(
        vcpu: u64,
        state: &VcpuState,
        VcpuStack { task, part, user }: VcpuStack,
        files: &GuestFiles,
        troubles: &mut BTreeSet<String>,
    ) -> Self {
        let registers = &state.registers;
        let (arch, frames, end) = named(part, files, troubles);
        Self {
            vcpu,
            arch,
            privilege: if registers.is_user() { "user" } else { "kernel" },
            halted: state.is_halted,
            task: task.map(|task| TaskReport {
                comm: task.comm().to_vec().into(),
                pid: task.pid,
                tid: task.tid,
            }),
            paging: match registers.address_space().mode() {
                PagingMode::Off => "none",
                PagingMode::TwoLevel => "2-level",
                PagingMode::Pae => "pae",
                PagingMode::FourLevel => "4-level",
                PagingMode::FiveLevel => "5-level",
            },
            frames,
            end,
            user: user.map(|user| {
                let (arch, frames, end) = named(user, files, troubles);
                UserReport { arch, frames, end }
            }),
        }
    }

    /// Whether the stack is complete, with the user's part of it.
    pub(crate) fn is_complete(&self) -> bool {
        self.ends().all(|end| end.complete)
    }

    /// The ends of its parts.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &StackEnd> {
        [&self.end].into_iter().chain(self.user.as_ref().map(|user| &user.end))
    }
}

/// The kind of code of a part, its frames with names, and its end.
fn named(
    part: Part,
    files: &GuestFiles,
    troubles: &mut BTreeSet<String>,
) -> (Option<&'static str>, Vec<Frame>, StackEnd) {
    let is_wide = part.code == CodeKind::X86_64;
    let mut names = part.names.into_iter();
    let named = Frame::of_stack(&part.frames, |addr| files.find(is_wide, addr));
    let frames = named.map(|(mut report, trouble)| {
        troubles.extend(trouble);
        if let Some(name) = names.next().flatten() {
            let (pc, symbol) = (report.pc, &mut report.symbol);
            symbol.object = Some(name.object);
            symbol.object_pc = name.bias.map(|bias| pc.wrapping_sub(bias));
            if let Some((function, range)) = name.function {
                symbol.function_offset = Some(pc.wrapping_sub(range.start));
                symbol.function = Some(function);
            }
        }
        if part.is_by_orc && report.found_by == FoundBy::Sframe {
            report.found_by = FoundBy::Orc;
        }
        report
    });
    let arch = match part.code {
        CodeKind::X86_64 => Some("x86-64"),
        CodeKind::Ia32 { .. } => Some("ia32"),
        CodeKind::Sixteen => None,
    };
    (arch, frames.collect(), part.end)
}

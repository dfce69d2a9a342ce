//! What is shown of a guest: to people as text, to programs as JSON.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::Serialize;
use unwind_core::Frame as WalkedFrame;
use unwind_target::{Frame, StackEnd};
use unwind_x86::paging::{AddressSpace, PagingMode};

use crate::commands::guest::files::GuestFiles;
use crate::commands::guest::registers::{Mode, VcpuRegisters};
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
    /// `none`, `2-level`, `pae`, `4-level` or `5-level`.
    pub(crate) paging: &'static str,
    /// Innermost first.
    pub(crate) frames: Vec<Frame>,
    pub(crate) end: StackEnd,
}

impl GuestReport {
    /// The version of the structure.
    const SCHEMA: u32 = 1;

    pub(crate) fn new(
        vcpus: Vec<VcpuReport>,
        warnings: &[String],
        troubles: &BTreeSet<String>,
    ) -> Self {
        let warnings = warnings.iter().chain(troubles).cloned().collect();
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
            writeln!(out, "vCPU {}, {privilege} {arch}, paging {paging}{halted}", vcpu.vcpu)?;
            write_frames(out, vcpu.arch, &vcpu.frames, &vcpu.end)?;
        }
        Ok(())
    }
}

impl VcpuReport {
    /// Names the frames of a stack. What is wrong with the files of their code
    /// goes to `troubles`.
    pub(crate) fn new(
        vcpu: u64,
        registers: &VcpuRegisters,
        (frames, end): (Vec<WalkedFrame>, StackEnd),
        files: &GuestFiles,
        troubles: &mut BTreeSet<String>,
    ) -> Self {
        let is_wide = registers.mode == Mode::Long;
        let named = frames.iter().map(|frame| {
            let (report, trouble) = Frame::new(frame, |addr| files.find(is_wide, addr));
            troubles.extend(trouble);
            report
        });
        Self {
            vcpu,
            arch: match registers.mode {
                Mode::Long => Some("x86-64"),
                Mode::Protected { .. } => Some("ia32"),
                Mode::Sixteen => None,
            },
            privilege: if registers.is_user { "user" } else { "kernel" },
            halted: registers.is_halted,
            paging: match AddressSpace::from_registers(&registers.control).mode() {
                PagingMode::Off => "none",
                PagingMode::TwoLevel => "2-level",
                PagingMode::Pae => "pae",
                PagingMode::FourLevel => "4-level",
                PagingMode::FiveLevel => "5-level",
            },
            frames: named.collect(),
            end,
        }
    }
}

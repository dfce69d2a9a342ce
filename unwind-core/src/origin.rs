//! Who found the row of a frame.

use core::fmt;

/// Who found a row.
///
/// | variant | shown as | by the command `unwind` |
/// |---|---|---|
/// | [`Registers`](Self::Registers) | `registers` | `registers` |
/// | [`Table`](Self::Table) | `table` | `sframe`, of a guest's kernel `orc` |
/// | [`CallFrames`](Self::CallFrames) | `call frame information` | `cfi` |
/// | [`FramePointer`](Self::FramePointer) | `frame pointer` | `fp` |
/// | [`Instructions`](Self::Instructions) | `instructions` | `code` |
/// | [`SignalContext`](Self::SignalContext) | `signal context` | `signal` |
/// | [`BranchRecord`](Self::BranchRecord) | `branch record` | `lbr` |
/// | [`Host`](Self::Host) | `host` | `other` |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// None: the registers of the sample itself.
    #[default]
    Registers,
    /// A table in SFrame's format that came with the code, or of Linux's kernel in that of ORC.
    Table,
    /// Call frame information (`.eh_frame`, `.debug_frame`), read in place or as a table that was
    /// made of it.
    CallFrames,
    /// The convention that the code keeps a frame pointer.
    FramePointer,
    /// The instructions at the pc.
    Instructions,
    /// The registers that the kernel saved for a signal handler.
    SignalContext,
    /// The hardware's record of branches.
    BranchRecord,
    /// A source of the host's own.
    Host,
}

impl Origin {
    /// A number for records and other languages, which stays the same in later versions:
    /// 0 to 7 in the order of the variants.
    #[inline]
    #[must_use]
    #[expect(clippy::as_conversions, reason = "the byte that it is")]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The inverse of [`code`](Self::code), of the low three bits.
    pub(crate) const fn from_code(code: u8) -> Self {
        match code & 7 {
            0 => Self::Registers,
            1 => Self::Table,
            2 => Self::CallFrames,
            3 => Self::FramePointer,
            4 => Self::Instructions,
            5 => Self::SignalContext,
            6 => Self::BranchRecord,
            _ => Self::Host,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Registers => "registers",
            Self::Table => "table",
            Self::CallFrames => "call frame information",
            Self::FramePointer => "frame pointer",
            Self::Instructions => "instructions",
            Self::SignalContext => "signal context",
            Self::BranchRecord => "branch record",
            Self::Host => "host",
        })
    }
}

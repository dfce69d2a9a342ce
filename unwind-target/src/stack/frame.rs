//! One frame with its names.

use serde::Serialize;
use unwind_core::{Frame as WalkedFrame, Origin};

use crate::interpreters::frame::InterpretedFrame;
use crate::loaded::module::Module;
use crate::stack::symbol::Symbol;

/// One frame.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Frame {
    /// Where the frame's execution stands: if `exact`, the instruction that runs next, else the return address of its
    /// call. Its symbol is looked up at [`lookup`](Self::lookup); offsets are those of the pc.
    #[serde(serialize_with = "crate::stack::symbol::hex")]
    pub pc: u64,
    /// The stack pointer in this frame.
    #[serde(serialize_with = "crate::stack::symbol::hex")]
    pub sp: u64,
    /// The pc is that of an interrupted instruction, not a return address.
    pub exact: bool,
    /// How the frame was found.
    pub found_by: FoundBy,
    /// What a table says of the callee could not be used, so that this frame was found in another way.
    pub after_failure: bool,
    /// Callers may be missing between the frame before and this one.
    pub after_gap: bool,
    /// The frame pointer was taken as unchanged although the row says that it was
    /// saved.
    pub fp_assumed: bool,
    /// What its pc is called.
    #[serde(flatten)]
    pub symbol: Symbol,
    /// The calls that it executes if it is of an interpreter's evaluator, innermost first. They stand before it in
    /// the order of a stack.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interpreted: Vec<InterpretedFrame>,
}

/// How a frame was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FoundBy {
    /// The thread's registers: the frame that it executes.
    #[default]
    Registers,
    /// An SFrame table.
    Sframe,
    /// An ORC table of Linux's kernel.
    Orc,
    /// Call frame information (`.eh_frame`, `.debug_frame`).
    Cfi,
    /// A frame pointer.
    Fp,
    /// The instructions at the pc of the callee.
    Code,
    /// The registers that the kernel saved for a signal handler.
    Signal,
    /// Another way.
    Other,
}

impl FoundBy {
    /// The word for it in text and JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Registers => "registers",
            Self::Sframe => "sframe",
            Self::Orc => "orc",
            Self::Cfi => "cfi",
            Self::Fp => "fp",
            Self::Code => "code",
            Self::Signal => "signal",
            Self::Other => "other",
        }
    }
}

impl From<Origin> for FoundBy {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Registers => Self::Registers,
            Origin::Table => Self::Sframe,
            Origin::CallFrames => Self::Cfi,
            Origin::FramePointer => Self::Fp,
            Origin::Instructions => Self::Code,
            Origin::SignalContext => Self::Signal,
            _ => Self::Other,
        }
    }
}

impl Frame {
    /// Names the frames of a stack by the modules that `find` has at addresses. Each comes with what is wrong with
    /// the module's file.
    #[doc(hidden)]
    pub fn of_stack<'m>(
        frames: &[WalkedFrame],
        find: impl Fn(u64) -> Option<&'m Module>,
    ) -> impl Iterator<Item = (Self, Option<String>)> {
        // A handler returns to a trampoline, whose caller is where the CPU was, and not where a call returns to.
        let callers = frames.iter().skip(1).map(Some).chain([None]);
        let is_interrupted = |frame: &WalkedFrame| frame.pc.is_exact();
        let each = frames.iter().zip(callers);
        each.map(move |(frame, caller)| Self::new(frame, caller.is_some_and(is_interrupted), &find))
    }

    fn new<'m>(
        frame: &WalkedFrame,
        is_trampoline: bool,
        find: impl Fn(u64) -> Option<&'m Module>,
    ) -> (Self, Option<String>) {
        let mut named = Self {
            pc: frame.pc.addr().get(),
            sp: frame.sp,
            exact: frame.pc.is_exact(),
            found_by: frame.provenance.origin().into(),
            after_failure: frame.provenance.is_after_failure(),
            after_gap: frame.provenance.is_after_gap(),
            fp_assumed: frame.provenance.is_fp_assumed(),
            symbol: Symbol::default(),
            interpreted: Vec::new(),
        };
        // A handler returns to the first byte of its trampoline, which was not
        // called.
        let at_pc = || if is_trampoline { find(named.pc) } else { None };
        let Some(module) = find(named.lookup()).or_else(at_pc) else {
            return (named, None);
        };
        let (pc, lookup) = (named.pc, named.lookup());
        let trouble = named.symbol.name(module, pc, lookup, is_trampoline).err();
        (named, trouble)
    }

    /// The address to ask a table or the symbols for: a return address may be
    /// that of the next function already.
    #[must_use]
    pub const fn lookup(&self) -> u64 {
        if self.exact { self.pc } else { self.pc.wrapping_sub(1) }
    }
}

//! The kinds of functions that a made-up program has.

use unwind_core::{CfaRule, RegRule, Row};

/// A function, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Keeps a frame pointer.
    Frame,
    /// Has no frame pointer, and leaves its caller's in the register.
    Frameless,
    /// Saves the register, and has a pointer into an outer frame in it.
    Clobbers,
    /// The same three without a table.
    JitFrame,
    JitFrameless,
    JitClobbers,
    /// The kernel's trampoline, between a handler and what the signal interrupted.
    Signal,
    /// Calls none, and keeps the register below the stack pointer.
    Leaf,
    /// At the `ret` after `pop rbp`: the row has not changed since before that.
    AtReturn,
    JitAtReturn,
    /// Before `push rbp`, and after it.
    AtEntry,
    AfterPush,
    JitAtEntry,
    JitAfterPush,
    /// In front of, and after, the push of a linkage table's entry.
    Linkage,
    LinkagePushed,
    JitLinkage,
    /// Without a table or frame pointer, at a `push rbp` in the middle, where a function
    /// might start, with an outer return address on top of the stack.
    JitLooksLikeEntry,
    /// The same at a `sub rsp`.
    JitLooksLikeLeafEntry,
    /// The same at an `endbr64` that a jump leads to.
    JitLandingPad,
}

/// The kinds that may call another, and the trampoline.
pub(crate) const CALLERS: &[Kind] = &[
    Kind::Frame,
    Kind::Frameless,
    Kind::Clobbers,
    Kind::JitFrame,
    Kind::JitFrameless,
    Kind::JitClobbers,
    Kind::Signal,
];

/// The kinds that may have been stopped.
pub(crate) const STOPPED: &[Kind] = &[
    Kind::Frame,
    Kind::Frameless,
    Kind::Clobbers,
    Kind::JitFrame,
    Kind::JitFrameless,
    Kind::JitClobbers,
    Kind::Leaf,
    Kind::AtReturn,
    Kind::JitAtReturn,
    Kind::AtEntry,
    Kind::AfterPush,
    Kind::JitAtEntry,
    Kind::JitAfterPush,
    Kind::Linkage,
    Kind::LinkagePushed,
    Kind::JitLinkage,
    Kind::JitLooksLikeEntry,
    Kind::JitLooksLikeLeafEntry,
    Kind::JitLandingPad,
];

/// What a function has done to the stack and the register since it was called.
pub(crate) struct Frame {
    /// Slots that it has taken below its return address, but for the saved register.
    pub(crate) slots: u64,
    /// Whether the register was pushed, just below the return address.
    pub(crate) is_fp_pushed: bool,
    pub(crate) fp: Fp,
}

/// What the register holds.
pub(crate) enum Fp {
    /// The caller's value.
    Callers,
    /// The address where that was pushed.
    Own,
    /// A pointer to the slot below an outer return address.
    Stray,
}

impl Kind {
    /// Whether the program has a table for it. The trampoline is known without.
    pub(crate) const fn has_table(self) -> bool {
        matches!(
            self,
            Self::Frame
                | Self::Frameless
                | Self::Clobbers
                | Self::Signal
                | Self::Leaf
                | Self::AtReturn
                | Self::AtEntry
                | Self::AfterPush
                | Self::Linkage
                | Self::LinkagePushed
        )
    }

    pub(crate) fn frame(self) -> Frame {
        let frame = |slots, is_fp_pushed, fp| Frame { slots, is_fp_pushed, fp };
        match self {
            Self::Frame | Self::JitFrame => frame(4, true, Fp::Own),
            Self::Frameless | Self::JitFrameless => frame(3, false, Fp::Callers),
            Self::Clobbers | Self::JitClobbers => frame(2, true, Fp::Stray),
            Self::Leaf => frame(0, false, Fp::Stray),
            Self::AfterPush | Self::JitAfterPush => frame(0, true, Fp::Callers),
            Self::LinkagePushed => frame(1, false, Fp::Callers),
            Self::JitLooksLikeEntry | Self::JitLooksLikeLeafEntry | Self::JitLandingPad => {
                frame(3, false, Fp::Callers)
            }
            _ => frame(0, false, Fp::Callers),
        }
    }

    /// The row of its table.
    pub(crate) fn row(self) -> Option<Row> {
        let saved = RegRule::Offset(-16);
        let sp = |offset, fp| Some(Row::new(CfaRule::sp(offset), RegRule::Offset(-8), fp));
        match self {
            Self::Frame => Some(Row::new(CfaRule::fp(16), RegRule::Offset(-8), saved)),
            Self::Frameless => sp(32, RegRule::SameValue),
            Self::Clobbers => sp(32, saved),
            Self::Leaf | Self::AtReturn => sp(8, saved),
            Self::AtEntry | Self::Linkage => sp(8, RegRule::SameValue),
            Self::AfterPush => sp(16, saved),
            Self::LinkagePushed => sp(16, RegRule::SameValue),
            _ => None,
        }
    }

    /// How many bytes of code it has.
    pub(crate) fn code_len(self) -> u64 {
        let (code, _) = self.code(true);
        u64::try_from(code.len()).unwrap()
    }

    /// Its code, and where in it the pc is: the instruction that it was stopped at, or the
    /// one after its call.
    pub(crate) const fn code(self, is_stopped: bool) -> (&'static [u8], u64) {
        match self {
            // push rbp; mov rbp, rsp; sub rsp, 32; call; nop; leave; ret.
            Self::Frame | Self::JitFrame => (
                &[
                    0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0xe8, 0, 0, 0, 0, 0x90, 0x89,
                    0xd8, 0xc9, 0xc3,
                ],
                if is_stopped { 8 } else { 13 },
            ),
            // sub rsp, 24; call; mov eax, ebx; add rsp, 24; ret.
            Self::Frameless | Self::JitFrameless => (
                &[
                    0x48, 0x83, 0xec, 0x18, 0xe8, 0, 0, 0, 0, 0x89, 0xd8, 0x48, 0x83, 0xc4, 0x18,
                    0xc3,
                ],
                if is_stopped { 4 } else { 9 },
            ),
            // push rbp; sub rsp, 16; call; mov eax, ebx; add rsp, 16; pop rbp; ret.
            Self::Clobbers | Self::JitClobbers => (
                &[
                    0x55, 0x48, 0x83, 0xec, 0x10, 0xe8, 0, 0, 0, 0, 0x89, 0xd8, 0x48, 0x83, 0xc4,
                    0x10, 0x5d, 0xc3,
                ],
                if is_stopped { 5 } else { 10 },
            ),
            // mov rax, 15; syscall.
            Self::Signal => (&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], 0),
            // mov [rsp-8], rbp; lea rbp, [rdi]; mov eax, ebx.
            Self::Leaf => (&[0x48, 0x89, 0x6c, 0x24, 0xf8, 0x48, 0x8d, 0x2f, 0x89, 0xd8], 8),
            // pop rbp; ret.
            Self::AtReturn | Self::JitAtReturn => (&[0x5d, 0xc3], 1),
            // push rbp; mov rbp, rsp.
            Self::AtEntry | Self::JitAtEntry => (&[0x55, 0x48, 0x89, 0xe5], 0),
            Self::AfterPush | Self::JitAfterPush => (&[0x55, 0x48, 0x89, 0xe5], 1),
            // jmp [slot]; push 7; jmp.
            Self::Linkage | Self::LinkagePushed | Self::JitLinkage => (
                &[0xff, 0x25, 0, 0x10, 0, 0, 0x68, 7, 0, 0, 0, 0xe9, 0, 0, 0, 0],
                if matches!(self, Self::LinkagePushed) { 11 } else { 0 },
            ),
            // sub rsp, 24; 12 bytes of nop; push rbp.
            Self::JitLooksLikeEntry => (
                &[
                    0x48, 0x83, 0xec, 0x18, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
                    0x90, 0x90, 0x90, 0x55, 0x53,
                ],
                16,
            ),
            Self::JitLooksLikeLeafEntry => (
                &[
                    0x48, 0x83, 0xec, 0x18, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
                    0x90, 0x90, 0x90, 0x48, 0x83, 0xec, 0x08,
                ],
                16,
            ),
            // sub rsp, 24; jmp; endbr64.
            Self::JitLandingPad => {
                (&[0x48, 0x83, 0xec, 0x18, 0xff, 0xe0, 0xf3, 0x0f, 0x1e, 0xfa, 0x89, 0xd8], 6)
            }
        }
    }
}

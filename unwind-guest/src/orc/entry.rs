//! One entry of a table.

/// Which bits of an entry mean what.
///
/// ```text
/// bytes 0-1   offset of the stack pointer's rule, signed
/// bytes 2-3   offset of the frame pointer's rule, signed
/// bits  0-3   of bytes 4-5: what the stack pointer is found from
/// bits  4-7   what the frame pointer is found from
/// bits  8-    kind, and:      kind    signal   end
///             Linux4_14       8-9     -        10
///             Linux6_3        8-9     10       11
///             Linux6_4        8-10    11       (a kind)
///             Linux7_2        8-10    11       (a kind), other numbers of registers
/// ```
///
/// Distributions' kernels may have the layout of a later version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OrcLayout {
    /// Of Linux 4.14 to 6.2.
    Linux4_14,
    /// Of Linux 6.3.
    Linux6_3,
    /// Of Linux 6.4 and later: 6.12 has it.
    Linux6_4,
    /// Of versions after 6.12: 7.2 has it.
    Linux7_2,
}

impl OrcLayout {
    /// How many bytes an entry has.
    pub const ENTRY_SIZE: usize = 6;

    /// The layout that a kernel names in its section `.orc_header`, which there is since Linux 6.4;
    /// `None` if that is another one.
    #[must_use]
    pub const fn of_header(header: &[u8; 20]) -> Option<Self> {
        match header {
            b"\xfe\x5d\x32\xbf\x58\x1b\xd6\x3b\x2c\xa9\xa5\xc6\x5b\xa5\xa6\x25\xea\xb3\xfe\x24" => {
                Some(Self::Linux6_4)
            }
            b"\x13\x7c\x36\xad\x76\x27\xc4\xdd\x55\x93\x21\x76\xbb\x0e\xcd\xbd\x50\x41\xfc\x82" => {
                Some(Self::Linux7_2)
            }
            _ => None,
        }
    }

    /// The one layout in which all of these entries are such as Linux's tools make, for tables without a
    /// header; `None` if there is none, or more than one: those before Linux 6.4 differ in code that saves registers
    /// alone, so that of the kernel's entry has to be among them. No more than 65,536 are looked at.
    #[must_use]
    pub fn detect(entries: impl IntoIterator<Item = [u8; Self::ENTRY_SIZE]>) -> Option<Self> {
        const ALL: [OrcLayout; 4] =
            [OrcLayout::Linux4_14, OrcLayout::Linux6_3, OrcLayout::Linux6_4, OrcLayout::Linux7_2];
        let mut fits = ALL.map(Fit::new);
        for bytes in entries.into_iter().take(1 << 16) {
            for fit in &mut fits {
                fit.look_at(bytes);
            }
            if !fits.iter().any(|fit| fit.is_possible) {
                break;
            }
        }
        let mut left = fits.into_iter().filter(|fit| fit.is_possible);
        match (left.next(), left.next()) {
            (Some(only), None) => Some(only.layout),
            _ => None,
        }
    }

    /// Whether all of these entries are such as Linux's tools make in this layout.
    pub(crate) fn fits(self, entries: impl IntoIterator<Item = [u8; Self::ENTRY_SIZE]>) -> bool {
        let mut fit = Fit::new(self);
        entries.into_iter().all(|bytes| {
            fit.look_at(bytes);
            fit.is_possible
        })
    }
}

/// Whether entries may be of a layout.
struct Fit {
    layout: OrcLayout,
    is_possible: bool,
}

impl Fit {
    const fn new(layout: OrcLayout) -> Self {
        Self { layout, is_possible: true }
    }

    fn look_at(&mut self, bytes: [u8; OrcLayout::ENTRY_SIZE]) {
        let entry = OrcEntry::decode(bytes, self.layout);
        let [.., rest] = bytes;
        let (unused, end) = match self.layout {
            OrcLayout::Linux4_14 => (0xf8, 4),
            OrcLayout::Linux6_3 => (0xf0, 8),
            _ => (0xf0, 0),
        };
        let is_no_end = rest & end == 0 || entry.kind == OrcKind::EndOfStack;
        self.is_possible &= rest & unused == 0 && is_no_end && entry.is_usual(self.layout);
    }
}

/// What kind of frame an entry is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrcKind {
    /// None that is known: no code, or code that keeps no order on the stack.
    Undefined,
    /// The outermost one of the kernel.
    EndOfStack,
    /// An ordinary one: the return address is just below the CFA.
    Call,
    /// Code that has saved all registers (`struct pt_regs`).
    Registers,
    /// Code that has on its stack what the CPU has saved at an interrupt, and nothing else.
    PartialRegisters,
    /// A number without a meaning.
    Unknown(u8),
}

/// What a rule starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrcBase {
    /// Nothing: of the frame pointer, that it is unchanged.
    Undefined,
    /// The stack pointer of the caller.
    PreviousSp,
    /// `rax`.
    Ax,
    /// `rdx`.
    Dx,
    /// `rdi`.
    Di,
    /// `rbp`.
    Bp,
    /// `rsp`.
    Sp,
    /// `r10`.
    R10,
    /// `r13`.
    R13,
    /// The word at `rbp` plus the offset.
    BpIndirect,
    /// The word at `rsp`, to which the offset is added.
    SpIndirect,
    /// A number without a meaning.
    Unknown(u8),
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OrcEntry {
    /// The kind of frame.
    pub kind: OrcKind,
    /// What the caller's stack pointer is found from, or where the saved registers are.
    pub sp: OrcBase,
    /// How many bytes are added to that.
    pub sp_offset: i16,
    /// What the caller's frame pointer is found from.
    pub bp: OrcBase,
    /// How many bytes from that it is saved.
    pub bp_offset: i16,
    /// Whether the frame's caller was interrupted, and has not called.
    pub is_signal: bool,
}

impl OrcEntry {
    /// Reads an entry. All bytes are one.
    #[must_use]
    pub const fn decode(bytes: [u8; OrcLayout::ENTRY_SIZE], layout: OrcLayout) -> Self {
        let [sp_low, sp_high, bp_low, bp_high, bases, rest] = bytes;
        let sp = OrcBase::new(bases & 0xf, layout);
        let is_code = !matches!(sp, OrcBase::Undefined);
        let (kind, is_signal) = match layout {
            OrcLayout::Linux4_14 => {
                let kind = OrcKind::before_6_4(rest & 3, is_code, rest & 4 != 0);
                // All that lead through saved registers do.
                (kind, matches!(kind, OrcKind::Registers | OrcKind::PartialRegisters))
            }
            OrcLayout::Linux6_3 => {
                (OrcKind::before_6_4(rest & 3, is_code, rest & 8 != 0), rest & 4 != 0)
            }
            OrcLayout::Linux6_4 | OrcLayout::Linux7_2 => {
                let kind = match rest & 7 {
                    0 => OrcKind::Undefined,
                    1 => OrcKind::EndOfStack,
                    2 => OrcKind::Call,
                    3 => OrcKind::Registers,
                    4 => OrcKind::PartialRegisters,
                    other => OrcKind::Unknown(other),
                };
                (kind, rest & 8 != 0)
            }
        };
        Self {
            kind,
            sp,
            sp_offset: i16::from_le_bytes([sp_low, sp_high]),
            bp: OrcBase::new(bases >> 4, layout),
            bp_offset: i16::from_le_bytes([bp_low, bp_high]),
            is_signal,
        }
    }

    /// Whether Linux's tools make such entries in that layout.
    const fn is_usual(&self, layout: OrcLayout) -> bool {
        use OrcBase::{Bp, BpIndirect, Di, Dx, PreviousSp, R10, R13, Sp, SpIndirect, Undefined};
        let is_bp = matches!(self.bp, Undefined | PreviousSp | Bp);
        let has_header = !matches!(layout, OrcLayout::Linux4_14 | OrcLayout::Linux6_3);
        is_bp
            && match self.kind {
                OrcKind::Unknown(_) => false,
                OrcKind::Undefined | OrcKind::EndOfStack => {
                    let is_empty = self.sp_offset == 0 && self.bp_offset == 0;
                    matches!(self.sp, Undefined) && (is_empty || !has_header)
                }
                OrcKind::Call => matches!(self.sp, Sp | Bp | R10 | R13 | BpIndirect | SpIndirect),
                OrcKind::Registers => matches!(self.sp, Sp | Bp | Di | Dx) && self.is_signal,
                OrcKind::PartialRegisters => matches!(self.sp, Sp | Bp | Di | Dx),
            }
    }
}

impl OrcKind {
    /// Where the end is a bit, and what has no base no kind.
    const fn before_6_4(number: u8, is_code: bool, is_end: bool) -> Self {
        match (is_code, is_end, number) {
            (false, true, _) => Self::EndOfStack,
            (false, false, _) => Self::Undefined,
            (true, _, 0) => Self::Call,
            (true, _, 1) => Self::Registers,
            (true, _, 2) => Self::PartialRegisters,
            (true, _, other) => Self::Unknown(other),
        }
    }
}

impl OrcBase {
    const fn new(number: u8, layout: OrcLayout) -> Self {
        let is_new = matches!(layout, OrcLayout::Linux7_2);
        match (number, is_new) {
            (0, _) => Self::Undefined,
            (1, false) | (8, true) => Self::PreviousSp,
            (1, true) => Self::Ax,
            (2, _) => Self::Dx,
            (3, false) | (5, true) => Self::Di,
            (4, _) => Self::Bp,
            (5, false) | (3, true) => Self::Sp,
            (6, _) => Self::R10,
            (7, _) => Self::R13,
            (8, false) | (10, true) => Self::BpIndirect,
            (9, _) => Self::SpIndirect,
            (other, _) => Self::Unknown(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn entry(kind: OrcKind, is_signal: bool) -> OrcEntry {
        let (sp, bp) = (OrcBase::Sp, OrcBase::PreviousSp);
        OrcEntry { kind, sp, sp_offset: 0x18, bp, bp_offset: -16, is_signal }
    }

    #[test]
    fn each_layout_has_its_bits() {
        use OrcKind::{Call, PartialRegisters, Registers};
        use OrcLayout::{Linux4_14, Linux6_3, Linux6_4};
        for (rest, layout, kind, is_signal) in [
            (0, Linux4_14, Call, false),
            (1, Linux4_14, Registers, true),
            (2, Linux4_14, PartialRegisters, true),
            (4, Linux6_3, Call, true),
            (1, Linux6_3, Registers, false),
            (5, Linux6_3, Registers, true),
            (2, Linux6_4, Call, false),
            (10, Linux6_4, Call, true),
            (3, Linux6_4, Registers, false),
            (11, Linux6_4, Registers, true),
            (12, Linux6_4, PartialRegisters, true),
            (7, Linux6_4, OrcKind::Unknown(7), false),
        ] {
            let bytes = [0x18, 0, 0xf0, 0xff, 0x15, rest];
            assert_eq!(
                OrcEntry::decode(bytes, layout),
                entry(kind, is_signal),
                "{rest} {layout:?}"
            );
        }
    }

    #[test]
    fn an_entry_without_a_base_is_no_code_or_the_end() {
        for (rest, layout, kind) in [
            (0, OrcLayout::Linux4_14, OrcKind::Undefined),
            (4, OrcLayout::Linux4_14, OrcKind::EndOfStack),
            (4, OrcLayout::Linux6_3, OrcKind::Undefined),
            (8, OrcLayout::Linux6_3, OrcKind::EndOfStack),
            (0, OrcLayout::Linux6_4, OrcKind::Undefined),
            (1, OrcLayout::Linux6_4, OrcKind::EndOfStack),
        ] {
            assert_eq!(OrcEntry::decode([0, 0, 0, 0, 0, rest], layout).kind, kind);
        }
    }

    #[test]
    fn a_layout_is_told_only_where_one_alone_fits() {
        for (entries, layout) in [
            (&[[8, 0, 0, 0, 5, 2], [0, 0, 0, 0, 5, 11]][..], Some(OrcLayout::Linux6_4)),
            (&[[8, 0, 0, 0, 3, 2], [0, 0, 0, 0, 3, 11]], Some(OrcLayout::Linux7_2)),
            (&[[8, 0, 0, 0, 5, 0], [0, 0, 0, 0, 5, 1]], Some(OrcLayout::Linux4_14)),
            (&[[8, 0, 0, 0, 5, 0], [0, 0, 0, 0, 5, 5]], Some(OrcLayout::Linux6_3)),
            (&[[8, 0, 0, 0, 5, 2], [0, 0, 0, 0, 6, 2]], Some(OrcLayout::Linux6_4)),
            (&[[8, 0, 0, 0, 5, 2], [0; 6]], None),
            (&[[8, 0, 0, 0, 5, 0], [0; 6]], None),
            (&[[0; 6]; 3], None),
            (&[[0, 0, 0, 0, 5, 11], [8, 0, 0, 0, 0xf5, 2]], None),
            (&[], None),
        ] {
            assert_eq!(OrcLayout::detect(entries.iter().copied()), layout, "{entries:x?}");
        }
    }

    #[test]
    fn registers_have_the_numbers_of_the_layout() {
        for (number, before, since) in [
            (1, OrcBase::PreviousSp, OrcBase::Ax),
            (3, OrcBase::Di, OrcBase::Sp),
            (5, OrcBase::Sp, OrcBase::Di),
            (8, OrcBase::BpIndirect, OrcBase::PreviousSp),
            (10, OrcBase::Unknown(10), OrcBase::BpIndirect),
        ] {
            let base = |layout| OrcEntry::decode([0, 0, 0, 0, number, 2], layout).sp;
            assert_eq!(base(OrcLayout::Linux6_4), before);
            assert_eq!(base(OrcLayout::Linux7_2), since);
        }
    }
}

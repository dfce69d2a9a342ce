//! The rules that nearly all places of code have, and the instructions that they come from.
//!
//! They take two words where [`Rules`] take ten, and so do the states that are remembered.

use core::num::NonZero;

use gimli::RunTimeEndian;
use unwind_core::{BaseReg, CfaRule, RegRule, Row};

use crate::{
    abi::{RegisterNumbers, bit_of},
    entry::{Cie, Entries},
    rules::{Cfa, Reg, Rules},
    work_counter,
};

/// The rules of the CFA and of the register that is [kept](RegisterNumbers::kept): a register and an offset,
/// and where it is saved. All others are as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainRules {
    register: u8,
    offset: u32,
    /// Less the CFA, in bytes; `None` if it is not saved.
    kept: Option<NonZero<i32>>,
}

impl PlainRules {
    /// Those of a CIE with the instructions that nearly all have, and where the return address is saved, less
    /// the CFA: `DW_CFA_def_cfa`, `DW_CFA_offset` of the return address, and padding.
    #[inline]
    pub(crate) fn of_cie(cie: &Cie<'_>, registers: &RegisterNumbers) -> Option<(Self, i64)> {
        let [
            0x0c,
            register @ 0..0x80,
            offset @ 0..0x80,
            column @ 0x83..0xc0,
            factor @ 0..0x80,
            padding @ ..,
        ] = cie.instructions.slice()
        else {
            return None;
        };
        let column = column & 0x3f;
        // More padding than to a word is run.
        if u64::from(column) != cie.ra
            || registers.kept == column
            || padding.len() > 8
            || padding.iter().any(|byte| *byte != 0)
        {
            return None;
        }
        let rules = Self { register: *register, offset: (*offset).into(), kept: None };
        Some((rules, i64::from(*factor).wrapping_mul(cie.data_align)))
    }

    /// The rules of a place that are these, and that the return address is saved at `ra`.
    pub(crate) fn rules(self, ra: i64) -> Rules {
        let mut rules = Rules { ra: Reg::at_cfa(ra), ..Rules::UNSET };
        self.put(&mut rules);
        rules
    }

    /// The same as these, if they are such.
    #[inline]
    fn of(rules: &Rules) -> Option<Self> {
        let Cfa::Register(register, offset) = rules.cfa else { return None };
        let kept = match rules.kept {
            Reg::Unset => None,
            Reg::Rule(RegRule::Offset(offset)) => Some(NonZero::new(offset)?),
            _ => return None,
        };
        let (register, offset) = (register.try_into().ok()?, offset.try_into().ok()?);
        Some(Self { register, offset, kept })
    }

    /// The rules with these in place of their own.
    #[inline]
    fn put(self, rules: &mut Rules) {
        rules.cfa = Cfa::Register(self.register.into(), self.offset.into());
        let saved = |offset: NonZero<i32>| Reg::Rule(RegRule::Offset(offset.get()));
        rules.kept = self.kept.map_or(Reg::Unset, saved);
    }

    /// The row that they are where the return address is saved at `ra` and the frame pointer is kept, if the
    /// CFA is found from that or from the stack pointer.
    #[inline]
    pub(crate) fn row(self, ra: i64, registers: &RegisterNumbers) -> Option<Row> {
        let base = match self.register {
            register if register == registers.sp => BaseReg::Sp,
            register if register == registers.fp => BaseReg::Fp,
            _ => return None,
        };
        let cfa = CfaRule::Register(base, self.offset.try_into().ok()?);
        let ra = RegRule::Offset(ra.try_into().ok()?);
        Some(match self.kept {
            None => Row::new(cfa, ra, RegRule::SameValue),
            Some(fp) => Row::new(cfa, ra, RegRule::Offset(fp.get())),
        })
    }
}

/// What instructions are read by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    code: u64,
    data: i64,
    kept: u8,
    /// The register that is kept is not saved by the CIE's rules.
    restores_kept: bool,
    /// The registers, a bit each, that no rule is taken note of.
    others: u64,
    is_little: bool,
}

/// The most of a CIE's unit of code and of the place that is asked for: with more, sums are watched.
const MOST_UNIT: u64 = 1 << 16;
const MOST_TARGET: u64 = 1 << 40;

impl Units {
    /// Those of an entry, if the place `target` bytes after its start is reached without overflow.
    #[inline(always)]
    pub(crate) fn new(
        entries: &Entries<'_>,
        cie: &Cie<'_>,
        restores_kept: bool,
        target: u64,
    ) -> Option<Self> {
        let RegisterNumbers { kept, noted, .. } = entries.registers;
        let noted = noted | bit_of(kept) | u8::try_from(cie.ra).map_or(0, bit_of);
        let Cie { code_align: code, data_align: data, .. } = *cie;
        (code <= MOST_UNIT && target <= MOST_TARGET).then_some(Self {
            code,
            data,
            kept,
            restores_kept,
            others: !noted,
            is_little: entries.abi().endian() == RunTimeEndian::Little,
        })
    }
}

/// A run of the instructions that come most often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainRun<'a> {
    pub(crate) rules: PlainRules,
    /// The state that is remembered, one at a time.
    pub(crate) remembered: Option<PlainRules>,
    /// The instructions from the next one on.
    pub(crate) rest: &'a [u8],
    /// How far after the start of the code the rules begin to hold, in bytes.
    pub(crate) at: u64,
}

/// How many of the last bytes are not run as the first of an instruction.
pub(crate) const AHEAD: usize = 2;

impl<'a> PlainRun<'a> {
    /// At the start of the code of an FDE with these instructions.
    #[inline]
    pub(crate) const fn new(rules: PlainRules, rest: &'a [u8]) -> Self {
        Self { rules, remembered: None, rest, at: 0 }
    }

    /// The same in the middle, for a run by all rules.
    #[inline]
    pub(crate) fn of(rules: &Rules, rest: &'a [u8], at: u64) -> Option<Self> {
        Some(Self { rules: PlainRules::of(rules)?, remembered: None, rest, at })
    }

    /// Takes the rules, and the state that is remembered, into those of a run by all rules.
    #[inline]
    pub(crate) fn put(self, rules: &mut Rules, mut remember: impl FnMut(&Rules) -> Option<()>) {
        if let Some(state) = self.remembered {
            state.put(rules);
            // There is room: `may_remember`.
            _ = remember(rules);
        }
        self.rules.put(rules);
    }

    /// Runs instructions up to one of another kind, past the place `target` bytes after the start of the code
    /// (true), or until less than three bytes are left. It remembers a state if `may_remember`.
    // What the loop needs is in registers.
    #[inline(never)]
    pub(crate) fn run(&mut self, target: u64, units: &Units, may_remember: bool) -> bool {
        let Units { code, data, kept: kept_register, restores_kept, others, is_little } = *units;
        let is_other = |register: u8| others.wrapping_shr(register.into()) & 1 != 0;
        let Self { rules: PlainRules { mut register, mut offset, mut kept }, .. } = *self;
        let Self { mut rest, mut at, .. } = *self;
        let is_past = loop {
            // No instruction is longer, so that one check of the length is enough.
            let [byte, second, third, ..] = *rest else { break false };
            let after = |len: usize| rest.get(len..).unwrap_or_default();
            let advanced = |by: u16| at.wrapping_add(u64::from(by).wrapping_mul(code));
            rest = match (byte, second, third) {
                // DW_CFA_advance_loc
                (0x40..0x80, ..) => {
                    let next = advanced((byte & 0x3f).into());
                    if next > target {
                        rest = after(1);
                        break true;
                    }
                    at = next;
                    // DW_CFA_def_cfa_offset follows most often, with one byte.
                    if u16::from_le_bytes([second, third]) & 0x80ff == 0x0e {
                        work_counter::steps(1);
                        offset = third.into();
                        after(3)
                    } else {
                        after(1)
                    }
                }
                // DW_CFA_offset
                (0x80..0xc0, 0..0x80, _) if is_other(byte & 0x3f) => after(2),
                (0x80..0xc0, 1..0x80, _) if byte & 0x3f == kept_register => {
                    let saved = i64::from(second).wrapping_mul(data);
                    let Some(saved) = i32::try_from(saved).ok().and_then(NonZero::new) else {
                        break false;
                    };
                    kept = Some(saved);
                    after(2)
                }
                // DW_CFA_def_cfa_offset
                (0x0e, 0..0x80, _) => {
                    offset = second.into();
                    after(2)
                }
                (0x0e, _, 0..0x80) => {
                    offset = u32::from(second & 0x7f) | u32::from(third).wrapping_shl(7);
                    after(3)
                }
                // DW_CFA_restore
                (0xc0.., ..) if is_other(byte & 0x3f) => after(1),
                (0xc0.., ..) if byte & 0x3f == kept_register && restores_kept => {
                    kept = None;
                    after(1)
                }
                // DW_CFA_advance_loc1
                (0x02, ..) => {
                    let next = advanced(second.into());
                    if next > target {
                        rest = after(2);
                        break true;
                    }
                    at = next;
                    after(2)
                }
                // DW_CFA_advance_loc2 of little-endian code
                (0x03, ..) if is_little => {
                    let next = advanced(u16::from_le_bytes([second, third]));
                    if next > target {
                        rest = after(3);
                        break true;
                    }
                    at = next;
                    after(3)
                }
                // DW_CFA_remember_state
                (0x0a, ..) if may_remember && self.remembered.is_none() => {
                    self.remembered = Some(PlainRules { register, offset, kept });
                    after(1)
                }
                // DW_CFA_restore_state
                (0x0b, ..) => {
                    let Some(state) = self.remembered.take() else { break false };
                    PlainRules { register, offset, kept } = state;
                    after(1)
                }
                // DW_CFA_def_cfa
                (0x0c, 0..0x80, 0..0x80) => {
                    (register, offset) = (second, third.into());
                    after(3)
                }
                // DW_CFA_def_cfa_register
                (0x0d, 0..0x80, _) => {
                    register = second;
                    after(2)
                }
                // DW_CFA_GNU_args_size
                (0x2e, 0..0x80, _) => after(2),
                // DW_CFA_nop, of which there are more
                (0, ..) => {
                    let nops = rest.iter().take_while(|byte| **byte == 0).count();
                    work_counter::steps(nops);
                    after(nops.min(rest.len().wrapping_sub(AHEAD)))
                }
                _ => break false,
            };
            work_counter::steps(1);
        };
        self.rules = PlainRules { register, offset, kept };
        (self.rest, self.at) = (rest, at);
        is_past
    }
}

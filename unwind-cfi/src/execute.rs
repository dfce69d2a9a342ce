//! The instructions of an entry, run.
//!
//! They are not run by gimli's rows: of some 20 registers in a row of gimli's three matter, one bad CIE
//! ends its iteration, and it has no letter for the key that signs return addresses. gimli reads the
//! numbers and the operations of expressions, and tests compare its rows with these: two independent
//! readers.

use gimli::{DwCfa, Reader as _, constants};
use unwind_core::RegRule;

use crate::{
    entry::{Body, Cie, Entries},
    error::CfiError,
    reader::Reader,
    rules::{Cfa, Leaving, Reg, Rules, Signed},
    states::States,
    work_counter,
};

/// `DW_CFA_AARCH64_negate_ra_state_with_pc`.
const NEGATE_RA_STATE_WITH_PC: u8 = 0x2c;

/// Why a run ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The entry ends inside an instruction.
    Truncated,
    /// An instruction that is not known.
    Instruction(u8),
    /// An instruction in a wrong place.
    Context(u8),
    /// An address that cannot be read.
    Pointer(u8),
    LocationBack,
    NothingRemembered,
    TooManyRemembered,
}

const _: () = assert!(size_of::<Result<Option<u64>, Stop>>() <= 16, "returned in registers");

/// What of the rules has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Changed {
    Nothing,
    /// The CFA at most, which is by far what changes most.
    Cfa,
    All,
}

/// A run of the instructions of one entry.
#[derive(Debug)]
pub(crate) struct Run<'r, 's, 'a> {
    pub(crate) entries: &'r Entries<'a>,
    pub(crate) cie: &'r Cie<'r>,
    /// The rules that are restored to: `None` in a CIE, which sets them.
    pub(crate) initial: Option<&'r Rules>,
    pub(crate) remembered: &'r mut States<'s>,
    pub(crate) rules: Rules,
    /// What of `rules` may have changed since the last look at them.
    pub(crate) changed: Changed,
    pub(crate) instructions: Reader<'a>,
    /// The address that the entry's code starts at.
    pub(crate) start: u64,
    /// How far after that the rules begin to hold, in bytes.
    pub(crate) at: u64,
}

impl<'r, 's, 'a> Run<'r, 's, 'a> {
    /// At the start of an FDE that starts from these rules of its CIE.
    #[inline(always)]
    pub(crate) const fn new(
        entries: &'r Entries<'a>,
        cie: &'r Cie<'r>,
        initial: &'r Rules,
        remembered: &'r mut States<'s>,
        body: &Body<'a>,
    ) -> Self {
        Self {
            entries,
            cie,
            initial: Some(initial),
            remembered,
            rules: *initial,
            changed: Changed::All,
            instructions: body.instructions,
            start: body.start,
            at: 0,
        }
    }
}

impl<'a> Run<'_, '_, 'a> {
    /// Runs up to the next change of the location. `Some` is the location that
    /// the rules hold up to, in bytes from the start; `None` says up to the end.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<u64>, Stop> {
        while let Ok(byte) = self.instructions.read_u8() {
            if let Some(end) = self.instruction(byte)? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// Runs up to where the rules hold for the place `target` bytes after the start. True
    /// says that the instructions reach it, false that they end before it.
    ///
    /// An error comes with the instructions from the one on that it is about.
    #[inline(never)]
    pub(crate) fn run_to(&mut self, target: u64) -> Result<bool, (Stop, Reader<'a>)> {
        loop {
            if !self.run_frequent(target) {
                let before = self.instructions;
                let Ok(byte) = self.instructions.read_u8() else { return Ok(false) };
                match self.instruction(byte) {
                    Ok(Some(next)) if next > target => {}
                    Ok(next) => {
                        self.at = next.unwrap_or(self.at);
                        continue;
                    }
                    Err(stop) => return Err((stop, before)),
                }
            }
            if self.rules.is_eh_return(&self.entries.registers) {
                self.look_ahead();
            }
            return Ok(true);
        }
    }

    /// Forgets that the function may return to where an exception is caught, if by the rules that come it
    /// returns to its caller first, in the order of addresses: here it is not on its way to a handler.
    #[cold]
    #[inline(never)]
    fn look_ahead(&mut self) {
        let rules = self.rules;
        let entries = self.entries;
        let leaving = |rules: &Rules| rules.leaving(&entries.registers);
        let mut is_last = false;
        let returns = loop {
            if is_last || leaving(&self.rules) == Some(Leaving::ToHandler) {
                break false;
            }
            is_last = !matches!(self.next(), Ok(Some(_)));
            if leaving(&self.rules) == Some(Leaving::ToCaller) {
                break true;
            }
        };
        self.rules = rules;
        if returns {
            self.rules.saved = 0;
        }
    }

    /// Runs the instruction that starts with `byte`, which was read. `Some` is the new
    /// location.
    ///
    /// Nothing has changed but what is read next if the entry ends inside it.
    #[inline(always)]
    pub(crate) fn instruction(&mut self, byte: u8) -> Result<Option<u64>, Stop> {
        work_counter::steps(1);
        // In the order of how often they come; a jump table is mispredicted
        // more often than these comparisons.
        let (high, operand) = (DwCfa(byte & 0xc0), byte & 0x3f);
        if high == constants::DW_CFA_advance_loc {
            return Ok(self.advance(operand.into()));
        } else if DwCfa(byte) == constants::DW_CFA_def_cfa_offset {
            let offset = self.uleb()?.cast_signed();
            self.set_cfa_offset(byte, offset)?;
        } else if high == constants::DW_CFA_offset {
            let offset = self.factored()?;
            if operand < 3 {
                self.save(operand.into(), true);
            }
            self.set(operand.into(), || Reg::at_cfa(offset));
        } else if high == constants::DW_CFA_restore {
            self.restore(byte, operand.into())?;
        } else {
            return self.extended(byte);
        }
        Ok(None)
    }

    /// An instruction with its operands after it.
    #[inline(never)]
    fn extended(&mut self, byte: u8) -> Result<Option<u64>, Stop> {
        match DwCfa(byte) {
            constants::DW_CFA_nop => {}
            constants::DW_CFA_advance_loc1 => {
                let delta = self.instructions.read_u8().map_err(|_| Stop::Truncated)?;
                return Ok(self.advance(delta.into()));
            }
            constants::DW_CFA_advance_loc2 => {
                let delta = self.instructions.read_u16().map_err(|_| Stop::Truncated)?;
                return Ok(self.advance(delta.into()));
            }
            constants::DW_CFA_advance_loc4 => {
                let delta = self.instructions.read_u32().map_err(|_| Stop::Truncated)?;
                return Ok(self.advance(delta.into()));
            }
            constants::DW_CFA_set_loc => return self.set_location(),
            constants::DW_CFA_def_cfa => {
                let (register, offset) = (self.number()?, self.number()?);
                self.set_cfa(Cfa::register(register, offset.cast_signed()));
            }
            constants::DW_CFA_def_cfa_sf => {
                let (register, offset) = (self.number()?, self.factored_signed()?);
                self.set_cfa(Cfa::register(register, offset));
            }
            constants::DW_CFA_def_cfa_register => {
                let register = self.number()?;
                let Cfa::Register(_, offset) = self.rules.cfa else {
                    return Err(Stop::Context(byte));
                };
                self.set_cfa(Cfa::register(register, offset));
            }
            constants::DW_CFA_def_cfa_offset_sf => {
                let offset = self.factored_signed()?;
                self.set_cfa_offset(byte, offset)?;
            }
            constants::DW_CFA_def_cfa_expression => self.expression_cfa()?,
            constants::DW_CFA_remember_state => self.remember()?,
            constants::DW_CFA_restore_state => {
                self.rules = *self.remembered.pop().ok_or(Stop::NothingRemembered)?;
                self.changed = Changed::All;
            }
            constants::DW_CFA_GNU_args_size => _ = self.number()?,
            constants::DW_CFA_AARCH64_negate_ra_state
                if self.entries.registers.sign_state.is_some() =>
            {
                self.negate(byte, Signed::Yes)?;
            }
            DwCfa(NEGATE_RA_STATE_WITH_PC) if self.entries.registers.sign_state.is_some() => {
                self.negate(byte, Signed::WithPc)?;
            }
            _ => self.register_rule(byte)?,
        }
        Ok(None)
    }

    /// An instruction whose first operand is a register.
    #[inline(never)]
    fn register_rule(&mut self, byte: u8) -> Result<(), Stop> {
        let known = matches!(
            DwCfa(byte),
            constants::DW_CFA_offset_extended
                | constants::DW_CFA_offset_extended_sf
                | constants::DW_CFA_val_offset
                | constants::DW_CFA_val_offset_sf
                | constants::DW_CFA_restore_extended
                | constants::DW_CFA_undefined
                | constants::DW_CFA_same_value
                | constants::DW_CFA_register
                | constants::DW_CFA_expression
                | constants::DW_CFA_val_expression
        );
        if !known {
            return Err(Stop::Instruction(byte));
        }
        let register = self.number()?;
        if register < 3 {
            self.save(register, DwCfa(byte) == constants::DW_CFA_expression);
        }
        let rule = match DwCfa(byte) {
            constants::DW_CFA_offset_extended => Reg::at_cfa(self.factored_number()?),
            constants::DW_CFA_offset_extended_sf => Reg::at_cfa(self.factored_signed()?),
            constants::DW_CFA_val_offset => Reg::cfa(self.factored_number()?),
            constants::DW_CFA_val_offset_sf => Reg::cfa(self.factored_signed()?),
            constants::DW_CFA_restore_extended => return self.restore(byte, register),
            constants::DW_CFA_undefined => Reg::Rule(RegRule::Undefined),
            constants::DW_CFA_same_value => Reg::Rule(RegRule::SameValue),
            constants::DW_CFA_register => {
                let source = self.number()?;
                Reg::register(source, &self.entries.registers)
            }
            _ => {
                let is_value = DwCfa(byte) == constants::DW_CFA_val_expression;
                return self.expression_rule(register, is_value);
            }
        };
        self.set(register, || rule);
        Ok(())
    }

    // Apart, so that the other rules do not take its stack.
    #[cold]
    #[inline(never)]
    fn expression_rule(&mut self, register: u64, is_value: bool) -> Result<(), Stop> {
        let (expression, at) = self.expression()?;
        let registers = &self.entries.registers;
        self.set(register, || Reg::from_expression(expression, at, is_value, registers));
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn expression_cfa(&mut self) -> Result<(), Stop> {
        let (expression, at) = self.expression()?;
        self.set_cfa(Cfa::from_expression(expression, at, &self.entries.registers));
        Ok(())
    }

    /// The new location, if it is another one.
    #[inline]
    fn advance(&self, delta: u64) -> Option<u64> {
        let bytes = delta.saturating_mul(self.cie.code_align);
        (bytes != 0).then(|| self.at.saturating_add(bytes))
    }

    #[cold]
    #[inline(never)]
    fn set_location(&mut self) -> Result<Option<u64>, Stop> {
        let encoding = self.cie.address_encoding;
        let address = self.entries.pointer(encoding, &mut self.instructions);
        let end = address.ok_or(Stop::Pointer(encoding.0))?.wrapping_sub(self.start);
        if end < self.at {
            return Err(Stop::LocationBack);
        }
        Ok((end != self.at).then_some(end))
    }

    #[inline]
    pub(crate) fn set(&mut self, register: u64, rule: impl FnOnce() -> Reg) {
        let slot = if register == self.entries.registers.kept.into() {
            &mut self.rules.kept
        } else if register == self.cie.ra {
            &mut self.rules.ra
        } else if register == self.entries.registers.sp.into() {
            &mut self.rules.sp
        } else {
            if Some(register) == self.entries.registers.sign_state.map(u64::from) {
                self.rules.signed = Signed::Unknown;
                self.changed = Changed::All;
            }
            return;
        };
        *slot = rule();
        self.changed = Changed::All;
    }

    /// Takes note whether one of the registers 0 to 2 is saved.
    #[cold]
    #[inline(never)]
    fn save(&mut self, register: u64, is_saved: bool) {
        let bit = bit_of(register);
        self.rules.saved = self.rules.saved & !bit | if is_saved { bit } else { 0 };
        self.changed = Changed::All;
    }

    #[inline]
    fn restore(&mut self, byte: u8, register: u64) -> Result<(), Stop> {
        let initial = self.initial.ok_or(Stop::Context(byte))?;
        if Some(register) == self.entries.registers.sign_state.map(u64::from) {
            self.rules.signed = initial.signed;
            self.changed = Changed::All;
            // It is no register that can be set otherwise.
            return Ok(());
        }
        let rule = if register == self.entries.registers.kept.into() {
            initial.kept
        } else if register == self.cie.ra {
            initial.ra
        } else if register < 3 {
            self.save(register, initial.saved & bit_of(register) != 0);
            return Ok(());
        } else {
            initial.sp
        };
        self.set(register, || rule);
        Ok(())
    }

    #[inline]
    pub(crate) fn set_cfa(&mut self, cfa: Cfa) {
        self.rules.cfa = cfa;
        self.changed = self.changed.max(Changed::Cfa);
    }

    #[inline]
    fn set_cfa_offset(&mut self, byte: u8, offset: i64) -> Result<(), Stop> {
        let Cfa::Register(register, _) = self.rules.cfa else {
            return Err(Stop::Context(byte));
        };
        self.set_cfa(Cfa::Register(register, offset));
        Ok(())
    }

    #[inline(never)]
    fn remember(&mut self) -> Result<(), Stop> {
        self.remembered.push(&self.rules).ok_or(Stop::TooManyRemembered)
    }

    fn negate(&mut self, byte: u8, how: Signed) -> Result<(), Stop> {
        self.rules.signed = match self.rules.signed {
            Signed::No => how,
            Signed::Yes | Signed::WithPc => Signed::No,
            Signed::Unknown => return Err(Stop::Context(byte)),
        };
        self.changed = Changed::All;
        Ok(())
    }

    /// What is wrong with the entry.
    #[cold]
    #[inline(never)]
    pub(crate) fn reason(&self, stop: Stop) -> CfiError {
        match stop {
            Stop::Truncated => self.entries.truncated(&self.instructions),
            Stop::Instruction(byte) => CfiError::Instruction(byte),
            Stop::Context(byte) => CfiError::Context(byte),
            Stop::Pointer(encoding) => CfiError::Pointer(encoding),
            Stop::LocationBack => CfiError::LocationBack,
            Stop::NothingRemembered => CfiError::NothingRemembered,
            Stop::TooManyRemembered => CfiError::TooManyRemembered,
        }
    }

    #[inline(always)]
    fn uleb(&mut self) -> Result<u64, Stop> {
        // Most numbers have one byte.
        let mut short = self.instructions;
        if let Ok(byte @ 0..0x80) = short.read_u8() {
            self.instructions = short;
            return Ok(byte.into());
        }
        self.long_uleb()
    }

    /// The same in one place, for instructions that come less often.
    #[inline(never)]
    fn number(&mut self) -> Result<u64, Stop> {
        match *self.instructions.slice() {
            [byte @ 0..0x80, ..] => {
                _ = self.instructions.skip(1);
                Ok(byte.into())
            }
            _ => self.long_uleb(),
        }
    }

    #[inline]
    fn factored_number(&mut self) -> Result<i64, Stop> {
        Ok(self.number()?.cast_signed().wrapping_mul(self.cie.data_align))
    }

    #[cold]
    #[inline(never)]
    fn long_uleb(&mut self) -> Result<u64, Stop> {
        self.instructions.read_uleb128().map_err(|_| Stop::Truncated)
    }

    /// An unsigned number of the CIE's units, in bytes.
    #[inline]
    fn factored(&mut self) -> Result<i64, Stop> {
        Ok(self.uleb()?.cast_signed().wrapping_mul(self.cie.data_align))
    }

    /// A signed number of the CIE's units, in bytes.
    #[inline(never)]
    fn factored_signed(&mut self) -> Result<i64, Stop> {
        let value = self.instructions.read_sleb128().map_err(|_| Stop::Truncated)?;
        Ok(value.wrapping_mul(self.cie.data_align))
    }

    /// An expression, and where it is.
    fn expression(&mut self) -> Result<(Reader<'a>, u64), Stop> {
        let len = self.uleb()?;
        let at = self.entries.offset(&self.instructions);
        let at = self.entries.section().addr.wrapping_add(at);
        let len = usize::try_from(len).map_err(|_| Stop::Truncated)?;
        let expression = self.instructions.split(len).map_err(|_| Stop::Truncated)?;
        Ok((expression, at))
    }
}

/// The bit of a register that [`Rules::saved`] tells of.
const fn bit_of(register: u64) -> u8 {
    match register {
        0 => 1,
        1 => 2,
        _ => 4,
    }
}

//! What gimli's rows and expressions lead to, on made-up registers and memory: the answer
//! that rows are held against.

use gimli::{
    CfaRule as GimliCfa, EndianSlice, EvaluationResult, Location, RegisterRule, RunTimeEndian,
    UnwindContextStorage, UnwindSection, UnwindTableRow, Value,
};
use unwind_cfi::CfiAbi;
use unwind_core::{
    BaseReg, CfaRule, DwarfReg, Memory, ReadError, RegRule, Registers, Row, VirtAddr,
};

pub(crate) type Reader<'a> = EndianSlice<'a, RunTimeEndian>;

/// Room for as many remembered states as are ever nested.
#[derive(Debug)]
pub(crate) struct Deep;

impl<T: gimli::ReaderOffset> UnwindContextStorage<T> for Deep {
    type Rules = [(gimli::Register, RegisterRule<T>); 192];
    type Stack = Box<[UnwindTableRow<T, Self>; 40]>;
}

/// The registers of a frame, and its memory, all made of one number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) abi: CfiAbi,
    pub(crate) pc: u64,
    pub(crate) seed: u64,
    /// The bits that registers and words have.
    pub(crate) bits: u64,
}

/// What a row leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Outermost,
    Found {
        cfa: u64,
        ra: u64,
        /// `None` if it is lost.
        fp: Option<u64>,
    },
}

impl Caller {
    /// Whether a row leads to the caller that gimli's leads to. What a row cannot say of the
    /// frame pointer is lost.
    pub(crate) fn agrees_with(self, expected: Self) -> bool {
        match (self, expected) {
            (Self::Found { cfa, ra, fp: None }, Self::Found { cfa: cfa2, ra: ra2, .. }) => {
                (cfa, ra) == (cfa2, ra2)
            }
            _ => self == expected,
        }
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

impl Machine {
    /// SP, FP and the pc's column.
    pub(crate) fn numbers(self) -> (u16, u16, u16) {
        match self.abi {
            CfiAbi::Ia32 => (4, 5, 8),
            CfiAbi::Aarch64Big | CfiAbi::Aarch64Little => (31, 29, 30),
            CfiAbi::S390x => (15, 11, 14),
            _ => (7, 6, 16),
        }
    }

    fn mask(self, value: u64) -> u64 {
        if self.abi.address_size() == 4 { value & 0xffff_ffff } else { value }
    }

    pub(crate) fn register(self, number: u16) -> u64 {
        let is_x86 = matches!(self.abi, CfiAbi::X86_64 | CfiAbi::Ia32);
        if is_x86 && number == self.numbers().2 {
            return self.pc;
        }
        self.mask(mix(self.seed.wrapping_add(u64::from(number)))) & self.bits
    }

    pub(crate) fn word(self, addr: u64) -> u64 {
        self.mask(mix(self.mask(addr) ^ self.seed.rotate_left(32))) & self.bits
    }

    fn plus(self, value: u64, offset: i64) -> u64 {
        self.mask(value.wrapping_add_signed(offset))
    }

    fn base(self, base: BaseReg) -> u64 {
        let (sp, fp, _) = self.numbers();
        match base {
            BaseReg::Sp => self.register(sp),
            BaseReg::Fp => self.register(fp),
            BaseReg::Reg(register) => self.register(register.0.into()),
        }
    }

    /// What our row leads to.
    pub(crate) fn apply(self, row: &Row) -> Option<Caller> {
        if row.needs().is_some() {
            return None;
        }
        if row.is_outermost() {
            return Some(Caller::Outermost);
        }
        let by_rule = match row.cfa() {
            CfaRule::Register(base, offset) => self.plus(self.base(base), offset.into()),
            CfaRule::AtRegister(base, offset) => {
                self.word(self.plus(self.base(base), offset.into()))
            }
            CfaRule::AtRegisterPlus(base, offset, plus) => {
                let word = self.word(self.plus(self.base(base), offset.into()));
                self.plus(word, plus.bytes().into())
            }
        };
        let cfa = row.other_stack_cfa().unwrap_or(by_rule);
        let value = |rule, number: u16| match rule {
            RegRule::Undefined => None,
            RegRule::SameValue => Some(self.register(number)),
            RegRule::Offset(offset) => Some(self.word(self.plus(cfa, offset.into()))),
            RegRule::ValOffset(offset) => Some(self.plus(cfa, offset.into())),
            RegRule::Register(base, offset) => Some(self.plus(self.base(base), offset.into())),
            RegRule::AtRegister(base, offset) => {
                Some(self.word(self.plus(self.base(base), offset.into())))
            }
        };
        let (_, fp, ra) = self.numbers();
        Some(Caller::Found { cfa, ra: value(row.ra(), ra)?, fp: value(row.fp(), fp) })
    }

    /// The value of an expression, by gimli.
    fn evaluate(
        self,
        expression: gimli::Expression<Reader<'_>>,
        initial: Option<u64>,
    ) -> Option<u64> {
        let encoding = gimli::Encoding {
            format: gimli::Format::Dwarf32,
            version: 4,
            address_size: self.abi.address_size(),
        };
        let mut evaluation = expression.evaluation(encoding);
        if let Some(initial) = initial {
            evaluation.set_initial_value(initial);
        }
        evaluation.set_max_iterations(1000);
        let mut state = evaluation.evaluate().ok()?;
        loop {
            state = match state {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = Value::Generic(self.register(register.0));
                    evaluation.resume_with_register(value).ok()?
                }
                EvaluationResult::RequiresMemory { address, size, .. }
                    if size == self.abi.address_size() =>
                {
                    evaluation.resume_with_memory(Value::Generic(self.word(address))).ok()?
                }
                _ => return None,
            };
        }
        match evaluation.result().first()?.location {
            Location::Address { address } => Some(self.mask(address)),
            _ => None,
        }
    }

    /// What gimli's row leads to; `None` if it says nothing of the return address, or what
    /// cannot be evaluated.
    pub(crate) fn follow<'a, U, S>(
        self,
        section: &U,
        row: &UnwindTableRow<usize, S>,
        ra: u16,
    ) -> Option<Caller>
    where
        U: UnwindSection<Reader<'a>>,
        S: UnwindContextStorage<usize>,
    {
        let (sp, fp, pc) = self.numbers();
        if row.register(gimli::Register(ra)) == Some(RegisterRule::Undefined) {
            return Some(Caller::Outermost);
        }
        let cfa = match row.cfa() {
            GimliCfa::RegisterAndOffset { register, offset } => {
                self.plus(self.register(register.0), *offset)
            }
            GimliCfa::Expression(expression) => {
                self.evaluate(expression.get(section).ok()?, None)?
            }
        };
        // `Some(None)`: undefined.
        let value = |number: u16| -> Option<Option<u64>> {
            Some(match row.register(gimli::Register(number)) {
                None if number == pc && matches!(self.abi, CfiAbi::X86_64 | CfiAbi::Ia32) => {
                    return None;
                }
                None | Some(RegisterRule::SameValue) => Some(self.register(number)),
                Some(RegisterRule::Undefined) => None,
                Some(RegisterRule::Offset(offset)) => Some(self.word(self.plus(cfa, offset))),
                Some(RegisterRule::ValOffset(offset)) => Some(self.plus(cfa, offset)),
                Some(RegisterRule::Register(register)) => Some(self.register(register.0)),
                Some(RegisterRule::Expression(expression)) => {
                    let at = self.evaluate(expression.get(section).ok()?, Some(cfa))?;
                    Some(self.word(at))
                }
                Some(RegisterRule::ValExpression(expression)) => {
                    Some(self.evaluate(expression.get(section).ok()?, Some(cfa))?)
                }
                _ => return None,
            })
        };
        let ra = value(ra)??;
        // A row has no rule for the stack pointer, so that of another one is none.
        let caller_sp = match row.register(gimli::Register(sp)) {
            None => cfa,
            Some(_) => value(sp)??,
        };
        if caller_sp != cfa && self.abi != CfiAbi::S390x {
            return None;
        }
        Some(Caller::Found { cfa, ra, fp: value(fp).flatten() })
    }
}

/// All registers are known.
impl Registers for Machine {
    fn pc(&self) -> u64 {
        self.pc
    }

    fn sp(&self) -> u64 {
        self.register(self.numbers().0)
    }

    fn fp(&self) -> Option<u64> {
        Some(self.register(self.numbers().1))
    }

    fn get(&self, register: DwarfReg) -> Option<u64> {
        Some(self.register(register.0.into()))
    }
}

/// Words alone can be read, all of them.
impl Memory for Machine {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let word = self.word(addr.get()).to_le_bytes();
        match word.get(..buf.len()) {
            Some(word) if buf.len() == usize::from(self.abi.address_size()) => {
                buf.copy_from_slice(word);
                Ok(())
            }
            _ => Err(ReadError::Invalid),
        }
    }
}

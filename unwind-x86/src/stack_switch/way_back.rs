//! What the instructions up to a `ret` do to the stack pointer.

use arrayvec::ArrayVec;
use unwind_core::{FrameContext, Memory, Registers as _, VirtAddr, WordSize};

use crate::code::Window;
use crate::register_number::dwarf_register;
use crate::x86_64::X86_64Regs;

/// How many instructions are followed.
const INSTRUCTIONS: usize = 64;
/// How many stores they may make.
const STORES: usize = 16;

/// Where instructions have led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Followed {
    /// The stack pointer at the `ret`.
    pub(super) sp: u64,
    /// Where the stack pointer was loaded from, if it has not changed since.
    pub(super) sp_from: Option<u64>,
    /// No instruction has written to the frame pointer.
    pub(super) keeps_fp: bool,
}

/// Why the instructions were not followed to the return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowError {
    /// Memory that they load is absent.
    Absent,
    /// They follow a null pointer.
    Null,
    /// There is an instruction that is not followed, or a value that is not known.
    Unknown,
}

/// In the order of the encoding.
const RSP: usize = 4;
const RBP: usize = 5;

/// The numbers of all registers in instructions.
const NUMBERS: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// The state of the CPU, as far as it is known.
pub(super) struct Follower<'m, M> {
    mem: &'m mut M,
    registers: [Option<u64>; 16],
    fs_base: Option<u64>,
    /// Addresses of words that were written: what memory has there is not what it will have.
    stored: ArrayVec<u64, STORES>,
    sp_from: Option<u64>,
    keeps_fp: bool,
}

/// What an instruction's `ModRM` byte names.
#[derive(Clone, Copy)]
enum Operand {
    Register(usize),
    /// An address, if it is known.
    Memory(Option<u64>),
}

/// How two values become one.
#[derive(Clone, Copy)]
enum Operation {
    Move,
    Add,
    Subtract,
    And,
    /// Of a register with itself it is zero; no other is followed.
    Xor,
}

impl Operation {
    /// Whether a register is zero after it, whatever it was.
    const fn is_zero(self, register: usize, other: Operand) -> bool {
        matches!((self, other), (Self::Xor, Operand::Register(other)) if other == register)
    }
}

impl<'m, M: Memory> Follower<'m, M> {
    /// Of a frame. Of one that has called, the stack and frame pointer are known.
    pub(super) fn new(
        frame: &FrameContext<'_, X86_64Regs>,
        fs_base: Option<u64>,
        mem: &'m mut M,
    ) -> Self {
        let mut registers = match frame.registers() {
            Some(all) => {
                NUMBERS.map(|number| all.get(dwarf_register(WordSize::Eight, number >= 8, number)))
            }
            None => [None; 16],
        };
        for (number, value) in [(RSP, Some(frame.sp())), (RBP, frame.fp())] {
            if let Some(register) = registers.get_mut(number) {
                *register = value;
            }
        }
        let stored = ArrayVec::new();
        Self { mem, registers, fs_base, stored, sp_from: None, keeps_fp: true }
    }

    /// Follows the instructions from `pc` on to a `ret`.
    pub(super) fn follow(mut self, mut pc: VirtAddr) -> Result<Followed, FollowError> {
        for _ in 0..INSTRUCTIONS {
            let code = Window::<16>::after(pc, self.mem);
            let mut bytes = Bytes(code.bytes());
            if self.step(pc, code.bytes(), &mut bytes)? {
                let Self { sp_from, keeps_fp, .. } = self;
                let sp = self.get(RSP).ok_or(FollowError::Unknown)?;
                return Ok(Followed { sp, sp_from, keeps_fp });
            }
            let len = code.bytes().len().wrapping_sub(bytes.0.len());
            let len = u64::try_from(len).map_err(|_| FollowError::Unknown)?;
            pc = pc.checked_add(len).ok_or(FollowError::Unknown)?;
        }
        Err(FollowError::Unknown)
    }

    /// Executes one instruction; says whether it is the `ret`.
    fn step(
        &mut self,
        pc: VirtAddr,
        code: &[u8],
        bytes: &mut Bytes<'_>,
    ) -> Result<bool, FollowError> {
        let mut form = Form { is_fs: bytes.skip(0x64), rex: 0, pc, len: code.len() };
        if let Some(rex @ 0x40..=0x4f) = bytes.first() {
            (form.rex, _) = (rex, bytes.next());
        }
        let opcode = bytes.next().ok_or(FollowError::Unknown)?;
        let low = usize::from(opcode & 7) | form.extended(REX_B);
        match opcode {
            0xc3 => return Ok(true),
            0x90 if form.rex == 0 => {}
            0x50..=0x57 => {
                let sp = self.get(RSP).map(|sp| sp.wrapping_sub(8));
                self.set(RSP, sp);
                self.store(sp)?;
            }
            0x58..=0x5f => self.pop(low)?,
            0xc9 => {
                self.set(RSP, self.get(RBP));
                self.pop(RBP)?;
            }
            0x01 => self.write_operand(Operation::Add, &form, bytes)?,
            0x03 => self.write_register(Operation::Add, &form, bytes)?,
            0x29 => self.write_operand(Operation::Subtract, &form, bytes)?,
            0x2b => self.write_register(Operation::Subtract, &form, bytes)?,
            0x31 => self.write_operand(Operation::Xor, &form, bytes)?,
            0x33 => self.write_register(Operation::Xor, &form, bytes)?,
            0x89 => self.write_operand(Operation::Move, &form, bytes)?,
            0x8b => self.write_register(Operation::Move, &form, bytes)?,
            0x8d => {
                let (register, operand) = self.operands(&form, bytes, 0)?;
                let Operand::Memory(address) = operand else { return Err(FollowError::Unknown) };
                self.set(register, address.filter(|_| form.is_wide() && !form.is_fs));
            }
            0x81 | 0x83 | 0xc7 => {
                let immediate = if opcode == 0x83 { 1 } else { 4 };
                let (operation, operand) = self.operands(&form, bytes, immediate)?;
                let operation = match (opcode, operation & 7) {
                    (0xc7, 0) => Operation::Move,
                    (0x81 | 0x83, 0) => Operation::Add,
                    (0x81 | 0x83, 4) => Operation::And,
                    (0x81 | 0x83, 5) => Operation::Subtract,
                    _ => return Err(FollowError::Unknown),
                };
                let value = bytes.signed(immediate)?;
                self.apply(operation, operand, Some(value), form.is_wide())?;
            }
            // `nop` of several bytes, and `xorps`, which changes no general register.
            0x0f => match bytes.next() {
                Some(0x1f | 0x57) => _ = self.operands(&form, bytes, 0)?,
                _ => return Err(FollowError::Unknown),
            },
            _ => return Err(FollowError::Unknown),
        }
        Ok(false)
    }

    fn write_operand(
        &mut self,
        operation: Operation,
        form: &Form,
        bytes: &mut Bytes<'_>,
    ) -> Result<(), FollowError> {
        let (register, operand) = self.operands(form, bytes, 0)?;
        if operation.is_zero(register, operand) {
            self.set(register, Some(0));
            return Ok(());
        }
        self.apply(operation, operand, self.get(register), form.is_wide())
    }

    fn write_register(
        &mut self,
        operation: Operation,
        form: &Form,
        bytes: &mut Bytes<'_>,
    ) -> Result<(), FollowError> {
        let (register, operand) = self.operands(form, bytes, 0)?;
        if operation.is_zero(register, operand) {
            self.set(register, Some(0));
            return Ok(());
        }
        let value = match operand {
            Operand::Register(other) => self.get(other),
            // Half a word may be of no use, but has to be there.
            Operand::Memory(address) => self.load(address)?,
        };
        self.apply(operation, Operand::Register(register), value, form.is_wide())?;
        let is_move = matches!(operation, Operation::Move);
        if let (RSP, true, Operand::Memory(from)) = (register, is_move, operand) {
            self.sp_from = from;
        }
        Ok(())
    }

    fn apply(
        &mut self,
        operation: Operation,
        to: Operand,
        value: Option<u64>,
        is_wide: bool,
    ) -> Result<(), FollowError> {
        let register = match to {
            Operand::Register(register) => register,
            Operand::Memory(address) => return self.store(address),
        };
        let own = self.get(register);
        let both = own.zip(value);
        let result = match operation {
            Operation::Move => value,
            Operation::Add => both.map(|(own, value)| own.wrapping_add(value)),
            Operation::Subtract => both.map(|(own, value)| own.wrapping_sub(value)),
            Operation::And => both.map(|(own, value)| own & value),
            Operation::Xor => None,
        };
        self.set(register, result.filter(|_| is_wide));
        Ok(())
    }

    fn pop(&mut self, register: usize) -> Result<(), FollowError> {
        let at = self.get(RSP);
        let value = self.load(at)?;
        self.set(RSP, at.map(|at| at.wrapping_add(8)));
        self.set(register, value);
        Ok(())
    }

    fn get(&self, register: usize) -> Option<u64> {
        self.registers.get(register).copied().flatten()
    }

    fn set(&mut self, register: usize, value: Option<u64>) {
        if let Some(slot) = self.registers.get_mut(register) {
            *slot = value;
        }
        match register {
            RSP => self.sp_from = None,
            RBP => self.keeps_fp = false,
            _ => {}
        }
    }

    /// The word at an address; `None` if that is not known, or the word was written over.
    fn load(&mut self, address: Option<u64>) -> Result<Option<u64>, FollowError> {
        let Some(address) = address else { return Ok(None) };
        // What programs have in their first page is nothing.
        if address < 4096 {
            return Err(FollowError::Null);
        }
        if self.stored.iter().any(|stored| stored.abs_diff(address) < 8) {
            return Ok(None);
        }
        Ok(Some(self.mem.read_u64(VirtAddr::new(address))?))
    }

    fn store(&mut self, address: Option<u64>) -> Result<(), FollowError> {
        // One that may be anywhere leaves nothing known.
        self.stored.try_push(address.ok_or(FollowError::Unknown)?).map_err(|_| FollowError::Unknown)
    }

    /// The register and the other operand of a `ModRM` byte, after which `immediate` more bytes
    /// come.
    fn operands(
        &self,
        form: &Form,
        bytes: &mut Bytes<'_>,
        immediate: usize,
    ) -> Result<(usize, Operand), FollowError> {
        let modrm = bytes.next().ok_or(FollowError::Unknown)?;
        let register = usize::from(modrm >> 3 & 7) | form.extended(REX_R);
        let base = usize::from(modrm & 7);
        let mode = modrm >> 6;
        if mode == 3 {
            return Ok((register, Operand::Register(base | form.extended(REX_B))));
        }
        let (mut address, mut is_displaced) = (self.get(base | form.extended(REX_B)), mode == 2);
        let mut is_from_pc = false;
        if base == RSP {
            let sib = bytes.next().ok_or(FollowError::Unknown)?;
            let (base, index) = (usize::from(sib & 7), usize::from(sib >> 3 & 7));
            address = self.get(base | form.extended(REX_B));
            if base == RBP && mode == 0 {
                (address, is_displaced) = (Some(0), true);
            }
            let index = index | form.extended(REX_X);
            if index != RSP {
                let scaled = self.get(index).map(|index| index.wrapping_shl(u32::from(sib >> 6)));
                address = address.zip(scaled).map(|(base, index)| base.wrapping_add(index));
            }
        } else if base == RBP && mode == 0 {
            (address, is_displaced, is_from_pc) = (Some(0), true, true);
        }
        let displacement = match (mode, is_displaced) {
            (1, _) => bytes.signed(1)?,
            (_, true) => bytes.signed(4)?,
            _ => 0,
        };
        address = address.map(|address| address.wrapping_add(displacement));
        if is_from_pc {
            let left = bytes.0.len().checked_sub(immediate).ok_or(FollowError::Unknown)?;
            let len =
                u64::try_from(form.len.wrapping_sub(left)).map_err(|_| FollowError::Unknown)?;
            let next = form.pc.get().wrapping_add(len);
            address = address.map(|address| address.wrapping_add(next));
        }
        if form.is_fs {
            let fs_base = self.fs_base;
            address = address.zip(fs_base).map(|(address, base)| address.wrapping_add(base));
        }
        Ok((register, Operand::Memory(address)))
    }
}

const REX_W: u8 = 8;
const REX_R: u8 = 4;
const REX_X: u8 = 2;
const REX_B: u8 = 1;

/// What an instruction's prefixes say, and where it is.
struct Form {
    is_fs: bool,
    rex: u8,
    pc: VirtAddr,
    /// How many bytes there are from the pc on.
    len: usize,
}

impl Form {
    const fn is_wide(&self) -> bool {
        self.rex & REX_W != 0
    }

    /// The fourth bit of a register's number, which a prefix has.
    const fn extended(&self, bit: u8) -> usize {
        if self.rex & bit == 0 { 0 } else { 8 }
    }
}

/// Bytes of code that are left.
struct Bytes<'b>(&'b [u8]);

impl Bytes<'_> {
    fn first(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Takes a byte if it is this one.
    fn skip(&mut self, byte: u8) -> bool {
        let is_it = self.first() == Some(byte);
        if is_it {
            self.next();
        }
        is_it
    }

    /// A number of one byte or four.
    fn signed(&mut self, len: usize) -> Result<u64, FollowError> {
        let mut value = || self.next().ok_or(FollowError::Unknown);
        let value = match len {
            1 => i64::from(i8::from_le_bytes([value()?])),
            _ => i64::from(i32::from_le_bytes([value()?, value()?, value()?, value()?])),
        };
        Ok(u64::from_ne_bytes(value.to_ne_bytes()))
    }
}

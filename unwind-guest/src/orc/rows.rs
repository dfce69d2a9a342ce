//! Rows of ORC entries.

use unwind_core::{
    BaseReg, CfaRule, DwarfReg, FrameContext, Memory, RegRule, Row, RowSource, StepError, VirtAddr,
};
use unwind_x86::X86_64Regs;

use crate::kernel_code::LinuxKernel;
use crate::kernel_rows::{Entry, KernelRows, Way};
use crate::orc::entry::{OrcBase, OrcEntry, OrcKind};
use crate::orc::error::OrcError;
use crate::orc::table::OrcTable;
use crate::saved_registers::{BELOW_FRAME, SavedRegisters, Whose};

/// The rows of a Linux kernel that has ORC tables: its own, and those of modules.
///
/// Code that has saved all registers, as after an interrupt, leads to the code that was interrupted, on
/// whatever stack that is. If that is user code, the kernel's stack ends there, and
/// [`entry`](KernelRows::entry) tells where its registers are.
#[derive(Clone, Copy, Debug)]
pub struct OrcRows<'a> {
    tables: &'a [OrcTable<'a>],
    way: Way,
}

impl<'a> OrcRows<'a> {
    /// A source for one vCPU at a time. The tables are asked in this order.
    #[must_use]
    pub const fn new(tables: &'a [OrcTable<'a>]) -> Self {
        Self { tables, way: Way::START }
    }

    fn find<M: Memory>(&self, addr: VirtAddr, mem: &mut M) -> Result<Option<OrcEntry>, OrcError> {
        for table in self.tables {
            match table.find(addr, mem)? {
                // After the code of a file, its table ends with such an entry.
                None | Some(OrcEntry { kind: OrcKind::Undefined, .. }) => {}
                found => return Ok(found),
            }
        }
        Ok(None)
    }

    /// The row of an ordinary frame.
    fn call<M: Memory>(
        &self,
        entry: &OrcEntry,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Row, OrcError> {
        let (cfa, offset) = (i32::from(entry.sp_offset), entry.bp_offset.into());
        let fp = match entry.bp {
            OrcBase::Undefined => RegRule::SameValue,
            OrcBase::PreviousSp => RegRule::Offset(offset),
            OrcBase::Bp => RegRule::AtRegister(BaseReg::Fp, offset),
            _ => return Err(OrcError::Entry(*entry)),
        };
        let row = |cfa| Row::new(cfa, RegRule::Offset(-8), fp);
        // The word that was loaded may be of any stack, so the row is of this frame alone.
        let loaded = |base: Option<u64>, offset: i32, plus: i32, mem: &mut M| {
            let Some(base) = base else { return Row::needs_register(BaseReg::Fp) };
            let addr = VirtAddr::new(base.wrapping_add_signed(offset.into()));
            let Ok(word) = mem.read_u64(addr) else { return Row::needs_memory(addr) };
            let cfa = word.wrapping_add_signed(plus.into());
            on_other_stack(row(CfaRule::sp(0)), cfa)
        };
        let row = match entry.sp {
            OrcBase::Sp => row(CfaRule::sp(cfa)),
            OrcBase::Bp => row(CfaRule::fp(cfa)),
            OrcBase::SpIndirect => loaded(Some(frame.sp()), 0, cfa, mem),
            OrcBase::BpIndirect => loaded(frame.fp(), cfa, 0, mem),
            base => {
                let (register, saved_at) = other(base).ok_or(OrcError::Entry(*entry))?;
                match self.way.of_frame(frame) {
                    // Only the walk's first frame has its registers with it.
                    Some(saved) => match saved.word(saved_at, mem) {
                        Ok(value) => {
                            let cfa = value.wrapping_add_signed(cfa.into());
                            on_other_stack(row(CfaRule::sp(0)), cfa)
                        }
                        Err(_) => Row::needs_register(BaseReg::Reg(register)),
                    },
                    None => row(CfaRule::Register(BaseReg::Reg(register), cfa)),
                }
            }
        };
        Ok(if entry.is_signal { row.with_signal() } else { row })
    }

    /// The row of code that has saved registers.
    fn registers<M: Memory>(
        &mut self,
        entry: &OrcEntry,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Row, OrcError> {
        let is_all = entry.kind == OrcKind::Registers;
        let base = match entry.sp {
            OrcBase::Sp => BaseReg::Sp,
            OrcBase::Bp => BaseReg::Fp,
            base => BaseReg::Reg(other(base).ok_or(OrcError::Entry(*entry))?.0),
        };
        let value = match base {
            BaseReg::Sp => Some(frame.sp()),
            BaseReg::Fp => frame.fp(),
            BaseReg::Reg(register) => {
                frame.registers().and_then(|all| unwind_core::Registers::get(all, register))
            }
        };
        let Some(value) = value else { return Ok(Row::needs_register(base)) };
        let below = if is_all { BELOW_FRAME } else { 0 };
        let offset = i32::from(entry.sp_offset).wrapping_add(below);
        let at = value.wrapping_add_signed(offset.into());
        let saved = match is_all {
            true => SavedRegisters::all(at),
            false => SavedRegisters::partial(at, frame.fp()),
        };
        let row = self.way.leave(saved, is_all, (base, offset), entry.is_signal, mem);
        row.ok_or(OrcError::NoRegisters(VirtAddr::new(at)))
    }
}

/// Where a stack was entered from whose outermost frame has called. A task that was forked begins as a thread of the
/// kernel does, but its user code's registers are there already, where such a thread has none. What is neither is
/// not known.
fn begun_from<M: Memory>(sp: u64, mem: &mut M) -> Result<Entry, StepError> {
    let mut places = SavedRegisters::at_end_of_stack(sp).peekable();
    let mut is_thread = places.peek().is_none();
    for saved in places {
        if saved.whose(mem)? == Whose::Users {
            return Ok(Entry::User(saved));
        }
        is_thread |= saved.are_empty(mem)?;
    }
    Ok(if is_thread { Entry::KernelThread } else { Entry::Unknown })
}

/// The same row, whose CFA is that value.
fn on_other_stack(row: Row, cfa: u64) -> Row {
    // Offsets of 16 bits have room in it.
    row.with_other_stack(cfa).unwrap_or(Row::needs_register(BaseReg::Sp))
}

/// A base that is neither the stack nor the frame pointer: the register, and where it is saved.
const fn other(base: OrcBase) -> Option<(DwarfReg, i32)> {
    let (register, saved_at): (_, i32) = match base {
        OrcBase::Ax => (X86_64Regs::RAX, 80),
        OrcBase::Dx => (X86_64Regs::RDX, 96),
        OrcBase::Di => (X86_64Regs::RDI, 112),
        OrcBase::R10 => (DwarfReg(10), 56),
        OrcBase::R13 => (DwarfReg(13), 16),
        _ => return None,
    };
    Some((register, saved_at.wrapping_sub(BELOW_FRAME)))
}

impl RowSource<LinuxKernel> for OrcRows<'_> {
    type Error = OrcError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, OrcError> {
        let Some(entry) = self.find(frame.lookup_addr(), mem)? else { return Ok(None) };
        match entry.kind {
            OrcKind::Undefined => Ok(None),
            OrcKind::EndOfStack => {
                // What is said of the entry is of this walk.
                frame.may_change();
                // Code at the kernel's entry has such entries before it has saved anything.
                self.way.entry = match frame.is_interrupted() {
                    true => Entry::Unknown,
                    false => match begun_from(frame.sp(), mem) {
                        Ok(entry) => entry,
                        Err(StepError::Unreadable { addr, .. }) => {
                            return Ok(Some(Row::needs_memory(addr)));
                        }
                        Err(_) => Entry::Unknown,
                    },
                };
                Ok(Some(Row::outermost()))
            }
            OrcKind::Call => self.call(&entry, frame, mem).map(Some),
            OrcKind::Registers | OrcKind::PartialRegisters => {
                self.registers(&entry, frame, mem).map(Some)
            }
            OrcKind::Unknown(_) => Err(OrcError::Entry(entry)),
        }
    }
}

impl KernelRows for OrcRows<'_> {
    fn begin(&mut self) {
        self.way = Way::START;
    }

    fn entry(&self) -> Entry {
        self.way.entry
    }
}

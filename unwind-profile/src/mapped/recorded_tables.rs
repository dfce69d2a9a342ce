//! What a recording says of a sampled process: its tables, its code, its stack.

use std::convert::Infallible;

use unwind_core::{
    Arch, FrameContext, KeyedRange, Memory, Origin, ReadError, RegisterRules, ReturnAddresses, Row,
    RowKey, RowKeys, RowSource, SliceMemory, VirtAddr, WordSize,
};
use unwind_perf::record::UserState;
use unwind_target::elf::error::Part;
use unwind_target::rows::program_start::EntryPoints;
use unwind_target::rows::sframe_tables::with_mark;
use unwind_target::target::processes::Processes;
use unwind_x86::{Ia32, Ia32Regs, SwitchingFunction, SwitchingFunctions, X86_64, X86_64Regs};

use crate::mapped::address_spaces::Space;
use crate::mapped::probed_returns::{ProbedReturns, is_probes};
use crate::mapped::ranges::Range;
use crate::mapped::running_code::RunningCode;

/// The tables of the mapped files: their `.sframe`, else their call frame information.
#[derive(Debug)]
pub struct RecordedTables<'s> {
    pub space: &'s Space,
}

impl RowSource<X86_64> for RecordedTables<'_> {
    type Error = sframe::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, sframe::Error> {
        let Some((range, addr)) = self.place(frame.lookup_addr()) else { return Ok(None) };
        match row_of_section(range, addr)? {
            Some(row) => {
                let row_of_all = || range.file.call_frame_row(addr, WordSize::Eight);
                Ok(Some(with_mark(row, || row_of_all().ok().flatten())))
            }
            None => Ok(row_of_call_frames::<X86_64, _>(range, addr, frame, mem)),
        }
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<RegisterRules>, sframe::Error> {
        let place = self.place(frame.lookup_addr());
        Ok(place
            .and_then(|(range, addr)| range.file.call_frame_register_rules(addr, WordSize::Eight)))
    }

    fn generation(&self) -> u64 {
        self.space.generation
    }
}

/// No SFrame tables are of 32-bit code.
impl RowSource<Ia32> for RecordedTables<'_> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Ia32Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let place = self.place(frame.lookup_addr());
        Ok(place.and_then(|(range, addr)| row_of_call_frames::<Ia32, _>(range, addr, frame, mem)))
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Ia32Regs>,
        _: &mut M,
    ) -> Result<Option<RegisterRules>, Infallible> {
        let place = self.place(frame.lookup_addr());
        Ok(place
            .and_then(|(range, addr)| range.file.call_frame_register_rules(addr, WordSize::Four)))
    }

    fn generation(&self) -> u64 {
        self.space.generation
    }
}

impl<'s> RecordedTables<'s> {
    /// What is mapped at an address, and what the file calls that.
    fn place(&self, addr: VirtAddr) -> Option<(&'s Range, u64)> {
        let range = self.space.find(addr.get())?;
        Some((range, range.link_time(addr.get())?))
    }
}

/// What names the rows of the mapped files: the file, and where it has the code. Two processes
/// that map a file, or one that maps it again, have the same rows.
#[derive(Clone, Copy)]
pub(crate) struct RecordedKeys<'s> {
    pub(crate) space: &'s Space,
}

impl RowKeys for RecordedKeys<'_> {
    fn find(&mut self, addr: VirtAddr) -> Option<KeyedRange> {
        let range = self.space.find(addr.get())?;
        let offset = range.link_time(range.start)?;
        let text = VirtAddr::new(range.start)..VirtAddr::new(range.end);
        let table = range.file.number;
        (table != 0).then_some(KeyedRange { text, key: RowKey { table, offset } })
    }
}

impl EntryPoints for Space {
    fn past_entry(&self, addr: u64) -> Option<u64> {
        let range = self.find(addr)?;
        range.file.elf().ok()?.past_entry(range.link_time(addr)?)
    }
}

/// The functions of the mapped files that switch stacks. Of what leads back to the stack before
/// a sample has only what is on the copied one.
#[derive(Clone, Copy)]
pub(crate) struct RecordedSwitches<'s> {
    pub(crate) space: &'s Space,
}

impl SwitchingFunctions for RecordedSwitches<'_> {
    fn find(&self, addr: VirtAddr) -> Option<SwitchingFunction> {
        let range = self.space.find(addr.get())?;
        let linked = range.link_time(addr.get())?;
        range.file.switches()?.find(addr.get(), addr.get().wrapping_sub(linked))
    }
}

/// The row of a file's call frame information. Why there is none is told at the end of the
/// walk.
fn row_of_call_frames<A: Arch, M: Memory>(
    range: &Range,
    addr: u64,
    frame: &FrameContext<'_, A::Regs>,
    mem: &mut M,
) -> Option<Row> {
    let bias = frame.lookup_addr().get().wrapping_sub(addr);
    range.file.call_frame_row_in::<A, M>(bias, frame, mem)
}

/// The row of the `.sframe` of a file.
pub(crate) fn row_of_section(range: &Range, addr: u64) -> Result<Option<Row>, sframe::Error> {
    let Some(section) = range.file.sframe() else { return Ok(None) };
    Ok(section.row(0, addr)?.map(|row| row.with_origin(Origin::Table)))
}

/// The copied stack, the files, whose code does not change, and code that is in no file.
pub(crate) struct SampleMemory<'s> {
    stack: SliceMemory<'s>,
    /// Where the copy ends, if the stack may be longer.
    cut: Option<u64>,
    space: &'s Space,
    running: &'s mut RunningCode,
}

impl<'s> SampleMemory<'s> {
    /// Of a sample with a copy of the stack from the stack pointer `sp` on.
    pub(crate) fn new(
        sp: u64,
        state: &UserState<'s>,
        space: &'s Space,
        running: &'s mut RunningCode,
    ) -> Self {
        let stack = state.stack;
        let end = u64::try_from(stack.len()).ok().and_then(|len| sp.checked_add(len));
        let cut = end.filter(|_| stack.len() == state.room);
        Self { stack: SliceMemory::new(VirtAddr::new(sp), stack), cut, space, running }
    }

    /// Why bytes are not there where no file is mapped.
    fn absence(&self, addr: VirtAddr, len: u64) -> ReadError {
        /// Where the addresses of user code end.
        const USER_END: u64 = 1 << 47;
        let end = addr.get().saturating_add(len);
        match self.cut {
            Some(cut) if end > cut && end <= USER_END => ReadError::NotResident,
            _ => ReadError::Invalid,
        }
    }

    /// Fills `buf` with what is mapped at `addr`.
    #[cold]
    fn read_code(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let len = u64::try_from(buf.len()).unwrap_or(u64::MAX);
        // perf tells of the stack's own mapping, too, which has no file.
        let has_code = |range: &&Range| range.executable || range.file.path().is_some();
        let range = self.space.find(addr.get()).filter(has_code);
        let range = range.ok_or_else(|| self.absence(addr, len))?;
        if range.executable && (range.file.is_jit() || !range.file.has_code()) {
            return match self.space.processes {
                _ if range.file.read_jit(addr.get(), buf) => Ok(()),
                Processes::Running => self.running.read(self.space, addr.get(), buf),
                _ => Err(ReadError::Invalid),
            };
        }
        if addr.get().checked_add(len).is_none_or(|end| end > range.end) {
            return Err(ReadError::Invalid);
        }
        let file = range.file.elf().map_err(|_| ReadError::Invalid)?;
        let at = range.file_offset(addr.get());
        file.read_into(Part::Memory, at, buf).map_err(|_| ReadError::Invalid)
    }

    fn word_of_code<const N: usize>(&mut self, addr: VirtAddr) -> Result<[u8; N], ReadError> {
        let mut word = [0; N];
        self.read_code(addr, &mut word)?;
        Ok(word)
    }
}

impl Memory for SampleMemory<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.stack.read(addr, buf).or_else(|_| self.read_code(addr, buf))
    }

    fn read_u32(&mut self, addr: VirtAddr) -> Result<u32, ReadError> {
        self.stack.read_u32(addr).or_else(|_| self.word_of_code(addr).map(u32::from_le_bytes))
    }

    fn read_u64(&mut self, addr: VirtAddr) -> Result<u64, ReadError> {
        self.stack.read_u64(addr).or_else(|_| self.word_of_code(addr).map(u64::from_le_bytes))
    }

    fn words(&mut self, addr: VirtAddr) -> Option<(VirtAddr, &[[u8; 8]])> {
        self.stack.words(addr)
    }
}

/// Where the process has code.
pub(crate) struct Code<'s> {
    pub(crate) space: &'s Space,
    pub(crate) returns: &'s ProbedReturns,
}

impl ReturnAddresses for Code<'_> {
    fn resolve(&mut self, ra: VirtAddr, slot: Option<VirtAddr>) -> Option<VirtAddr> {
        let slot = slot.filter(|_| is_probes(self.space, ra.get()))?;
        self.returns.real(slot.get()).map(VirtAddr::new)
    }

    fn is_code(&mut self, call: VirtAddr) -> bool {
        let is_executable = self.space.find(call.get()).is_some_and(|range| range.executable);
        // What ends where the probes' mapping starts is no call of it.
        is_executable && !is_probes(self.space, call.get().wrapping_add(1))
    }

    fn is_trampoline(&mut self, ra: VirtAddr) -> bool {
        is_probes(self.space, ra.get())
    }
}

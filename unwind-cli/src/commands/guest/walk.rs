//! Walks what a vCPU executes, through the guest's page tables.

use std::fmt;

use unwind_core::{
    Arch, CacheStats, Frame, ReturnAddresses, RowCache, RowSource, RowStore, VirtAddr, Walker,
};
use unwind_target::StackEnd;
use unwind_target::rows::call_frame_source::CallFrameSource;
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::rows::sframe_tables::{SframeTables, TableWarnings};
use unwind_target::stack::walk::{ROWS, ia32_registers, x86_64_registers};
use unwind_x86::paging::{AddressSpace, PagedMemory, PagingMode};
use unwind_x86::{Ia32, InstructionAnalysis, SignalTrampolines, UnrecordedPushes, X86_64};

use crate::commands::guest::files::GuestFiles;
use crate::commands::guest::ram::GuestRam;
use crate::commands::guest::registers::{Mode, VcpuRegisters};

/// How many pages are remembered while one stack is walked: more than the
/// usual stack has.
const PAGES: usize = 64;

/// What is needed to walk any stack of one guest.
pub(crate) struct GuestWalker<'f> {
    files: &'f GuestFiles,
    warnings: TableWarnings,
    frame_pointers: FramePointerRows,
    max_frames: u32,
    /// Of 64-bit code, which alone has tables. The tables are the same whatever address
    /// space a vCPU is in.
    rows: Box<RowCache<ROWS>>,
}

impl<'f> GuestWalker<'f> {
    pub(crate) fn new(
        files: &'f GuestFiles,
        frame_pointers: FramePointerRows,
        max_frames: u32,
    ) -> Self {
        let (warnings, rows) = (TableWarnings::default(), Box::default());
        Self { files, warnings, frame_pointers, max_frames, rows }
    }

    /// How often a row was kept, and how often it was looked up.
    pub(crate) fn rows(&self) -> CacheStats {
        self.rows.stats()
    }

    /// Which tables could not be used so far, a line each.
    pub(crate) fn warnings(&mut self) -> &[String] {
        self.warnings.add(&self.files.wide);
        self.warnings.add(&self.files.narrow);
        self.warnings.lines()
    }

    /// Walks the stack of the code that a vCPU executes, user code or kernel.
    pub(crate) fn walk(
        &mut self,
        vcpu: &VcpuRegisters,
        ram: &mut GuestRam,
    ) -> (Vec<Frame>, StackEnd) {
        let space = AddressSpace::from_registers(&vcpu.control);
        let mut memory = PagedMemory::<_, PAGES>::with_tlb(ram, space);
        match vcpu.mode {
            Mode::Long => {
                let arch = match space.mode() {
                    PagingMode::FiveLevel => X86_64::FIVE_LEVEL,
                    _ => X86_64::FOUR_LEVEL,
                };
                // Interrupts write to a kernel's stack below the stack pointer.
                let arch = if vcpu.is_user { arch } else { arch.without_red_zone() };
                let tables = SframeTables::new(&self.files.wide);
                let tables = tables.or(CallFrameSource::new(&self.files.wide));
                let source = tables.or(SignalTrampolines).or(InstructionAnalysis);
                let walker = Walker::new(arch, source).cache(&mut self.rows);
                let walker = walker.fallback(self.frame_pointers).max_frames(self.max_frames);
                let walker = walker.return_addresses(Half { is_user: vcpu.is_user });
                collect(walker, x86_64_registers(&vcpu.general), &mut memory)
            }
            Mode::Protected { code_base, stack_base } => {
                let arch = Ia32::with_bases(code_base, stack_base);
                let source = CallFrameSource::new(&self.files.narrow);
                let source = RowSource::<Ia32>::or(source, SignalTrampolines);
                let source = RowSource::<Ia32>::or(source, InstructionAnalysis);
                let source = UnrecordedPushes::new(source);
                let walker = Walker::new(arch, source).fallback(self.frame_pointers);
                let walker = walker.max_frames(self.max_frames);
                collect(walker, ia32_registers(&vcpu.general), &mut memory)
            }
            Mode::Sixteen => {
                let text = "16-bit code, whose stacks are not walked".into();
                (Vec::new(), StackEnd::not_walkable(text))
            }
        }
    }
}

fn collect<A, S, F, T, C>(
    mut walker: Walker<A, S, F, T, C>,
    regs: A::Regs,
    memory: &mut PagedMemory<&mut GuestRam, PAGES>,
) -> (Vec<Frame>, StackEnd)
where
    A: Arch,
    S: RowSource<A>,
    S::Error: fmt::Display,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: ReturnAddresses,
    C: RowStore,
{
    let mut walked = walker.frames(regs, &mut *memory);
    let frames: Vec<_> = walked.by_ref().collect();
    let end = walked.end();
    let mut end = end.map_or_else(
        || StackEnd::not_walkable("no frames".into()),
        |end| StackEnd::new(&end, &frames),
    );
    // Why memory was absent, if it was that.
    if let Some((addr, fault)) = memory.last_fault()
        && !end.complete
        && end.text.ends_with(&addr.to_string())
    {
        end.text = format!("{}: {fault}", end.text);
    }
    (frames, end)
}

/// The half of the 64-bit address space that the code of a stack is in.
struct Half {
    is_user: bool,
}

impl ReturnAddresses for Half {
    fn is_code(&mut self, call: VirtAddr) -> bool {
        (call.get() >> 63 == 0) == self.is_user
    }
}

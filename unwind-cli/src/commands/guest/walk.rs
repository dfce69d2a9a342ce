//! Walks what a vCPU executes, through the guest's page tables.

use std::fmt;

use unwind_core::{
    Arch, CacheStats, End, Frame, ReturnAddresses, RowCache, RowSource, RowStore, Walker,
};
use unwind_guest::orc::{OrcRows, OrcTable};
use unwind_guest::paging::PagedMemory;
use unwind_guest::{AddressHalf, CodeKind, KernelRows as _, LinuxKernel, UserCode, VcpuRegisters};
use unwind_target::StackEnd;
use unwind_target::rows::call_frame_source::CallFrameSource;
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::rows::sframe_tables::{SframeTables, TableWarnings};
use unwind_target::stack::walk::ROWS;
use unwind_x86::{
    Ia32, Ia32Regs, InstructionAnalysis, SignalTrampolines, UnrecordedPushes, X86_64Regs,
};

use crate::commands::guest::files::GuestFiles;
use crate::commands::guest::ram::GuestRam;

/// How many pages are remembered while one stack is walked: more than the
/// usual stack has.
const PAGES: usize = 64;

/// The stack of a vCPU.
pub(crate) struct VcpuStack {
    /// Of the code that it executes.
    pub(crate) part: Part,
    /// Of the user code that has entered the kernel, if the kernel runs and there is some.
    pub(crate) user: Option<Part>,
}

/// The frames of one kind of code, and why there are no more.
pub(crate) struct Part {
    pub(crate) code: CodeKind,
    /// Whether rows of tables are those of ORC.
    pub(crate) is_by_orc: bool,
    pub(crate) frames: Vec<Frame>,
    pub(crate) end: StackEnd,
}

/// What is needed to walk any stack of one guest.
pub(crate) struct GuestWalker<'f> {
    files: &'f GuestFiles,
    warnings: TableWarnings,
    frame_pointers: FramePointerRows,
    max_frames: u32,
    /// Of 64-bit code, which alone has tables. The tables are the same whatever address
    /// space a vCPU is in.
    rows: Box<RowCache<ROWS>>,
    /// Of the kernel, by its ORC table.
    kernel_rows: Box<RowCache<ROWS>>,
}

type GuestMemory<'r> = PagedMemory<&'r mut GuestRam, PAGES>;

impl<'f> GuestWalker<'f> {
    pub(crate) fn new(
        files: &'f GuestFiles,
        frame_pointers: FramePointerRows,
        max_frames: u32,
    ) -> Self {
        let (warnings, rows, kernel_rows) = Default::default();
        Self { files, warnings, frame_pointers, max_frames, rows, kernel_rows }
    }

    /// How often a row was kept, and how often it was looked up.
    pub(crate) fn rows(&self) -> CacheStats {
        let (mut rows, kernel) = (self.rows.stats(), self.kernel_rows.stats());
        rows.hits = rows.hits.saturating_add(kernel.hits);
        rows.misses = rows.misses.saturating_add(kernel.misses);
        rows.unkept = rows.unkept.saturating_add(kernel.unkept);
        rows
    }

    /// Which tables could not be used so far, a line each.
    pub(crate) fn warnings(&mut self) -> impl Iterator<Item = String> {
        self.warnings.add(&self.files.wide);
        self.warnings.add(&self.files.narrow);
        self.warnings.lines().iter().cloned().chain(self.files.warning())
    }

    /// Walks the stack of the code that a vCPU executes, and if that is a kernel with an ORC table the
    /// stack of the user code that has entered it.
    pub(crate) fn walk(&mut self, vcpu: &VcpuRegisters, ram: &mut GuestRam) -> VcpuStack {
        self.files.find_kernel(vcpu, ram);
        let table = self.files.kernel_table().filter(|_| !vcpu.is_user());
        let mut memory = GuestMemory::with_tlb(ram, vcpu.address_space());
        match (vcpu.code(), table) {
            (CodeKind::X86_64, Some(table)) => self.walk_kernel(vcpu, table, &mut memory),
            (code, _) => {
                let regs = (vcpu.x86_64_registers(), vcpu.ia32_registers());
                let part = self.walk_code(vcpu, code, vcpu.is_user(), regs, &mut memory);
                VcpuStack { part, user: None }
            }
        }
    }

    /// Walks a kernel's stack by its ORC table, then that of user code.
    fn walk_kernel(
        &mut self,
        vcpu: &VcpuRegisters,
        table: OrcTable<'_>,
        memory: &mut GuestMemory<'_>,
    ) -> VcpuStack {
        let tables = [table];
        let mut orc = OrcRows::new(&tables);
        let walker = Walker::new(LinuxKernel::new(vcpu.x86_64()), &mut orc);
        let walker = walker.cache(&mut self.kernel_rows).fallback(self.frame_pointers);
        let walker = walker.max_frames(self.max_frames).return_addresses(AddressHalf::Kernel);
        let (frames, mut end, is_end) = collect(walker, vcpu.x86_64_registers(), memory);
        let user = match is_end.then(|| orc.entry().user_code(memory)) {
            None | Some(Err(UserCode::None)) => None,
            Some(Ok((code, entered))) => {
                let regs = (entered.x86_64, entered.ia32);
                Some(self.walk_code(vcpu, code, true, regs, memory))
            }
            Some(Err(why)) => {
                lose_user(&mut end, why);
                None
            }
        };
        let code = CodeKind::X86_64;
        VcpuStack { part: Part { code, is_by_orc: true, frames, end }, user }
    }

    /// Walks the stack of code that has no ORC table.
    fn walk_code(
        &mut self,
        vcpu: &VcpuRegisters,
        code: CodeKind,
        is_user: bool,
        (wide, narrow): (X86_64Regs, Ia32Regs),
        memory: &mut GuestMemory<'_>,
    ) -> Part {
        let (frames, end) = match code {
            CodeKind::X86_64 => {
                let arch = vcpu.x86_64();
                // Interrupts write to a kernel's stack below the stack pointer.
                let arch = if is_user { arch } else { arch.without_red_zone() };
                let tables = SframeTables::new(&self.files.wide);
                let tables = tables.or(CallFrameSource::new(&self.files.wide));
                let source = tables.or(SignalTrampolines).or(InstructionAnalysis);
                let walker = Walker::new(arch, source).cache(&mut self.rows);
                let walker = walker.fallback(self.frame_pointers).max_frames(self.max_frames);
                let half = if is_user { AddressHalf::User } else { AddressHalf::Kernel };
                let (frames, end, _) = collect(walker.return_addresses(half), wide, memory);
                (frames, end)
            }
            CodeKind::Ia32 { code_base, stack_base } => {
                let arch = Ia32::with_bases(code_base, stack_base);
                let source = CallFrameSource::new(&self.files.narrow);
                let source = RowSource::<Ia32>::or(source, SignalTrampolines);
                let source = RowSource::<Ia32>::or(source, InstructionAnalysis);
                let source = UnrecordedPushes::new(source);
                let walker = Walker::new(arch, source).fallback(self.frame_pointers);
                let (frames, end, _) = collect(walker.max_frames(self.max_frames), narrow, memory);
                (frames, end)
            }
            CodeKind::Sixteen => {
                let text = "16-bit code, whose stacks are not walked".into();
                (Vec::new(), StackEnd::not_walkable(text))
            }
        };
        Part { code, is_by_orc: false, frames, end }
    }
}

/// Says why the user code is not known, of a kernel's stack that has come to its end.
fn lose_user(end: &mut StackEnd, why: UserCode) {
    let why = match why {
        UserCode::Unreadable(error) => format!("has saved registers: {error}"),
        UserCode::Segment(_) => "was entered from a segment that is not Linux's".into(),
        _ => "has not saved the registers of user code yet".into(),
    };
    end.complete = false;
    end.text = format!("{}, but the kernel {why}", end.text);
}

/// The frames, why there are no more, and whether the outermost one is the last by its row.
fn collect<A, S, F, T, C>(
    mut walker: Walker<A, S, F, T, C>,
    regs: A::Regs,
    memory: &mut GuestMemory<'_>,
) -> (Vec<Frame>, StackEnd, bool)
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
    let is_end = matches!(end, Some(End::Outermost));
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
    (frames, end, is_end)
}

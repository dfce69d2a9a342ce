//! Walks what a vCPU executes, through the guest's page tables.

use std::fmt;

use unwind_core::{
    Arch, CacheStats, End, Frame, ReturnAddresses, RowCache, RowSource, RowStore, Walker,
};
use unwind_guest::linux::Task;
use unwind_guest::orc::{OrcRows, OrcTable};
use unwind_guest::{AddressHalf, CodeKind, KernelRows as _, LinuxKernel, UserCode, VcpuRegisters};
use unwind_profile::recording::end_name::name_of_end;
use unwind_target::StackEnd;
use unwind_target::rows::call_frame_source::CallFrameSource;
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::rows::sframe_tables::{SframeTables, TableWarnings};
use unwind_target::stack::walk::ROWS;
use unwind_x86::{
    Ia32, Ia32Regs, InstructionAnalysis, SignalTrampolines, UnrecordedPushes, X86_64, X86_64Regs,
};

use crate::commands::guest::files::GuestFiles;
use crate::commands::guest::linux::{FoundName, Linux};
use crate::commands::guest::memory::{FilePages, GuestMemory, StackMemory};
use crate::commands::guest::programs::{ProgramRows, Programs};
use crate::commands::guest::ram::GuestRam;
use crate::commands::guest::registers::VcpuState;
use crate::commands::guest::sysroot::Sysroot;

/// The stack of a vCPU.
pub(crate) struct VcpuStack {
    /// What runs, if the kernel tells.
    pub(crate) task: Option<Task>,
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
    /// What each frame is called by what the guest has in memory, where no file was given.
    pub(crate) names: Vec<Option<FoundName>>,
    pub(crate) end: StackEnd,
    /// Why it is not complete, in a word.
    pub(crate) why: Option<&'static str>,
}

impl VcpuStack {
    /// Why the stack is not complete, in a word.
    pub(crate) fn incomplete(&self) -> Option<&'static str> {
        self.part.why.or_else(|| self.user.as_ref()?.why)
    }
}

impl Part {
    /// Names the frames that no file has.
    fn name(&mut self, files: &GuestFiles, mut find: impl FnMut(u64) -> Option<FoundName>) {
        let is_wide = self.code == CodeKind::X86_64;
        let names = self.frames.iter().map(|frame| {
            let addr = frame.pc.lookup_addr().get();
            let is_of_file = files.find(is_wide, addr).is_some();
            if is_of_file { None } else { find(addr) }
        });
        self.names = names.collect();
    }
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
    linux: Linux,
    /// Whether a kernel was walked that has no ORC table.
    has_other_kernel: bool,
    programs: Box<Programs>,
}

impl<'f> GuestWalker<'f> {
    pub(crate) fn new(
        files: &'f GuestFiles,
        frame_pointers: FramePointerRows,
        max_frames: u32,
    ) -> Self {
        let (warnings, rows, kernel_rows, linux, has_other_kernel, programs) = Default::default();
        Self {
            files,
            warnings,
            frame_pointers,
            max_frames,
            rows,
            kernel_rows,
            linux,
            has_other_kernel,
            programs,
        }
    }

    /// Has functions of programs be named by files of the guest, too.
    pub(crate) fn use_sysroot(&mut self, sysroot: Sysroot) {
        self.programs.use_sysroot(sysroot);
    }

    /// How often a row was kept, and how often it was looked up.
    pub(crate) fn rows(&self) -> CacheStats {
        self.rows.stats().with(self.kernel_rows.stats())
    }

    /// Which tables could not be used so far, a line each.
    pub(crate) fn warnings(&mut self) -> impl Iterator<Item = String> {
        self.warnings.add(&self.files.wide);
        self.warnings.add(&self.files.narrow);
        // Whoever gives files may have another kernel.
        let is_needed = self.has_other_kernel && self.files.is_empty;
        let missing = self.linux.missing().filter(|_| is_needed);
        let missing = missing.map(|error| error.to_string());
        self.warnings.lines().iter().cloned().chain(self.files.warning()).chain(missing)
    }

    /// Finds what is needed of a guest that runs, so that it does not have to stand for that.
    pub(crate) fn prepare(&mut self, vcpu: &VcpuRegisters, ram: &mut GuestRam) {
        self.files.find_kernel(vcpu, ram);
        self.linux.find(vcpu, ram);
    }

    /// Walks the stack of the code that a vCPU executes, and if that is a kernel with an ORC table the
    /// stack of the user code that has entered it.
    pub(crate) fn walk(&mut self, state: &VcpuState, ram: &mut GuestRam) -> VcpuStack {
        let vcpu = &state.registers;
        self.prepare(vcpu, ram);
        let kernel = self.linux.space(vcpu, ram);
        if let Some(space) = kernel
            && self.linux.read_modules(space, ram)
        {
            *self.kernel_rows = RowCache::new();
        }
        let task = kernel.and_then(|space| self.linux.task(state, space, ram));
        self.programs.begin();
        let space = match vcpu.is_user() {
            true => vcpu.address_space(),
            false => self.linux.space_of_kernel_code(vcpu, ram),
        };
        let tables = match self.files.kernel_table() {
            Some(table) => vec![table],
            None => self.linux.tables().to_vec(),
        };
        let files = kernel.zip(task).zip(self.linux.kernel());
        let files = files.map(|((space, task), kernel)| FilePages::new(kernel, space, task));
        let mut memory = StackMemory::new(GuestMemory::with_tlb(&mut *ram, space), files);
        let is_by_orc = !vcpu.is_user() && !tables.is_empty();
        self.has_other_kernel |= !vcpu.is_user() && tables.is_empty();
        let (mut part, mut user) = match vcpu.code() {
            CodeKind::X86_64 if is_by_orc => self.walk_kernel(vcpu, &tables, &mut memory),
            code => {
                let regs = (vcpu.x86_64_registers(), vcpu.ia32_registers());
                (self.walk_code(vcpu, code, vcpu.is_user(), regs, &mut memory), None)
            }
        };
        let of_user = if vcpu.is_user() { Some(&mut part) } else { user.as_mut() };
        if let Some(user) = of_user {
            self.name_user(user, task.as_ref(), &mut memory);
        }
        if let Some(space) = kernel.filter(|_| !vcpu.is_user()) {
            let (files, linux) = (self.files, &mut self.linux);
            part.name(files, |addr| linux.name(addr, space, ram));
        }
        VcpuStack { task, part, user }
    }

    fn name_user(&mut self, part: &mut Part, task: Option<&Task>, memory: &mut StackMemory<'_>) {
        let (files, programs) = (self.files, &mut self.programs);
        part.name(files, |addr| programs.name(addr, task.map(Task::comm), memory));
    }

    /// Walks a kernel's stack by its ORC table, then that of user code.
    fn walk_kernel(
        &mut self,
        vcpu: &VcpuRegisters,
        tables: &[OrcTable<'_>],
        memory: &mut StackMemory<'_>,
    ) -> (Part, Option<Part>) {
        let mut orc = OrcRows::new(tables);
        let walker = Walker::new(LinuxKernel::new(vcpu.x86_64()), &mut orc);
        let walker = walker.cache(&mut self.kernel_rows).fallback(self.frame_pointers);
        let walker = walker.max_frames(self.max_frames).return_addresses(AddressHalf::Kernel);
        let collected = collect(walker, vcpu.x86_64_registers(), memory);
        let Collected { frames, mut end, mut why, is_end } = collected;
        let user = match is_end.then(|| orc.entry().user_code(memory.paged())) {
            None | Some(Err(UserCode::None)) => None,
            Some(Ok((code, entered))) => {
                let regs = (entered.x86_64, entered.ia32);
                Some(self.walk_code(vcpu, code, true, regs, memory))
            }
            Some(Err(lost)) => {
                lose_user(&mut end, lost);
                why = why.or(Some("kernel-entry"));
                None
            }
        };
        let (code, names) = (CodeKind::X86_64, Vec::new());
        (Part { code, is_by_orc: true, frames, names, end, why }, user)
    }

    /// Walks the stack of code that has no ORC table.
    fn walk_code(
        &mut self,
        vcpu: &VcpuRegisters,
        code: CodeKind,
        is_user: bool,
        (wide, narrow): (X86_64Regs, Ia32Regs),
        memory: &mut StackMemory<'_>,
    ) -> Part {
        let Collected { frames, end, why, .. } = match code {
            CodeKind::X86_64 => {
                let arch = vcpu.x86_64();
                // Interrupts write to a kernel's stack below the stack pointer.
                let arch = if is_user { arch } else { arch.without_red_zone() };
                let files = &self.files.wide;
                let tables = ProgramRows { programs: &mut self.programs, files };
                let tables = RowSource::<X86_64>::or(tables, SframeTables::new(files));
                let tables = tables.or(CallFrameSource::new(files));
                let source = tables.or(SignalTrampolines).or(InstructionAnalysis);
                let walker = Walker::new(arch, source).cache(&mut self.rows);
                let walker = walker.fallback(self.frame_pointers).max_frames(self.max_frames);
                let half = if is_user { AddressHalf::User } else { AddressHalf::Kernel };
                collect(walker.return_addresses(half), wide, memory)
            }
            CodeKind::Ia32 { code_base, stack_base } => {
                let arch = Ia32::with_bases(code_base, stack_base);
                let files = &self.files.narrow;
                let source = ProgramRows { programs: &mut self.programs, files };
                let source = RowSource::<Ia32>::or(source, CallFrameSource::new(files));
                let source = RowSource::<Ia32>::or(source, SignalTrampolines);
                let source = RowSource::<Ia32>::or(source, InstructionAnalysis);
                let source = UnrecordedPushes::new(source);
                let walker = Walker::new(arch, source).fallback(self.frame_pointers);
                collect(walker.max_frames(self.max_frames), narrow, memory)
            }
            CodeKind::Sixteen => {
                let text = "16-bit code, whose stacks are not walked".into();
                let end = StackEnd::not_walkable(text);
                Collected { frames: Vec::new(), end, why: Some("not-walkable"), is_end: false }
            }
        };
        Part { code, is_by_orc: false, frames, names: Vec::new(), end, why }
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

/// A walk of one kind of code.
struct Collected {
    frames: Vec<Frame>,
    end: StackEnd,
    why: Option<&'static str>,
    /// Whether the outermost frame is the last by its row.
    is_end: bool,
}

fn collect<A, S, F, T, C>(
    mut walker: Walker<A, S, F, T, C>,
    regs: A::Regs,
    memory: &mut StackMemory<'_>,
) -> Collected
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
    let why = match &end {
        Some(end) if end.is_retryable() => "not-resident",
        Some(end) if end.is_outermost() => "gap",
        Some(end) => name_of_end(end.code()),
        None => "no-start",
    };
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
    let why = (!end.complete).then_some(why);
    Collected { frames, end, why, is_end }
}

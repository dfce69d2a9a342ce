//! Walks what a vCPU executes, through the guest's page tables.

use std::cell::RefCell;
use std::fmt;

use unwind_core::{Arch, CacheStats, End, Frame, ReturnAddresses, RowSource, RowStore, Walker};
use unwind_guest::linux::{GuestLinux, LinuxRows, Task, TaskFiles, TaskMemory};
use unwind_guest::orc::OrcRows;
use unwind_guest::paging::PagedMemory;
use unwind_guest::{
    CodeKind, GuestRows, GuestWalker, SavedRegisters, StackPart, StackParts, UserCode, VcpuMemory,
    VcpuRegisters,
};
use unwind_profile::recording::end_name::name_of_end;
use unwind_target::StackEnd;
use unwind_target::rows::call_frame_source::CallFrameSource;
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::rows::sframe_tables::{SframeTables, TableWarnings};
use unwind_target::stack::walk::ROWS;
use unwind_x86::{Ia32, InstructionAnalysis, SignalTrampolines, UnrecordedPushes, X86_64};

use crate::commands::guest::files::GuestFiles;
use crate::commands::guest::linux::{FoundName, Linux};
use crate::commands::guest::programs::Programs;
use crate::commands::guest::programs::rows::{ProgramKeys, ProgramRows};
use crate::commands::guest::ram::GuestRam;
use crate::commands::guest::registers::VcpuState;
use crate::commands::guest::sysroot::Sysroot;

/// The memory of what a vCPU executes, of which more pages are remembered than the usual stack has.
type StackMemory<'k, 'r> = TaskMemory<'k, &'r mut GuestRam, 64>;

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
    /// One whose frames have no names yet.
    fn new(code: CodeKind, frames: Vec<Frame>, end: StackEnd, why: Option<&'static str>) -> Self {
        Self { code, is_by_orc: false, frames, names: Vec::new(), end, why }
    }

    /// Leaves the first frame alone, which the registers tell, for a reason: in a word, and in words.
    fn lose(&mut self, why: &'static str, text: &str) {
        self.frames.truncate(1);
        self.end = StackEnd::not_walkable(text.into());
        self.why = Some(why);
    }

    /// Names the frames that no file has, or that have no name there: images of kernels have none.
    fn name(&mut self, files: &GuestFiles, mut find: impl FnMut(u64) -> Option<FoundName>) {
        let is_wide = self.code == CodeKind::X86_64;
        let names = self.frames.iter().map(|frame| {
            let addr = frame.pc.lookup_addr().get();
            if files.has_name(is_wide, addr) { None } else { find(addr) }
        });
        self.names = names.collect();
    }
}

/// What is needed to walk any stack of one guest.
pub(crate) struct GuestWalks<'f> {
    files: &'f GuestFiles,
    warnings: TableWarnings,
    frame_pointers: FramePointerRows,
    max_frames: u32,
    rows: Box<GuestRows<ROWS>>,
    linux: Linux,
    /// Whether a kernel was walked that has no rows of its own.
    has_other_kernel: bool,
    programs: Box<RefCell<Programs>>,
}

impl<'f> GuestWalks<'f> {
    pub(crate) fn new(
        files: &'f GuestFiles,
        frame_pointers: FramePointerRows,
        max_frames: u32,
    ) -> Self {
        let (warnings, rows, linux, has_other_kernel, programs) = Default::default();
        Self {
            files,
            warnings,
            frame_pointers,
            max_frames,
            rows,
            linux,
            has_other_kernel,
            programs,
        }
    }

    /// Has functions of programs be named by files of the guest, too.
    pub(crate) fn use_sysroot(&mut self, sysroot: Sysroot) {
        self.programs.get_mut().use_sysroot(sysroot);
    }

    /// How often a row was kept, and how often it was looked up.
    pub(crate) fn rows(&self) -> CacheStats {
        self.rows.stats()
    }

    /// Which tables could not be used so far, a line each.
    pub(crate) fn warnings(&mut self) -> impl Iterator<Item = String> {
        self.warnings.add(&self.files.wide);
        self.warnings.add(&self.files.narrow);
        // Whoever gives files may have another kernel.
        let is_needed = self.has_other_kernel && self.files.is_empty;
        let missing = self.linux.missing().filter(|_| is_needed);
        let missing = missing.map(|error| error.to_string());
        let of_programs: Vec<String> = self.programs.get_mut().warnings().collect();
        let of_files = self.files.warning().into_iter().chain(of_programs);
        self.warnings.lines().iter().cloned().chain(of_files).chain(missing)
    }

    /// Finds what is needed of a guest that runs, so that it does not have to stand for that.
    pub(crate) fn prepare(&mut self, vcpu: &VcpuRegisters, ram: &mut GuestRam) {
        self.files.find_kernel(vcpu, ram);
        self.linux.find(vcpu, ram);
    }

    /// Walks the stack of the code that a vCPU executes, and if that is a Linux kernel the
    /// stack of the user code that has entered it.
    pub(crate) fn walk(&mut self, state: &VcpuState, ram: &mut GuestRam) -> VcpuStack {
        let vcpu = &state.registers;
        self.prepare(vcpu, ram);
        let kernel = self.linux.space(vcpu, ram);
        if let Some(space) = kernel
            && self.linux.read_modules(space, ram)
        {
            self.rows.clear_kernel();
        }
        let task = kernel.and_then(|space| self.linux.task(state, space, ram));
        let of_task = kernel
            .zip(task)
            .and_then(|(space, task)| self.linux.stack_of(&task, state, space, ram));
        let vcpu = of_task.as_ref().map_or(vcpu, |of_task| &of_task.registers);
        let space = match vcpu.is_user() {
            true => vcpu.address_space(),
            false => self.linux.space_of_kernel_code(vcpu, ram),
        };
        // User code that enters by the stack of the next task is that one's.
        let own_task = task.filter(|_| of_task.is_some_and(|of_task| of_task.is_own));
        let has_ended = of_task.is_some_and(|of_task| of_task.has_ended);
        let saved = of_task.as_ref().and_then(|of_task| of_task.saved);
        let tables = match self.files.kernel_table() {
            Some(table) => vec![table],
            None => self.linux.tables().to_vec(),
        };
        let found = self.linux.kernel();
        let rows = match (&found, &*tables) {
            (Some(found), tables) => found.rows(tables),
            (None, []) => None,
            (None, tables) => Some(LinuxRows::Orc(OrcRows::new(tables))),
        };
        let files = kernel.zip(task).zip(found.as_deref());
        let files = files.map(|((space, task), kernel)| TaskFiles { kernel, space, task });
        let mut memory = StackMemory::new(PagedMemory::with_tlb(&mut *ram, space), files);
        self.has_other_kernel |= !vcpu.is_user() && rows.is_none();
        let comm = own_task.as_ref().map(Task::comm);
        let mut stack = self.walk_parts((vcpu, saved, comm), rows, &mut memory);
        let is_switching = |kernel: &GuestLinux| {
            let mut frames = stack.part.frames.iter();
            frames.any(|frame| kernel.is_switching_at(frame.pc.lookup_addr()))
        };
        if let Some(user) = &mut stack.user {
            // A thread of the kernel has no memory either, and may have the stack of the next task there.
            if own_task.is_none() && found.as_deref().is_some_and(is_switching) {
                let text = "the kernel switches tasks, and does not tell whose memory the CPU has";
                user.lose("task-switch", text);
            } else if has_ended {
                user.lose("thread-ended", "the thread has ended, and has given its memory back");
            }
        }
        // Some instructions long the kernel has the next task's stack, and tells the former one.
        stack.task = if stack.user.is_some() && !has_ended { own_task } else { task };
        let of_user = if vcpu.is_user() { Some(&mut stack.part) } else { stack.user.as_mut() };
        let (files, programs) = (self.files, self.programs.get_mut());
        if let Some(user) = of_user {
            user.name(files, |addr| programs.name(addr, comm, &mut memory));
        }
        if let Some(space) = kernel.filter(|_| !vcpu.is_user()) {
            let linux = &mut self.linux;
            stack.part.name(files, |addr| linux.name(addr, space, ram));
        }
        stack
    }

    fn walk_parts(
        &mut self,
        (vcpu, saved, comm): (&VcpuRegisters, Option<SavedRegisters>, Option<&[u8]>),
        rows: Option<LinuxRows<'_>>,
        memory: &mut StackMemory<'_, '_>,
    ) -> VcpuStack {
        self.programs.get_mut().begin(comm);
        let (files, programs) = (self.files, &*self.programs);
        let of_memory = ProgramRows { programs, files: &files.wide };
        let wide = RowSource::<X86_64>::or(of_memory, SframeTables::new(&files.wide));
        let wide = wide.or(CallFrameSource::new(&files.wide));
        let wide = wide.or(SignalTrampolines).or(InstructionAnalysis);
        let narrow = ProgramRows { programs, files: &files.narrow };
        let narrow = RowSource::<Ia32>::or(narrow, CallFrameSource::new(&files.narrow));
        let narrow = RowSource::<Ia32>::or(narrow, SignalTrampolines);
        let narrow = RowSource::<Ia32>::or(narrow, InstructionAnalysis);
        let narrow = UnrecordedPushes::new(narrow);
        let walker = GuestWalker::of_any_kernel(&mut self.rows, rows, wide, narrow);
        let mut walker = walker.fallback(self.frame_pointers);
        let mut parts = Parts::new(vcpu, programs, self.max_frames);
        walker.walk_parts(vcpu, memory, ProgramKeys(of_memory), &mut parts);
        if let Some(saved) = saved.filter(|_| parts.lacks_user()) {
            walker.walk_entered(vcpu, saved, memory, ProgramKeys(of_memory), &mut parts);
        }
        parts.stack(vcpu, rows)
    }
}

/// The parts of a stack as they are walked.
struct Parts<'p> {
    programs: &'p RefCell<Programs>,
    /// Of the address space, with the kernel's pages or without.
    root: u64,
    max_frames: u32,
    kernel: Option<Part>,
    user: Option<Part>,
    /// Whether the kernel's part has come to its outermost frame.
    is_end: bool,
    user_code: UserCode,
}

impl<'p> Parts<'p> {
    fn new(vcpu: &VcpuRegisters, programs: &'p RefCell<Programs>, max_frames: u32) -> Self {
        /// Under KPTI, user code has the second one of two tables.
        const OF_USER: u64 = 1 << 12;
        let root = vcpu.address_space().root().get() & !OF_USER;
        let (kernel, user, is_end, user_code) = (None, None, false, UserCode::Unknown);
        Self { programs, root, max_frames, kernel, user, is_end, user_code }
    }

    /// Whether there is a kernel's part that has not led to user code: it has ended early, or the task has just been
    /// forked, so that its stack begins as that of a thread of the kernel.
    fn lacks_user(&self) -> bool {
        self.kernel.is_some() && self.user.is_none()
    }

    /// The stack of what runs.
    fn stack(self, vcpu: &VcpuRegisters, rows: Option<LinuxRows<'_>>) -> VcpuStack {
        let (part, user) = match vcpu.is_user() {
            true => (self.user, None),
            false => (self.kernel, self.user),
        };
        let mut part = part.unwrap_or_else(|| {
            let end = StackEnd::not_walkable("no frames".into());
            Part::new(vcpu.code(), Vec::new(), end, Some("not-walkable"))
        });
        if part.code == CodeKind::Sixteen {
            part.lose("not-walkable", "16-bit code, whose stacks are not walked");
        }
        let is_linux = rows.is_some() && !vcpu.is_user() && part.code == CodeKind::X86_64;
        part.is_by_orc = is_linux && matches!(rows, Some(LinuxRows::Orc(_)));
        match self.user_code {
            UserCode::Running | UserCode::Entered | UserCode::None => {}
            lost if is_linux && (self.is_end || part.end.complete) => {
                lose_user(&mut part.end, lost);
                part.why = part.why.or(Some("kernel-entry"));
            }
            _ => {}
        }
        VcpuStack { task: None, part, user }
    }
}

impl StackParts for Parts<'_> {
    fn walk<A, S, F, T, C, M>(
        &mut self,
        part: StackPart,
        walker: Walker<A, S, F, T, C>,
        regs: A::Regs,
        memory: &mut M,
    ) -> bool
    where
        A: Arch,
        S: RowSource<A, Error: fmt::Display>,
        F: RowSource<A>,
        F::Error: Into<S::Error>,
        T: ReturnAddresses,
        C: RowStore,
        M: VcpuMemory,
    {
        if matches!(part, StackPart::User(_)) {
            self.programs.borrow_mut().enter(self.root, memory);
        }
        let mut walker = walker.max_frames(self.max_frames);
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
        let fault = end.as_ref().and_then(|end| memory.fault_of(end));
        let mut end = end.map_or_else(
            || StackEnd::not_walkable("no frames".into()),
            |end| StackEnd::new(&end, &frames),
        );
        // Why memory was absent, if it was that.
        if let Some((addr, fault)) = fault
            && !end.complete
            && end.text.ends_with(&addr.to_string())
        {
            end.text = format!("{}: {fault}", end.text);
        }
        let why = (!end.complete).then_some(why);
        match part {
            StackPart::Kernel(code) => {
                self.is_end = is_end;
                self.kernel = Some(Part::new(code, frames, end, why));
            }
            StackPart::User(code) => self.user = Some(Part::new(code, frames, end, why)),
        }
        is_end
    }

    fn user_code(&mut self, user_code: UserCode) {
        self.user_code = user_code;
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

//! Walks of kernel stacks, across ways into the kernel, up to user mode.
//!
//! The kernel has an SFrame table of its own code, and where that has no row
//! its functions keep frame pointers. What neither can tell is where an
//! interrupt or a system call came from: there entry.s has left all registers
//! in a [`Frame`]. To the walker that is a signal frame, and the pieces below
//! say so:
//!
//! * [`KernelTable`] is the table, with a cache of its rows;
//! * [`EntryFrames`] is a source of rows for the code of entry.s;
//! * [`KernelMode`] is the CPU, which knows how to read the registers back;
//! * [`StackMemory`] reads kernel stacks and code, and nothing else.
//!
//! One walk may cross several entries: an NMI in a page fault in a system
//! call. It ends, complete, at the one that came from user mode.

use unwind_core::{
    Arch, DwarfReg, FrameContext, Memory, Module, ModuleMap, ReadError, Row, RowCache, RowSource,
    StepError, VirtAddr, Walker, WordSize,
};
use unwind_x86::{
    InstructionAnalysis, SframeModule, SframeSource, TrustedFramePointers, X86_64, X86_64Regs,
};

use crate::cpu::CPUS;
use crate::descriptors::interrupt_stack_of;
use crate::each_cpu::EachCpu;
use crate::exclusive::Exclusive;
use crate::frame::Frame;
use crate::task::state::kernel_stack_of;

/// What a walk found apart from pcs.
pub(crate) struct KernelWalk {
    /// It got to a way in from user mode, or to a thread's start.
    pub(crate) is_complete: bool,
    /// The user registers at that way in.
    pub(crate) user: Option<Frame>,
}

/// The rows of the kernel's own code.
struct KernelTable {
    modules: ModuleMap<SframeModule<'static>, 1>,
    rows: RowCache<256>,
    /// Those of a walk.
    registers: Option<X86_64Regs>,
}

/// Only NMIs walk kernel stacks, so a CPU's is never in use when one does.
static TABLE: EachCpu<Exclusive<KernelTable>> = EachCpu(
    [const {
        Exclusive::new(KernelTable {
            modules: ModuleMap::new(),
            rows: RowCache::new(),
            registers: None,
        })
    }; CPUS],
);

/// Opens the kernel's table. Once, before the first walk.
pub(crate) fn open_table() {
    let (start, end) = (&raw const sframe_start, &raw const sframe_end);
    let len = end as usize - start as usize;
    // SAFETY: the linker script puts the section between these two, and it
    // does not change.
    let section = unsafe { core::slice::from_raw_parts(start, len) };
    let text =
        VirtAddr::new(&raw const text_start as u64)..VirtAddr::new(&raw const text_end as u64);
    for own in TABLE.iter() {
        let module = SframeModule::new(section, start as u64);
        let Ok(Some(table)) = module else { panic!("the kernel has no table: {module:?}") };
        let module = Module { text: text.clone(), table };
        let added = own.with(|kernel| kernel.modules.add(module));
        assert!(added.is_ok(), "the kernel's code is somewhere");
    }
}

/// Walks the kernel stack from `frame`, which is of kernel code. In NMIs.
#[inline(never)]
pub(crate) fn walk(frame: &Frame, found: impl FnMut(u64)) -> KernelWalk {
    try_walk(frame, found).unwrap_or(KernelWalk { is_complete: false, user: None })
}

/// The same in any context; `None` if this CPU walks already.
#[inline]
pub(crate) fn try_walk(frame: &Frame, mut found: impl FnMut(u64)) -> Option<KernelWalk> {
    let mut user_frame = None;
    let mut memory = StackMemory;
    let is_complete = TABLE.own().try_with(|KernelTable { modules, rows, registers: place }| {
        let table = SframeSource::new(modules);
        let functions = table.or(InstructionAnalysis).or(TrustedFramePointers);
        let source = EntryFrames { user_frame: &mut user_frame }.or(OutsideEntry(functions));
        let mut walker = Walker::new(KernelMode, source).cache(rows);
        let mut frames = walker.frames(place.insert(registers(frame)), &mut memory);
        for frame in frames.by_ref() {
            found(frame.pc.addr().get());
        }
        frames.is_complete()
    });
    let user = user_frame.and_then(|at| read_frame(&mut memory, at));
    Some(KernelWalk { is_complete: is_complete?, user })
}

unsafe extern "C" {
    static text_start: u8;
    static text_end: u8;
    static entry_text_start: u8;
    static entry_text_end: u8;
    static whole_frame_start: u8;
    static whole_frame_end: u8;
    static sframe_start: u8;
    static sframe_end: u8;
}

/// Whether `pc` is in entry.s.
fn is_entry_code(pc: u64) -> bool {
    let start = &raw const entry_text_start as u64;
    let end = &raw const entry_text_end as u64;
    (start..end).contains(&pc)
}

/// Whether `pc` is where the stack pointer is at the extended state, above which
/// is a [`Frame`]: around the calls into Rust.
fn has_whole_frame(pc: u64) -> bool {
    let start = &raw const whole_frame_start as u64;
    let end = &raw const whole_frame_end as u64;
    (start..end).contains(&pc)
}

/// Rows for the code of entry.s, where it has a frame.
struct EntryFrames<'w> {
    /// Where the walk met user registers.
    user_frame: &'w mut Option<u64>,
}

impl RowSource<KernelMode> for EntryFrames<'_> {
    type Error = sframe::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, sframe::Error> {
        if !has_whole_frame(frame.lookup_addr().get()) {
            return Ok(None);
        }
        let at = frame.sp().wrapping_add(Frame::EXTENDED_STATE);
        Ok(read_frame(mem, at).map(|saved| {
            if saved.is_user() {
                *self.user_frame = Some(at);
                Row::outermost()
            } else {
                Row::signal_context()
            }
        }))
    }
}

/// A source for the rest of the kernel's code. In entry.s a frame is being
/// built or removed, and the frame pointer may be the user's: there it has no
/// row, and the walk ends as incomplete.
struct OutsideEntry<S>(S);

impl<S: RowSource<X86_64>> RowSource<KernelMode> for OutsideEntry<S> {
    type Error = S::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, S::Error> {
        if is_entry_code(frame.lookup_addr().get()) { Ok(None) } else { self.0.row(frame, mem) }
    }

    fn generation(&self) -> u64 {
        self.0.generation()
    }
}

/// The CPU in kernel mode: as in user mode, but for what a signal frame is.
struct KernelMode;

impl Arch for KernelMode {
    type Regs = X86_64Regs;
    const WORD: WordSize = X86_64::WORD;
    const SP: Option<DwarfReg> = X86_64::SP;
    const FP: Option<DwarfReg> = X86_64::FP;

    fn code_addr(&self, pc: u64) -> Option<VirtAddr> {
        X86_64::FOUR_LEVEL.code_addr(pc)
    }

    fn signal_context<M: Memory>(
        &self,
        _: VirtAddr,
        sp: u64,
        mem: &mut M,
    ) -> Result<Option<X86_64Regs>, StepError> {
        let at = sp.wrapping_add(Frame::EXTENDED_STATE);
        Ok(read_frame(mem, at).as_ref().map(registers))
    }
}

/// The registers in the order of their DWARF numbers.
pub(super) const fn registers(frame: &Frame) -> X86_64Regs {
    let Frame { rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, .. } = *frame;
    let Frame { r8, r9, r10, r11, r12, r13, r14, r15, .. } = *frame;
    X86_64Regs::from_all(
        frame.rip,
        [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15],
    )
}

const FRAME_WORDS: usize = size_of::<Frame>() / 8;

fn read_frame<M: Memory>(mem: &mut M, at: u64) -> Option<Frame> {
    let mut bytes = [[0; 8]; FRAME_WORDS];
    mem.read(VirtAddr::new(at), bytes.as_flattened_mut()).ok()?;
    let mut words = bytes.map(u64::from_le_bytes).into_iter();
    let mut next = || words.next().unwrap_or_default();
    // The order of the struct, which is that of the stack.
    Some(Frame {
        r15: next(),
        r14: next(),
        r13: next(),
        r12: next(),
        r11: next(),
        r10: next(),
        r9: next(),
        r8: next(),
        rdi: next(),
        rsi: next(),
        rbp: next(),
        rbx: next(),
        rdx: next(),
        rcx: next(),
        rax: next(),
        vector: next(),
        error: next(),
        rip: next(),
        cs: next(),
        rflags: next(),
        rsp: next(),
        ss: next(),
    })
}

/// The kernel's stacks, and its code.
#[derive(Clone, Copy)]
struct StackMemory;

impl Memory for StackMemory {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let start = addr.get();
        let end = start.checked_add(buf.len() as u64).ok_or(ReadError::Invalid)?;
        let text = (&raw const text_start as u64, &raw const text_end as u64);
        let stack = kernel_stack_of(start).or_else(|| interrupt_stack_of(start));
        let (low, high) = stack.unwrap_or(text);
        if start < low || end > high {
            return Err(ReadError::Invalid);
        }
        // SAFETY: in a static that is a stack, or in code: both are mapped and
        // readable at all times. What is walked is what this CPU has left there;
        // `buf` may be on the same stack, but lies below.
        unsafe { (start as *const u8).copy_to(buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }
}

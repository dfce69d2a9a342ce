//! A walk of the own stack that its caller takes a frame at a time.

use core::marker::PhantomData;
use core::mem::take;
use core::ops::Range;

use unwind_cfi::EncodedPointer;
use unwind_core::{
    Arch as _, CallerFrame, DwarfReg, End, FrameContext, FramePc, Memory as _, Place, Position,
    RowSource, TraceFrame, VirtAddr,
};
use unwind_x86::SignalTrampolines;

use crate::memory::OwnMemory;
use crate::raw::loads;
use crate::raw::machine::{Machine, Registers};
use crate::raw::place::{MAX_FRAMES, Taken};
use crate::raw::registers::{Start, StartPc};
use crate::raw::rows::{self, Guessed};
use crate::walker::{is_whole, walker};

/// A frame of this thread's stack, with what a walk needs to continue to its caller: plain values,
/// which borrow and lock nothing.
///
/// It costs more than a [`backtrace`](crate::backtrace), and knows more: the stack pointer of
/// each frame, and other registers. It finds some callers ahead, and takes one step at a time once it
/// was asked for a [register](Self::register).
///
/// ```
/// # #[inline(never)]
/// # fn callee() -> u64 {
/// // SAFETY: this function does not return meanwhile.
/// let mut cursor = unsafe { unwind_local::Cursor::here() };
/// cursor.step();
/// let caller = cursor.pc().expect("a caller");
/// println!("{caller:x?}, stack pointer {:x?}", cursor.sp());
/// # caller.addr().get() }
/// # assert_ne!(callee(), 0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    at: At,
    start: StartPc,
    /// A guess has led to the frame, or to one before it.
    is_guessed: bool,
    /// It was asked for a register, and is likely to be asked in the next frames, too. So it takes
    /// one step at a time.
    is_asked: bool,
    /// How many steps have led to the position.
    steps: usize,
    /// Callers of it that are known, of which it has passed some. Only registers are not known there:
    /// these a walk from the position tells.
    callers: [CallerFrame; AHEAD],
    known: usize,
    passed: usize,
    /// The last of them, to continue there.
    last: Option<Place>,
    /// Other threads have other stacks.
    thread: PhantomData<*const ()>,
}

/// How many frames are found at once, in a walk that takes little more time than one step.
const AHEAD: usize = 16;

/// Where it stands, but for the callers that it has passed since.
#[derive(Clone, Copy, Debug)]
enum At {
    Frame(Position<Registers>),
    /// After the last frame.
    End {
        end: End,
        is_complete: bool,
    },
}

impl Cursor {
    /// In the function that calls this.
    ///
    /// # Safety
    ///
    /// The function does not return while the cursor is used.
    #[inline(always)]
    #[must_use]
    #[expect(unsafe_code, reason = "the caller knows how long it lasts")]
    pub unsafe fn here() -> Self {
        Self::at(Start::here())
    }

    /// In what a signal interrupted, or in a frame of this thread whose registers these are.
    ///
    /// # Safety
    ///
    /// The context is as [`backtrace_of`](crate::backtrace_of) takes it, and its frame is on
    /// the stack while the cursor is used.
    #[must_use]
    #[expect(unsafe_code, reason = "the caller knows what the context is")]
    pub unsafe fn of(context: &libc::ucontext_t) -> Self {
        // SAFETY: as the caller promises.
        Self::at(unsafe { Start::of(context) })
    }

    #[inline(never)]
    pub(crate) fn at(mut registers: Start) -> Self {
        let start = registers.pc();
        let guessed = Guessed::default();
        let mut memory = OwnMemory::new(start, &guessed);
        memory.of_stack(registers.sp(), Start::stack_pointer());
        let mut walker = walker(start, &guessed, None);
        let frames = walker.frames(registers.registers(), &mut memory);
        let end = || At::End { end: End::NotWalkable, is_complete: false };
        let at = frames.position().map_or_else(end, At::Frame);
        Self {
            at,
            start,
            is_guessed: false,
            is_asked: false,
            steps: 0,
            callers: [CallerFrame::NONE; AHEAD],
            known: 0,
            passed: 0,
            last: None,
            thread: PhantomData,
        }
    }

    /// The frame that it is in; `None` after the last one.
    #[must_use]
    pub fn frame(&self) -> Option<TraceFrame> {
        match self.caller() {
            Some(caller) => Some(caller.frame()),
            None => self.position().map(Position::frame),
        }
    }

    /// Where the frame's execution stands; `None` after the last one.
    #[must_use]
    #[inline]
    pub fn pc(&self) -> Option<FramePc> {
        match self.caller() {
            Some(caller) => Some(caller.pc()),
            None => self.position().map(Position::pc),
        }
    }

    /// The frame's stack pointer there; `None` after the last one. For a caller it is the CFA
    /// of the frame before.
    #[must_use]
    pub fn sp(&self) -> Option<u64> {
        match self.caller() {
            Some(caller) => Some(caller.sp(Machine::WORD)),
            None => self.position().map(Position::sp),
        }
    }

    /// Why there are no more frames, once there are none.
    #[must_use]
    pub const fn end(&self) -> Option<End> {
        match self.at {
            At::End { end, .. } => Some(end),
            At::Frame(_) => None,
        }
    }

    /// Whether its frames were all frames of the stack: `false` before the end.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        matches!(self.at, At::End { is_complete: true, .. })
    }

    /// The frame that it is in, if it has passed the position.
    #[inline]
    fn caller(&self) -> Option<&CallerFrame> {
        self.callers.get(self.passed.wrapping_sub(1))
    }

    const fn position(&self) -> Option<&Position<Registers>> {
        match &self.at {
            At::Frame(position) => Some(position),
            At::End { .. } => None,
        }
    }

    /// Continues to the caller; `false` if there is none, or after [`MAX_FRAMES`] frames.
    ///
    /// For signal handlers at any point, too. `errno` is kept.
    #[inline]
    pub fn step(&mut self) -> bool {
        if self.passed < self.known {
            self.passed = self.passed.wrapping_add(1);
            return true;
        }
        self.ask(Question::Caller);
        self.position().is_some()
    }

    /// A register of the frame by its DWARF number; `None` after the last frame, and where it
    /// is not known. In callers, only registers that calls preserve can be known.
    ///
    /// For signal handlers at any point, too. `errno` is kept.
    pub fn register(&mut self, register: DwarfReg) -> Option<u64> {
        self.is_asked = true;
        self.ask(Question::Register(register))
    }

    /// The range of the function's code, by its call frame information; `None` if it has none, or
    /// a guess has led to the frame.
    ///
    /// For signal handlers at any point, too. `errno` is kept.
    #[must_use]
    pub fn function(&self) -> Option<Range<u64>> {
        let addr = self.pc()?.lookup_addr().get();
        rows::function(self.start, &Guessed::new(self.is_guessed), addr)
    }

    /// The personality function, with which the language decides what becomes of an exception in this
    /// frame, and the language's data, both by the call frame information; `None` if the function has
    /// none.
    ///
    /// For signal handlers at any point, too. `errno` is kept.
    #[must_use]
    pub fn exception_handling(&self) -> Option<(u64, Option<u64>)> {
        let addr = self.pc()?.lookup_addr().get();
        let guessed = Guessed::new(self.is_guessed);
        let found = rows::exception_data(self.start, &guessed, addr)?;
        let mut memory = OwnMemory::new(self.start, &guessed);
        let personality = target(found.personality?, &mut memory)?;
        Some((personality, found.lsda.and_then(|lsda| target(lsda, &mut memory))))
    }

    /// Whether the frame is the C library's signal trampoline, whose caller is what the
    /// signal interrupted.
    ///
    /// For signal handlers at any point, too. `errno` is kept.
    #[must_use]
    pub fn is_signal_trampoline(&self) -> bool {
        let (Some(position), Some(pc)) = (self.position(), self.pc()) else { return false };
        // A row of a plain frame leads to the caller.
        if self.passed < self.known {
            return false;
        }
        let frame = FrameContext::new(pc, position.sp(), position.fp(), None);
        let guessed = Guessed::new(self.is_guessed);
        let mut memory = OwnMemory::new(self.start, &guessed);
        memory.of_stack(position.sp(), Start::stack_pointer());
        let row = RowSource::<Machine>::row(&mut SignalTrampolines, &frame, &mut memory);
        matches!(row, Ok(Some(row)) if row.is_signal())
    }

    /// Asks a walk that continues from the position, or from the last caller that is known of it.
    #[inline(never)]
    fn ask(&mut self, question: Question) -> Option<u64> {
        let At::Frame(position) = &mut self.at else { return None };
        // The position goes to where the cursor is.
        let (known, mut passed) = (take(&mut self.known), take(&mut self.passed));
        self.steps = self.steps.saturating_add(passed);
        if let Some(last) = take(&mut self.last)
            && passed == known
        {
            position.move_to(last);
            passed = 0;
        }
        let guessed = Guessed::new(self.is_guessed);
        let mut taken = if loads::count().is_some() { Taken::take() } else { None };
        let mut walker = walker(self.start, &guessed, taken.as_mut().map(Taken::rows));
        let mut memory = OwnMemory::new(self.start, &guessed);
        memory.of_stack(position.sp(), Start::stack_pointer());
        let addr = position.pc().lookup_addr();
        // The registers stay where they are.
        let mut frames = walker.resume(position.lend(), &mut memory);
        let mut room = match question {
            Question::Register(_) => passed,
            Question::Caller if self.is_asked => 1,
            Question::Caller => (MAX_FRAMES - 1).saturating_sub(self.steps).clamp(1, AHEAD),
        };
        let (mut found, mut answer) = (0, None);
        while room != 0 {
            found = frames.callers(self.callers.get_mut(..room).unwrap_or_default());
            room = match question {
                // However few steps are taken at once this time.
                Question::Register(_) => room.saturating_sub(found.max(1)),
                Question::Caller => 0,
            };
        }
        match question {
            Question::Register(register) => answer = frames.register(register),
            Question::Caller if found > 1 => {
                (self.known, self.passed, self.last) = (found, 1, frames.place());
                return None;
            }
            Question::Caller => self.steps = self.steps.saturating_add(1),
        }
        let (place, end, is_complete) = (frames.place(), frames.end(), frames.is_complete());
        self.is_guessed = guessed.is_set();
        let end = match place {
            Some(place) if self.steps < MAX_FRAMES => {
                position.move_to(place);
                return answer;
            }
            Some(_) => End::FrameLimit,
            None => end.map_or(End::NoRow, |end| end.with_fault(addr)),
        };
        self.at = At::End { end, is_complete: is_complete && is_whole(Some(end)) };
        answer
    }
}

/// What is asked of a walk.
#[derive(Clone, Copy, Debug)]
enum Question {
    /// To go to the caller of the frame.
    Caller,
    /// A register of the frame.
    Register(DwarfReg),
}

/// What a pointer in a table leads to.
#[inline(never)]
fn target(pointer: EncodedPointer, memory: &mut OwnMemory<'_>) -> Option<u64> {
    match pointer.is_indirect {
        true => memory.read_word(VirtAddr::new(pointer.addr), Machine::WORD).ok(),
        false => Some(pointer.addr),
    }
}

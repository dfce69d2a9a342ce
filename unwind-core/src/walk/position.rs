//! Where a walk stands, to continue it later.

use core::borrow::BorrowMut;
use core::fmt;

use crate::addr::FramePc;
use crate::arch::Arch;
use crate::end::End;
use crate::memory::Memory;
use crate::register::{BaseReg, DwarfReg, Registers as _};
use crate::return_addresses::ReturnAddresses;
use crate::source::RowSource;
use crate::trace::{Provenance, TraceFrame};
use crate::walk::cursor::Cursor;
use crate::walk::fast::row_cache::RowStore;
use crate::walk::frames::{Frames, RegistersOf};
use crate::walk::walker::Walker;

/// A frame, and what a walk needs to continue from it: plain values, which borrow nothing and
/// can lie in memory that someone else lends, such as a C program's cursor.
///
/// ```
/// use unwind_core::*;
/// # use core::convert::Infallible;
/// # #[derive(Clone, Copy, Debug)]
/// # struct Regs { pc: u64, sp: u64, fp: u64 }
/// # impl Registers for Regs {
/// #     fn pc(&self) -> u64 { self.pc }
/// #     fn sp(&self) -> u64 { self.sp }
/// #     fn fp(&self) -> Option<u64> { Some(self.fp) }
/// #     fn get(&self, _: DwarfReg) -> Option<u64> { None }
/// # }
/// # struct Toy;
/// # impl Arch for Toy {
/// #     type Regs = Regs;
/// #     const WORD: WordSize = WordSize::Eight;
/// # }
/// # #[derive(Clone, Copy)]
/// # struct FramePointers;
/// # impl RowSource<Toy> for FramePointers {
/// #     type Error = Infallible;
/// #     fn row<M: Memory>(
/// #         &mut self, _: &FrameContext<'_, Regs>, _: &mut M,
/// #     ) -> Result<Option<Row>, Infallible> {
/// #         Ok(Some(Row::frame_pointer(WordSize::Eight)))
/// #     }
/// # }
/// # let words = [0x1010_u64, 0x40_0123, 0, 0];
/// # let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
/// # let mut memory = SliceMemory::new(VirtAddr::new(0x1000), &stack);
/// let regs = Regs { pc: 0x40_0500, sp: 0x1000, fp: 0x1000 };
/// let mut walker = Walker::new(Toy, FramePointers);
/// let mut frames = walker.frames(regs, &mut memory);
/// frames.next();
/// let caller = frames.position().expect("a caller");
/// // Later, by another walker with the same sources.
/// let mut walker = Walker::new(Toy, FramePointers);
/// let frames = walker.resume(caller, &mut memory);
/// assert_eq!(frames.map(|frame| frame.pc.addr().get()).collect::<Vec<_>>(), [0x40_0123]);
/// ```
#[derive(Clone, Copy)]
pub struct Position<R> {
    pub(super) next: Cursor,
    pub(super) registers: R,
    pub(super) registers_of: RegistersOf,
    pub(super) has_gap: bool,
}

impl<R> Position<R> {
    /// Where the frame's execution stands.
    #[must_use]
    pub const fn pc(&self) -> FramePc {
        self.next.pc
    }

    /// Its stack pointer there, a register value.
    #[must_use]
    pub const fn sp(&self) -> u64 {
        self.next.sp
    }

    /// Its frame pointer, a register value; `None` if that is not known.
    #[must_use]
    pub const fn fp(&self) -> Option<u64> {
        self.next.fp.value()
    }

    /// What a trace keeps of the frame.
    #[must_use]
    pub fn frame(&self) -> TraceFrame {
        TraceFrame::new(self.next.pc.addr(), self.next.provenance)
    }

    /// How the frame was found.
    #[must_use]
    pub const fn provenance(&self) -> Provenance {
        self.next.provenance
    }

    /// Goes to where the walk stands that the registers were [lent](Self::lend) to.
    pub const fn move_to(&mut self, place: Place) {
        Place { next: self.next, registers_of: self.registers_of, has_gap: self.has_gap } = place;
    }

    /// The same, with its registers lent to the walk that [resumes](Walker::resume) there.
    pub const fn lend(&mut self) -> Position<&mut R> {
        let Self { next, registers_of, has_gap, .. } = *self;
        Position { next, registers: &mut self.registers, registers_of, has_gap }
    }
}

/// Where a walk stands, to be continued with registers that are kept elsewhere.
#[derive(Clone, Copy)]
pub struct Place {
    next: Cursor,
    registers_of: RegistersOf,
    has_gap: bool,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for Position<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Position").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<A, S, F, T, C> Walker<A, S, F, T, C>
where
    A: Arch,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: ReturnAddresses,
    C: RowStore,
{
    /// Continues a walk of the same stack, which has not changed, from that frame on: it is
    /// the first that comes. There may be [as many](Self::max_frames) as in a new walk.
    pub fn resume<'w, M: Memory, R: BorrowMut<A::Regs>>(
        &'w mut self,
        at: Position<R>,
        mem: &'w mut M,
    ) -> Frames<'w, A, S, F, T, C, M, R> {
        self.begin();
        let Position { next, registers, registers_of, has_gap } = at;
        let left = self.most_frames();
        let (next, end) = match left {
            0 => (None, Some(End::FrameLimit)),
            _ => (Some(next), None),
        };
        let (walker, table_errors) = (self, 0);
        Frames { walker, mem, next, registers, registers_of, has_gap, left, table_errors, end }
    }
}

impl<A, S, F, T, C, M, R> Frames<'_, A, S, F, T, C, M, R>
where
    A: Arch,
    R: BorrowMut<A::Regs>,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: ReturnAddresses,
    C: RowStore,
    M: Memory,
{
    /// Where the walk stands: at the frame that comes next. `None` if none does.
    #[must_use]
    pub fn position(&self) -> Option<Position<A::Regs>> {
        let Self { registers_of, has_gap, .. } = *self;
        let registers = *self.registers.borrow();
        self.next.map(|next| Position { next, registers, registers_of, has_gap })
    }

    /// Where the walk stands, but for the registers, for a position that has [lent](Position::lend)
    /// them to it. `None` if no frame comes next.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        let Self { registers_of, has_gap, .. } = *self;
        self.next.map(|next| Place { next, registers_of, has_gap })
    }

    /// A register of the frame that comes next, where its execution stands; `None` if no
    /// frame comes, or its value cannot be told. Of callers those can be that calls preserve,
    /// where all frames before [tell how](RowSource::register_rules).
    ///
    /// Other registers than the stack and frame pointer may take a second walk up to the
    /// frame, which the next question of a frame after it continues.
    pub fn register(&mut self, register: DwarfReg) -> Option<u64> {
        let at = self.next?;
        if self.registers_of == RegistersOf::Next {
            return self.registers.borrow().get(register);
        }
        if Some(register) == A::SP {
            return Some(at.sp);
        }
        if Some(register) == A::FP {
            return at.fp.value();
        }
        self.recover(&at, BaseReg::Reg(register)).then(|| self.registers.borrow().get(register))?
    }
}

//! Who knows the row of a pc, and how several such sources are joined.

use core::convert::Infallible;

use crate::{Arch, FramePc, KeptRow, Memory, Row, ShortRow, VirtAddr};

/// What a source may look at to find the row of one frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameContext<'a, R> {
    /// Where the frame's execution stands.
    pub pc: FramePc,
    /// The stack pointer there.
    pub sp: u64,
    /// The frame pointer there, if known.
    pub fp: Option<u64>,
    /// All registers: of the first frame and of one that a signal interrupted.
    /// Of other frames only the pc, stack and frame pointer are known.
    pub registers: Option<&'a R>,
}

/// What is wrong with a table.
///
/// An error comes from [`Infallible`] so that a source that can fail joins
/// with those that cannot.
pub trait TableError: Copy + From<Infallible> {
    /// Whether nothing is wrong but that a part of the table is absent from
    /// the target's memory and may be there at another time.
    #[inline]
    fn is_not_resident(&self) -> bool {
        false
    }
}

impl TableError for Infallible {}

/// Finds the row that covers a pc.
///
/// It gets the target's memory too, since tables may live there, and the
/// instructions do. `&mut self` lets a cache be a source.
pub trait RowSource<A: Arch> {
    /// What is wrong with a malformed table.
    type Error: TableError;

    /// The row of all frames where that is one of a frame pointer,
    /// [`ShortRow::FRAME_POINTER`] or [`ShortRow::TRUSTED_FRAME_POINTER`]: a walk then
    /// follows the chain without asking.
    const CHAIN: Option<ShortRow> = None;

    /// Whether it covers no frame: a walk then does without it.
    const IS_EMPTY: bool = false;

    /// Returns the row for the frame, or `None` if this source does not cover
    /// its pc.
    ///
    /// # Errors
    ///
    /// The table's own error. "Not covered" is not an error.
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error>;

    /// Called before the first frame of a walk. A cache looks here whether its
    /// rows still hold.
    #[inline]
    fn begin(&mut self) {}

    /// The row for a lookup address, if it is at hand in its short form and
    /// depends on the address alone. It is the one that [`row`](Self::row)
    /// would return; `None` says nothing.
    ///
    /// `after` is the row of the frame's callee, so that a cache may expect the
    /// same caller as last time.
    #[inline]
    fn quick(&mut self, addr: VirtAddr, after: KeptRow) -> Option<KeptRow> {
        let _ = (addr, after);
        None
    }

    /// Looks up the row of a frame for which [`quick`](Self::quick) had none, so
    /// that it has it from now on. `false` says nothing: [`row`](Self::row) is
    /// asked then.
    #[inline]
    fn fetch<M: Memory>(&mut self, frame: &FrameContext<'_, A::Regs>, mem: &mut M) -> bool {
        let _ = (frame, mem);
        false
    }

    /// Called with a row of [`quick`](Self::quick) that asks for it: a cache
    /// remembers which rows are used.
    #[inline]
    fn used(&mut self, row: KeptRow) {
        let _ = row;
    }

    /// Called after so many rows of [`quick`](Self::quick) were stepped by, for
    /// a cache that counts.
    #[inline]
    fn answered(&mut self, count: usize) {
        let _ = count;
    }

    /// A number that changes whenever an answer given before may no longer be
    /// right: after a module came or went. Caches above ask it each time.
    #[inline]
    fn generation(&self) -> u64 {
        0
    }

    /// Asks `other` where this source has no row.
    ///
    /// An error of this source is returned, not papered over by `other`: see
    /// [`Walker::fallback`](crate::Walker::fallback) for going on after one.
    fn or<T>(self, other: T) -> Or<Self, T>
    where
        Self: Sized,
        T: RowSource<A>,
        T::Error: Into<Self::Error>,
    {
        Or { first: self, second: other }
    }
}

impl<A: Arch, S: RowSource<A> + ?Sized> RowSource<A> for &mut S {
    type Error = S::Error;
    const CHAIN: Option<ShortRow> = S::CHAIN;
    const IS_EMPTY: bool = S::IS_EMPTY;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        (**self).row(frame, mem)
    }

    #[inline]
    fn begin(&mut self) {
        (**self).begin();
    }

    #[inline]
    fn quick(&mut self, addr: VirtAddr, after: KeptRow) -> Option<KeptRow> {
        (**self).quick(addr, after)
    }

    #[inline]
    fn fetch<M: Memory>(&mut self, frame: &FrameContext<'_, A::Regs>, mem: &mut M) -> bool {
        (**self).fetch(frame, mem)
    }

    #[inline]
    fn used(&mut self, row: KeptRow) {
        (**self).used(row);
    }

    #[inline]
    fn answered(&mut self, count: usize) {
        (**self).answered(count);
    }

    #[inline]
    fn generation(&self) -> u64 {
        (**self).generation()
    }
}

/// Two sources, asked in turn. Made by [`RowSource::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<S, T> {
    first: S,
    second: T,
}

impl<A, S, T> RowSource<A> for Or<S, T>
where
    A: Arch,
    S: RowSource<A>,
    T: RowSource<A>,
    T::Error: Into<S::Error>,
{
    type Error = S::Error;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        // Returned as it is, so that it is not copied on the stack.
        let found = self.first.row(frame, mem);
        if !matches!(found, Ok(None)) {
            return found;
        }
        self.second.row(frame, mem).map_err(Into::into)
    }

    #[inline]
    fn begin(&mut self) {
        self.first.begin();
        self.second.begin();
    }

    #[inline]
    fn quick(&mut self, addr: VirtAddr, after: KeptRow) -> Option<KeptRow> {
        // What the first does not have at hand it may have all the same.
        self.first.quick(addr, after)
    }

    #[inline]
    fn fetch<M: Memory>(&mut self, frame: &FrameContext<'_, A::Regs>, mem: &mut M) -> bool {
        self.first.fetch(frame, mem)
    }

    #[inline]
    fn used(&mut self, row: KeptRow) {
        self.first.used(row);
    }

    #[inline]
    fn answered(&mut self, count: usize) {
        self.first.answered(count);
    }

    #[inline]
    fn generation(&self) -> u64 {
        // Each counts upwards, so the sum changes when either does.
        self.first.generation().wrapping_add(self.second.generation())
    }
}

/// A source without rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRows;

impl<A: Arch> RowSource<A> for NoRows {
    type Error = Infallible;
    const IS_EMPTY: bool = true;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(None)
    }
}

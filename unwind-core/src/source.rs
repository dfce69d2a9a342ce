//! Who knows the row of a pc, and how two such sources are joined.
//!
//! The cache is the walker's, not a source's. A source has one method, `row`, and a generation; if it
//! also had hooks for the fast walk, a wrapper of a source could forget one or get it wrong. Instead
//! the frame's context notes what a source looked at, whichever wrappers were asked on the way.

use core::cell::Cell;
use core::convert::Infallible;

use crate::addr::{FramePc, VirtAddr};
use crate::arch::Arch;
use crate::memory::Memory;
use crate::register_rules::RegisterRules;
use crate::row::Row;
use crate::table_error::TableError;

/// What a source may look at to find the row of one frame.
///
/// It notes whether more than the [lookup address](Self::lookup_addr) was looked at.
/// Only a row that was found without, or that there is none, may be kept for other frames with
/// that address, so a walk keeps nothing else, whichever sources were asked on the way. Code
/// in memory goes with its address.
#[derive(Debug)]
pub struct FrameContext<'a, R> {
    pc: FramePc,
    sp: u64,
    fp: Option<u64>,
    registers: Option<&'a R>,
    needs_more_than_addr: Cell<bool>,
}

impl<'a, R> FrameContext<'a, R> {
    /// A frame whose execution stands at `pc`, with this stack pointer, and frame pointer
    /// if that is known. `registers` are all registers, where they are known.
    #[inline]
    #[must_use]
    pub const fn new(pc: FramePc, sp: u64, fp: Option<u64>, registers: Option<&'a R>) -> Self {
        Self { pc, sp, fp, registers, needs_more_than_addr: Cell::new(false) }
    }

    /// The address that tables are searched for: the pc, or the last byte of the call
    /// before a return address.
    #[inline]
    #[must_use]
    pub const fn lookup_addr(&self) -> VirtAddr {
        self.pc.lookup_addr()
    }

    /// Where the frame's execution stands. Who needs to know whether the pc is exact, or
    /// what is in memory there, asks for it by this.
    ///
    /// What is found by a return address holds for all frames that return there: no frame is
    /// interrupted at the last byte of a call. What is found of an interrupted frame by this is
    /// not kept.
    #[inline]
    #[must_use]
    pub fn pc(&self) -> FramePc {
        if self.pc.is_exact() {
            self.needs_more_than_addr.set(true);
        }
        self.pc
    }

    /// Whether the frame was interrupted. What is found by this and by the code there is kept for
    /// all frames with that address: no caller has it.
    #[inline]
    #[must_use]
    pub const fn is_interrupted(&self) -> bool {
        self.pc.is_exact()
    }

    /// Says that what the source finds may be otherwise the next time, as where memory was
    /// absent: it is not kept.
    #[inline]
    pub fn may_change(&self) {
        self.needs_more_than_addr.set(true);
    }

    /// The stack pointer there.
    #[inline]
    #[must_use]
    pub fn sp(&self) -> u64 {
        self.needs_more_than_addr.set(true);
        self.sp
    }

    /// The frame pointer there, if known.
    #[inline]
    #[must_use]
    pub fn fp(&self) -> Option<u64> {
        self.needs_more_than_addr.set(true);
        self.fp
    }

    /// All registers: of the first frame and of one that a signal interrupted. Of
    /// other frames only the pc, stack and frame pointer are known to a source.
    #[inline]
    #[must_use]
    pub fn registers(&self) -> Option<&'a R> {
        self.needs_more_than_addr.set(true);
        self.registers
    }

    /// Whether an answer may be another one for another frame with this lookup address.
    #[inline]
    pub(crate) fn needs_more_than_addr(&self) -> bool {
        self.needs_more_than_addr.get()
    }
}

/// What is known of all rows of a source at once, so that a walk need not ask for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Coverage {
    /// Nothing: the source is asked for each frame.
    #[default]
    Unknown,
    /// It has no rows at all.
    Nothing,
    /// All frames have the [row of a frame pointer](Row::frame_pointer).
    FramePointer {
        /// Whether that is a [guess](Row::is_guess).
        is_guess: bool,
    },
}

impl Coverage {
    /// Whether all rows are the same.
    const fn is_of_all(self) -> bool {
        !matches!(self, Self::Unknown)
    }
}

/// What names the row of an address whatever address space its table is mapped in.
///
/// Programs share files, so their tables have the same rows at other addresses. Who keeps
/// rows for many address spaces keeps them by this, as
/// [`Walker::cache_by_key`](crate::Walker::cache_by_key) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// The table, by a number that the host gives it: the same in all address spaces, and
    /// never that of another table, also not of one that was there before.
    pub table: u64,
    /// How far the address lies above the table, in bytes, wrapping.
    pub offset: u64,
}

/// Finds the row that covers a pc.
///
/// It gets the target's memory too, since tables may live there, and the
/// instructions do. `&mut self` lets a source keep what it reads.
pub trait RowSource<A: Arch> {
    /// What is wrong with a malformed table.
    type Error: TableError;

    /// What is known of all its rows. A source that asks another one and changes
    /// answers, or leaves some out, has no reason to pass this on.
    const COVERAGE: Coverage = Coverage::Unknown;

    /// Whether [`row`](Self::row) looks at nothing but the
    /// [lookup address](FrameContext::lookup_addr): neither at the rest of the frame nor at
    /// memory. A walk then has neither for it, and asks from where its stack is read, which
    /// takes less time.
    const IS_BY_ADDR: bool = false;

    /// Returns the row for the frame, or `None` if this source does not cover
    /// its pc.
    ///
    /// What it needs of the frame it asks `frame` for: an answer that took nothing but
    /// the [lookup address](FrameContext::lookup_addr) is kept by a walk that has a
    /// [cache](crate::Walker::cache), for all frames with that address, until the
    /// [generation](Self::generation) changes.
    ///
    /// # Errors
    ///
    /// The table's own error. "Not covered" is not an error.
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error>;

    /// How the caller has the registers of which the frame's row says nothing; `None`, the
    /// default, if that is not known.
    ///
    /// A walk asks only where a later row needs such a register: then it goes the same way
    /// again, from the last frame of which all registers are known. So nothing of this is
    /// kept, and it may take longer than a row.
    ///
    /// # Errors
    ///
    /// As [`row`](Self::row). To a walk it is as if nothing were known.
    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, Self::Error> {
        let _ = (frame, mem);
        Ok(None)
    }

    /// A number that changes whenever an answer given before may no longer be
    /// right: after a module came or went. A walk asks for it once, when it begins.
    #[inline]
    fn generation(&self) -> u64 {
        0
    }

    /// What names the answer for a [lookup address](FrameContext::lookup_addr) in all
    /// address spaces: two addresses with the same key have the same row, none or the same
    /// error from this source, where the table can be read. `None`, the default, where the answer does not depend on a
    /// table alone, or the table has no number.
    ///
    /// [`or`](Self::or) has one where it has a single table to ask: the key of the first
    /// source if the second one's rows are all the same, and of the second if the first has
    /// no rows, both by their [`COVERAGE`](Self::COVERAGE).
    #[inline]
    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        let _ = addr;
        None
    }

    /// Asks `other` where this source has no row.
    ///
    /// An error of this source is returned, not papered over by `other`: see
    /// [`Walker::fallback`](crate::Walker::fallback) for continuing after one.
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
    const COVERAGE: Coverage = S::COVERAGE;
    const IS_BY_ADDR: bool = S::IS_BY_ADDR;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        (**self).row(frame, mem)
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, Self::Error> {
        (**self).register_rules(frame, mem)
    }

    #[inline]
    fn generation(&self) -> u64 {
        (**self).generation()
    }

    #[inline]
    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        (**self).row_key(addr)
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
    const IS_BY_ADDR: bool = S::IS_BY_ADDR && (T::IS_BY_ADDR || T::COVERAGE.is_of_all());

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

    /// Those of the first that knows them: it may be another one than has the row.
    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, Self::Error> {
        match self.first.register_rules(frame, mem) {
            Ok(None) => self.second.register_rules(frame, mem).map_err(Into::into),
            found => found,
        }
    }

    #[inline]
    fn generation(&self) -> u64 {
        // Each counts upwards, so the sum changes when either does.
        self.first.generation().wrapping_add(self.second.generation())
    }

    #[inline]
    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        match (S::COVERAGE, T::COVERAGE) {
            (Coverage::Nothing, _) => self.second.row_key(addr),
            (_, Coverage::Unknown) => None,
            _ => self.first.row_key(addr),
        }
    }
}

/// A source without rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Empty;

impl<A: Arch> RowSource<A> for Empty {
    type Error = Infallible;
    const COVERAGE: Coverage = Coverage::Nothing;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::no_regs::{NoRegs, Toy};

    /// Rows of the table with this number, which is at this address; of no table without.
    struct Table<const COVERAGE: u8>(Option<(u64, u64)>);

    impl<const COVERAGE: u8> RowSource<Toy> for Table<COVERAGE> {
        type Error = Infallible;
        const COVERAGE: Coverage = match COVERAGE {
            0 => Coverage::Unknown,
            1 => Coverage::Nothing,
            _ => Coverage::FramePointer { is_guess: true },
        };

        fn row<M: Memory>(
            &mut self,
            _: &FrameContext<'_, NoRegs>,
            _: &mut M,
        ) -> Result<Option<Row>, Infallible> {
            Ok(None)
        }

        fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
            let (table, at) = self.0?;
            Some(RowKey { table, offset: addr.get().wrapping_sub(at) })
        }
    }

    #[test]
    fn the_key_of_two_sources_is_that_of_the_only_one_with_a_table() {
        const TABLE: Option<(u64, u64)> = Some((7, 0x1000));
        const ADDR: VirtAddr = VirtAddr::new(0x1234);
        const KEY: Option<RowKey> = Some(RowKey { table: 7, offset: 0x234 });
        fn key<const A: u8, const B: u8>(
            first: Option<(u64, u64)>,
            second: Option<(u64, u64)>,
        ) -> Option<RowKey> {
            RowSource::<Toy>::row_key(
                &RowSource::<Toy>::or(Table::<A>(first), Table::<B>(second)),
                ADDR,
            )
        }
        assert_eq!([key::<0, 1>(TABLE, None), key::<0, 2>(TABLE, None)], [KEY; 2]);
        assert_eq!([key::<1, 0>(None, TABLE), key::<1, 2>(None, None)], [KEY, None]);
        // Where the first has no row, it is the table of the second that decides, or
        // something else.
        assert_eq!([key::<0, 0>(TABLE, None), key::<0, 0>(None, TABLE)], [None; 2]);
        assert_eq!([key::<0, 0>(TABLE, TABLE), key::<0, 2>(None, TABLE)], [None; 2]);
    }
}

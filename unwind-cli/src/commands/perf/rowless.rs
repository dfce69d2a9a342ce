//! Places of files that have no row, so that walks do not look for one again.

use unwind_core::{
    Arch, FrameContext, Memory, RegisterRules, Row, RowKey, RowKeys as _, RowSource,
};

use crate::commands::perf::recorded::RecordedKeys;

/// Places of files that the callers of frames are in and that have no row.
///
/// Code without tables is looked for in the tables and read each time a walk comes to it, which
/// takes longer than the rest of the walk. Whichever processes map a file, it stays as it is.
#[derive(Debug)]
pub(crate) struct RowlessPlaces(Box<[RowKey; RowlessPlaces::COUNT]>);

impl RowlessPlaces {
    /// How many are kept: one of each hash, the last one.
    const COUNT: usize = 4_096;

    /// The file that has no number.
    const NONE: RowKey = RowKey { table: 0, offset: 0 };

    pub(crate) fn new() -> Self {
        Self(Box::new([Self::NONE; Self::COUNT]))
    }

    /// Where a place is kept, if it is.
    fn slot(&mut self, place: RowKey) -> Option<&mut RowKey> {
        /// 2^64 by the golden ratio: the upper bits of products differ where numbers do.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let hash = place.offset.wrapping_add(place.table << 48).wrapping_mul(SPREAD);
        let at = usize::try_from(hash >> 32).ok()?.checked_rem(Self::COUNT)?;
        self.0.get_mut(at)
    }

    fn has(&mut self, place: RowKey) -> bool {
        self.slot(place).is_some_and(|slot| *slot == place)
    }

    fn add(&mut self, place: RowKey) {
        self.slot(place).into_iter().for_each(|slot| *slot = place);
    }
}

/// A source of rows whose answer follows from what a file has, and which is not asked again for
/// a place that had none.
///
/// Only frames that called others are remembered so: where a frame was interrupted differs from
/// sample to sample.
pub(crate) struct Remembered<'w, 's, S> {
    pub(crate) source: S,
    pub(crate) keys: RecordedKeys<'s>,
    pub(crate) places: &'w mut RowlessPlaces,
}

impl<S> Remembered<'_, '_, S> {
    /// The place of a frame.
    fn place<R>(&mut self, frame: &FrameContext<'_, R>) -> Option<RowKey> {
        let addr = frame.lookup_addr();
        let range = self.keys.find(addr)?;
        let inside = addr.get().wrapping_sub(range.text.start.get());
        Some(RowKey { offset: range.key.offset.wrapping_add(inside), ..range.key })
    }
}

impl<A: Arch, S: RowSource<A>> RowSource<A> for Remembered<'_, '_, S> {
    type Error = S::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        let place = self.place(frame);
        if place.is_some_and(|place| self.places.has(place)) && !frame.pc().is_exact() {
            return Ok(None);
        }
        let found = self.source.row(frame, mem);
        if let (Ok(None), Some(place)) = (&found, place)
            && !frame.pc().is_exact()
        {
            self.places.add(place);
        }
        found
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, Self::Error> {
        self.source.register_rules(frame, mem)
    }

    fn generation(&self) -> u64 {
        self.source.generation()
    }
}

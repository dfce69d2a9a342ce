//! A table at hand, as lookups see it.

use crate::{
    Error, Section, SectionOffset,
    fde::EntryBytes,
    index::Checkpoints,
    lookup::{Checkpoint, Source},
    search::Ascending,
};

/// A table at hand, by its index if there is one. The window is all rows.
pub(crate) struct AtHand<'s, 'a> {
    section: &'s Section<'a>,
    among: Option<Ascending>,
    /// Positions to indices, where they differ.
    order: Option<&'s [u32]>,
    checkpoints: Checkpoints<'s>,
}

/// An entry is not there. As many as the header says are, since the table was
/// opened.
pub(crate) struct Missing;

impl From<Missing> for Error {
    fn from(_: Missing) -> Self {
        Self::Truncated(SectionOffset(0))
    }
}

impl<'s, 'a> AtHand<'s, 'a> {
    /// The functions of the table that ascend, or all of it in any order.
    pub(crate) const fn new(section: &'s Section<'a>, among: Option<Ascending>) -> Self {
        Self { section, among, order: None, checkpoints: Checkpoints::NONE }
    }

    /// The same with what an index has.
    pub(crate) const fn by(self, order: Option<&'s [u32]>, checkpoints: Checkpoints<'s>) -> Self {
        Self { order, checkpoints, ..self }
    }
}

impl Source for AtHand<'_, '_> {
    type Fault = Missing;
    type Error = Error;

    fn among(&self) -> Option<Ascending> {
        self.among
    }

    fn entry(&mut self, position: u32) -> Result<(u32, EntryBytes), Missing> {
        let index = match self.order {
            None => position,
            Some(order) => {
                let at = usize::try_from(position).map_err(|_| Missing)?;
                *order.get(at).ok_or(Missing)?
            }
        };
        Ok((index, self.section.entry_bytes(self.section.version(), index).ok_or(Missing)?))
    }

    fn checkpoint(&self, index: u32, num_fres: u32, target: u32) -> Option<Checkpoint> {
        self.checkpoints.find(index, num_fres, target)
    }

    fn open(&mut self, fre_offset: u32) -> Result<Option<usize>, Missing> {
        let first = usize::try_from(fre_offset).ok();
        Ok(first.filter(|&first| first <= self.section.fres_bytes().len()))
    }

    fn window(&self) -> &[u8] {
        self.section.fres_bytes()
    }

    fn offset(&self, pos: usize) -> SectionOffset {
        self.section.offset_of(self.section.fres_bytes()).plus(pos)
    }

    fn slide(&mut self, _keep: usize) -> Result<bool, Missing> {
        Ok(false)
    }
}

//! The address space of a task: what should be where, and bringing it there
//! when it is needed.

use arrayvec::ArrayVec;

use super::frames::Frame;
use super::tables::{Entry, Tables};
use super::{PAGE, shootdown};
use crate::cpu;

/// What a part of an address space holds to begin with.
#[derive(Clone, Copy)]
pub(crate) enum Backing {
    /// Zeroes.
    Zero,
    /// The bytes of a program from this address on, then zeroes.
    Image { bytes: &'static [u8], addr: u64 },
}

/// A part of an address space, whole pages.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) writable: bool,
    pub(crate) backing: Backing,
}

/// How an absent page comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    /// At once.
    Zero,
    /// From the disk, which takes time.
    OnDisk,
}

/// There is nothing at the address, or memory is short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unmapped;

/// The address space of a task.
///
/// Nothing is present until it is touched, be it by the task, or by the walk
/// of its stack. [`evict`](Self::evict) makes everything absent again.
pub(crate) struct Space {
    tables: Tables,
    regions: ArrayVec<Region, 8>,
}

impl Space {
    /// A space of these regions; `None` if memory is short.
    pub(crate) fn new(regions: ArrayVec<Region, 8>) -> Option<Self> {
        Some(Self { tables: Tables::new()?, regions })
    }

    /// The physical address of the root table.
    pub(crate) const fn root(&self) -> u64 {
        self.tables.root()
    }

    fn region(&self, addr: u64) -> Option<&Region> {
        self.regions.iter().find(|region| (region.start..region.end).contains(&addr))
    }

    /// Says how the page that holds `addr` will come; `Ok(None)` if it is
    /// present.
    pub(crate) fn absent(&self, addr: u64, write: bool) -> Result<Option<Absent>, Unmapped> {
        let region = self.region(addr).filter(|region| region.writable || !write);
        let region = region.ok_or(Unmapped)?;
        let entry = self.tables.get(addr);
        Ok(if entry.as_page().is_some() {
            None
        } else if entry.as_swapped().is_some() || matches!(region.backing, Backing::Image { .. }) {
            Some(Absent::OnDisk)
        } else {
            Some(Absent::Zero)
        })
    }

    /// Makes the page that holds `addr` present.
    pub(crate) fn page_in(&mut self, addr: u64) -> Result<(), Unmapped> {
        let region = *self.region(addr).ok_or(Unmapped)?;
        let entry = self.tables.get(addr);
        if entry.as_page().is_some() {
            return Ok(());
        }
        let frame = Frame::allocate().ok_or(Unmapped)?;
        if let Some(slot) = entry.as_swapped() {
            frame.copy_from(slot);
            slot.free();
        } else if let Backing::Image { bytes, addr: start } = region.backing {
            load(frame, addr & !(PAGE - 1), bytes, start);
        }
        let entry = Entry::page(frame, region.writable);
        self.tables.set(addr, entry).ok_or(Unmapped)?;
        cpu::flush_page(addr);
        Ok(())
    }

    /// Makes all pages absent: those that may have changed are written out.
    /// Returns how many there were.
    pub(crate) fn evict(&mut self) -> u32 {
        let mut count = 0;
        self.replace_all(|entry, _| {
            let leaving = Entry::leaving(entry.as_page()?);
            count += 1;
            Some(leaving)
        });
        if count == 0 {
            return 0;
        }
        // A task that runs on another CPU writes to its pages, until that has answered.
        shootdown::flush_everywhere();
        self.replace_all(|entry, writable| {
            let frame = entry.as_leaving()?;
            let entry = if writable {
                // Without memory for a copy the page stays where it is.
                let slot = Frame::allocate().unwrap_or(frame);
                slot.copy_from(frame);
                if slot == frame {
                    return Some(Entry::swapped(frame));
                }
                Entry::swapped(slot)
            } else {
                Entry::NONE
            };
            frame.free();
            Some(entry)
        });
        count
    }

    /// Replaces the entries of pages for which `new` gives another one. It is told whether
    /// the page may be written.
    fn replace_all(&mut self, mut new: impl FnMut(Entry, bool) -> Option<Entry>) {
        for region in &self.regions {
            for addr in (region.start..region.end).step_by(PAGE as usize) {
                if let Some(entry) = new(self.tables.get(addr), region.writable) {
                    // The tables are there: the page was.
                    let _ = self.tables.set(addr, entry);
                }
            }
        }
    }

    /// A copy with pages of its own, for a fork; `None` if memory is short.
    pub(crate) fn fork(&self) -> Option<Self> {
        let mut child = Self::new(self.regions.clone())?;
        for region in self.regions.iter().filter(|region| region.writable) {
            for addr in (region.start..region.end).step_by(PAGE as usize) {
                let entry = self.tables.get(addr);
                let Some(from) = entry.as_page().or(entry.as_swapped()) else { continue };
                let Some(copy) = Frame::allocate() else {
                    child.free();
                    return None;
                };
                copy.copy_from(from);
                let present = entry.as_page().is_some();
                let entry = if present { Entry::page(copy, true) } else { Entry::swapped(copy) };
                if child.tables.set(addr, entry).is_none() {
                    copy.free();
                    child.free();
                    return None;
                }
            }
        }
        Some(child)
    }

    /// Gives all memory back. No CPU may have it selected.
    pub(crate) fn free(mut self) {
        for region in self.regions.take() {
            for addr in (region.start..region.end).step_by(PAGE as usize) {
                let entry = self.tables.get(addr);
                if let Some(frame) = entry.as_page().or(entry.as_swapped()) {
                    frame.free();
                }
            }
        }
        self.tables.free();
    }
}

/// Fills the page at `page` with what an image that begins at `start` has
/// there.
fn load(frame: Frame, page: u64, bytes: &[u8], start: u64) {
    if page >= start {
        let skip = (page - start) as usize;
        frame.write(0, bytes.get(skip..).unwrap_or_default());
    } else {
        frame.write((start - page) as usize, bytes);
    }
}

//! Where the FDE of an address is, in sections without a search table.

use core::fmt;

use crate::{
    entry::{Cie, Entries},
    error::CfiError,
};

/// An FDE: where its code starts and where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexEntry {
    /// Address of the first byte of its code.
    pub(crate) start: u64,
    /// Offset of the FDE in the section.
    pub(crate) at: u64,
}

impl IndexEntry {
    /// The FDE about an address as the section counts, by looking at one after another: an index
    /// of a short section, such as a JIT compiler makes for a function. Malformed entries are about
    /// nothing.
    #[must_use]
    pub fn find(mut entries: Entries<'_>, pc: u64) -> Option<Self> {
        let all = entries;
        loop {
            let Ok(fde) = entries.next_fde() else { continue };
            let fde = fde?;
            let Ok(body) = all.cie(fde.cie).and_then(|cie| all.body(&fde, &cie)) else { continue };
            if pc.checked_sub(body.start).is_some_and(|at| at < body.len) {
                return Some(Self { start: body.start, at: fde.at });
            }
        }
    }

    /// Address of the first byte of the FDE's code.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Offset of the FDE in the section, in bytes.
    #[must_use]
    pub const fn at(&self) -> u64 {
        self.at
    }
}

/// The slots that were lent are too few for the FDEs of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFewSlots {
    /// How many FDEs there are.
    pub needed: usize,
}

impl fmt::Display for TooFewSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the index needs {} slots", self.needed)
    }
}

impl core::error::Error for TooFewSlots {}

/// Fills `slots` with the FDEs of a section, sorted by their code: an index for
/// [`CfiTable::with_index`](crate::CfiTable::with_index).
///
/// Entries that are malformed, about no code, or not about [code that the section was
/// told of](crate::CfiSection::code) are left out. It takes time for each entry of the
/// section, and for sorting them.
///
/// # Errors
///
/// [`TooFewSlots`] says how many there have to be.
pub fn index<'i>(
    mut entries: Entries<'_>,
    slots: &'i mut [IndexEntry],
) -> Result<&'i [IndexEntry], TooFewSlots> {
    let all = entries;
    let mut needed = 0_usize;
    // Most FDEs have the CIE of the one before.
    let mut last: Option<(u64, Result<Cie<'_>, CfiError>)> = None;
    loop {
        let fde = match entries.next_fde() {
            Ok(Some(fde)) => fde,
            Ok(None) => break,
            Err(_) => continue,
        };
        let cie = match last {
            Some((at, cie)) if at == fde.cie => cie,
            _ => all.cie(fde.cie),
        };
        last = Some((fde.cie, cie));
        let Ok(body) = cie.and_then(|cie| all.body(&fde, &cie)) else { continue };
        if body.len == 0 {
            continue;
        }
        if let Some(slot) = slots.get_mut(needed) {
            *slot = IndexEntry { start: body.start, at: fde.at };
        }
        needed = needed.saturating_add(1);
    }
    let Some(filled) = slots.get_mut(..needed) else { return Err(TooFewSlots { needed }) };
    unwind_core::sort::sort(filled, |a, b| a < b);
    Ok(filled)
}

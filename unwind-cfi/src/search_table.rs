//! `.eh_frame_hdr`: where the FDE of an address is, by bisection.
//!
//! Its layout is in the Linux Standard Base, "Exception Frames": a version, the encodings of
//! what follows, the address of `.eh_frame`, the number of entries, and of each entry the
//! start of its code and its FDE's address, ascending by the first.

use gimli::constants;

use crate::error::CfiError;

/// The bytes before the entries: version, three encodings, address, number.
pub(crate) const HEADER_LEN: usize = 12;

/// The bytes of an entry.
pub(crate) const ENTRY_LEN: usize = 8;

/// What the header of a search table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SearchHeader {
    /// The address of `.eh_frame`.
    pub(crate) eh_frame: u64,
    /// How many entries there are.
    pub(crate) count: u32,
}

impl SearchHeader {
    /// Reads the header of a table that is at `addr`; `None` if it has no entries that can
    /// be searched: the encodings are others than those that linkers write.
    pub(crate) fn read(bytes: [u8; HEADER_LEN], addr: u64) -> Result<Option<Self>, CfiError> {
        let [version, frame, count, entries, a, b, c, d, e, f, g, h] = bytes;
        if version != 1 {
            return Err(CfiError::SearchTableVersion(version));
        }
        let relative = constants::DW_EH_PE_pcrel.0 | constants::DW_EH_PE_sdata4.0;
        let from_table = constants::DW_EH_PE_datarel.0 | constants::DW_EH_PE_sdata4.0;
        if (frame, count, entries) != (relative, constants::DW_EH_PE_udata4.0, from_table) {
            return Ok(None);
        }
        let distance = i32::from_le_bytes([a, b, c, d]);
        Ok(Some(Self {
            eh_frame: addr.wrapping_add(4).wrapping_add_signed(distance.into()),
            count: u32::from_le_bytes([e, f, g, h]),
        }))
    }
}

/// An entry: where code starts and where its FDE is, each as a distance from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SearchEntry {
    pub(crate) start: i32,
    pub(crate) fde: i32,
}

impl SearchEntry {
    pub(crate) const fn read(bytes: [u8; ENTRY_LEN]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        let [start, fde] = [[a, b, c, d], [e, f, g, h]];
        Self { start: i32::from_le_bytes(start), fde: i32::from_le_bytes(fde) }
    }
}

/// The search table of a loaded object, borrowed as bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchTable<'a> {
    entries: &'a [[u8; ENTRY_LEN]],
    addr: u64,
    pub(crate) eh_frame: u64,
}

impl<'a> SearchTable<'a> {
    /// The table in `bytes`, which are at `addr`; `None` as of [`SearchHeader::read`].
    pub(crate) fn new(bytes: &'a [u8], addr: u64) -> Result<Option<Self>, CfiError> {
        let truncated = CfiError::SearchTableTruncated;
        let (header, entries) = bytes.split_first_chunk().ok_or(truncated)?;
        let Some(header) = SearchHeader::read(*header, addr)? else { return Ok(None) };
        let (entries, _) = entries.as_chunks();
        let count = usize::try_from(header.count).map_err(|_| truncated)?;
        let entries = entries.get(..count).ok_or(truncated)?;
        Ok(Some(Self { entries, addr, eh_frame: header.eh_frame }))
    }

    /// The address of the FDE with the last start that is not above `pc`.
    pub(crate) fn find(&self, pc: u64) -> Option<u64> {
        let distance = pc.wrapping_sub(self.addr).cast_signed();
        let is_below =
            |entry: &[u8; ENTRY_LEN]| i64::from(SearchEntry::read(*entry).start) <= distance;
        let after = self.entries.partition_point(is_below);
        let entry = SearchEntry::read(*self.entries.get(after.checked_sub(1)?)?);
        Some(self.addr.wrapping_add_signed(entry.fde.into()))
    }
}

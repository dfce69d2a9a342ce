//! The bytes of a section: header, function table, rows.

use crate::sign::{Signed, Unsigned};
use alloc::vec::Vec;

use crate::{
    format::{
        bytes::Endian,
        flags::Flags,
        header::{Header, MAGIC, Version},
    },
    write::{
        builder::{Builder, BuiltFunction},
        encode::put,
        lost::{Omission, OmissionReason, WriteError},
    },
};

impl Builder {
    /// The bytes of the section. `addr` is where the section is linked or loaded, in the same
    /// address space as the code. If it is part of no file, choose any address within 2 GiB of the
    /// code, such as that of `.eh_frame`, and give readers the same address plus the bias of the code.
    ///
    /// Functions are sorted by their distance from `addr`, as lookups search
    /// them: those less than 2^63 bytes before it come first, also where the
    /// address space wraps. Of two that overlap the shorter stays,
    /// of two equally long ones the one that was added first; the other is handed
    /// to `lost` and gone from then on. A function that is too far from the section, in V3
    /// one that is half an address space away, is handed to it too, and stays: this may be
    /// called again for another place.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfMemory`], and [`WriteError::TooLarge`] if there are
    /// more rows than the header can count.
    pub fn finish(
        &mut self,
        addr: u64,
        mut lost: impl FnMut(Omission),
    ) -> Result<Vec<u8>, WriteError> {
        self.sort();
        self.drop_overlaps(&mut lost);
        let place = Place { builder: self, addr };
        let header = place.header(|entry| {
            let reason = OmissionReason::TooFar;
            lost(Omission::new(entry.start, entry.start, entry.size.into(), reason));
        })?;
        place.write(&header)
    }

    fn sort(&mut self) {
        if !self.sorted {
            // One number, so that a comparison has no branch.
            let key =
                |entry: &BuiltFunction| u128::from(entry.start) << 32 | u128::from(entry.order);
            self.entries.sort_unstable_by_key(key);
            self.sorted = true;
        }
    }

    /// Leaves entries whose ranges do not overlap, which a search by bisection
    /// relies on.
    fn drop_overlaps(&mut self, lost: &mut impl FnMut(Omission)) {
        self.entries.dedup_by(|entry, kept| {
            if entry.start.wrapping_sub(kept.start) >= kept.size.into() {
                return false;
            }
            let keeps = (kept.size, kept.order) <= (entry.size, entry.order);
            let (winner, loser) = if keeps { (*kept, *entry) } else { (*entry, *kept) };
            // What starts later cannot reach back to the entry before `kept`.
            *kept = winner;
            let reason = OmissionReason::Overlap { other: winner.start };
            lost(Omission::new(loser.start, loser.start, loser.size.into(), reason));
            true
        });
    }
}

/// A table at an address.
struct Place<'a> {
    builder: &'a Builder,
    addr: u64,
}

/// The counts of the header.
struct Counts {
    fdes: u32,
    fres: u32,
    fre_len: u32,
}

impl Place<'_> {
    /// Whether the start of `entry` fits its field wherever in the table it
    /// comes to be.
    fn is_near(&self, entry: &BuiltFunction) -> bool {
        let distance = entry.start.wrapping_sub(self.addr).signed();
        if self.builder.format.version() == Version::V3 {
            // Lookups compare distances, which end half an address space away.
            return distance.checked_add(entry.size.saturating_sub(1).into()).is_some();
        }
        let table = self.builder.entries.len().saturating_mul(Version::V2.fde_size());
        let table = i64::try_from(table.saturating_add(Header::SIZE)).unwrap_or(i64::MAX);
        let field = if self.builder.format.is_pcrel() { table } else { 0 };
        i32::try_from(distance).is_ok() && i32::try_from(distance.saturating_sub(field)).is_ok()
    }

    fn header(&self, mut too_far: impl FnMut(&BuiltFunction)) -> Result<Counts, WriteError> {
        let mut counts = Counts { fdes: 0, fres: 0, fre_len: 0 };
        for entry in &self.builder.entries {
            if !self.is_near(entry) {
                too_far(entry);
                continue;
            }
            let bytes = entry.rows_len.checked_add(self.builder.attribute_size());
            counts = Counts {
                fdes: counts.fdes.checked_add(1).ok_or(WriteError::TooLarge)?,
                fres: counts.fres.checked_add(entry.num_fres).ok_or(WriteError::TooLarge)?,
                fre_len: bytes
                    .and_then(|bytes| counts.fre_len.checked_add(bytes))
                    .ok_or(WriteError::TooLarge)?,
            };
        }
        Ok(counts)
    }

    fn write(&self, counts: &Counts) -> Result<Vec<u8>, WriteError> {
        let builder = self.builder;
        let version = builder.format.version();
        let fde_size = u32::try_from(version.fde_size()).unwrap_or_default();
        let fdes_len = counts.fdes.checked_mul(fde_size).ok_or(WriteError::TooLarge)?;
        let len = usize::try_from(fdes_len)
            .ok()
            .and_then(|len| len.checked_add(usize::try_from(counts.fre_len).ok()?))
            .and_then(|len| len.checked_add(Header::SIZE))
            .ok_or(WriteError::TooLarge)?;
        let mut out = Out { bytes: Vec::new(), builder };
        out.bytes.try_reserve_exact(len)?;
        let pcrel = if builder.format.is_pcrel() { Flags::PCREL } else { Flags::empty() };
        out.u16(MAGIC);
        out.u8(version.number());
        out.u8(Flags::SORTED.union(pcrel).bits());
        out.u8(builder.encoder.abi.id());
        out.u8(0); // the FP is not at a fixed offset
        out.u8(builder.encoder.fixed_ra.unwrap_or(0).unsigned());
        out.u8(0); // no auxiliary header
        out.u32(counts.fdes);
        out.u32(counts.fres);
        out.u32(counts.fre_len);
        out.u32(0); // the function table is right after the header
        out.u32(fdes_len); // and the rows after that
        let mut rows_at = 0_u32;
        for entry in self.entries() {
            let field = u64::try_from(out.bytes.len()).unwrap_or_default();
            let field = if builder.format.is_pcrel() { field } else { 0 };
            let start = entry.start.wrapping_sub(self.addr).wrapping_sub(field);
            out.entry(entry, start, rows_at);
            rows_at = rows_at
                .saturating_add(entry.rows_len)
                .saturating_add(self.builder.attribute_size());
        }
        for entry in self.entries() {
            out.rows(entry);
        }
        Ok(out.bytes)
    }

    /// The entries that the table has, in its order.
    fn entries(&self) -> impl Iterator<Item = &BuiltFunction> {
        // Distances are signed, so the lowest one is half an address space away.
        let lowest = self.addr.wrapping_add(1 << 63);
        let entries = self.builder.entries.as_slice();
        let first = entries.partition_point(|entry| entry.start < lowest);
        let (after, before) = entries.split_at_checked(first).unwrap_or((entries, &[]));
        before.iter().chain(after).filter(|entry| self.is_near(entry))
    }
}

/// The bytes so far, with room for all.
struct Out<'a> {
    bytes: Vec<u8>,
    builder: &'a Builder,
}

impl Out<'_> {
    fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.put(value.into(), 2);
    }

    fn u32(&mut self, value: u32) {
        self.put(value, 4);
    }

    fn put(&mut self, value: u32, size: usize) {
        let mut bytes = [0; 4];
        put(&mut bytes, 0, value, size, self.builder.encoder.endian);
        self.bytes.extend_from_slice(bytes.get(..size).unwrap_or_default());
    }

    /// An entry of the function table. `start` is the value of its field.
    fn entry(&mut self, entry: &BuiltFunction, start: u64, rows_at: u32) {
        let (low, high) = (start & u64::from(u32::MAX), start >> 32);
        let [low, high] = [low, high].map(|half| u32::try_from(half).unwrap_or_default());
        let words = match (self.builder.format.version(), self.builder.encoder.endian) {
            (Version::V3, Endian::Little) => [low, high, entry.size, rows_at],
            (Version::V3, Endian::Big) => [high, low, entry.size, rows_at],
            _ => [low, entry.size, rows_at, entry.num_fres],
        };
        self.words(words);
        if self.builder.format.version() != Version::V3 {
            self.bytes.extend_from_slice(&[entry.info, entry.rep_size, 0, 0]);
        }
    }

    /// Words of four bytes.
    fn words(&mut self, words: [u32; 4]) {
        let words = match self.builder.encoder.endian {
            Endian::Little => words.map(u32::to_le_bytes),
            Endian::Big => words.map(u32::to_be_bytes),
        };
        self.bytes.extend_from_slice(words.as_flattened());
    }

    /// An entry's rows, in V3 after its attribute.
    fn rows(&mut self, entry: &BuiltFunction) {
        if self.builder.format.version() == Version::V3 {
            // An entry of more rows was split.
            let count = u16::try_from(entry.num_fres).unwrap_or(u16::MAX);
            let [first, second] = match self.builder.encoder.endian {
                Endian::Little => count.to_le_bytes(),
                Endian::Big => count.to_be_bytes(),
            };
            let attribute = [first, second, entry.info, entry.info2, entry.rep_size];
            self.bytes.extend_from_slice(&attribute);
        }
        let part = |at: u32, len: u32| {
            let at = usize::try_from(at).ok()?;
            self.builder.fres.get(at..)?.get(..usize::try_from(len).ok()?)
        };
        let rows = part(entry.rows_at, entry.rows_len).unwrap_or_default();
        self.bytes.extend_from_slice(rows);
    }
}

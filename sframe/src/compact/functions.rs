//! Rows of SFrame tables.

use alloc::vec::Vec;
use core::{num::NonZeroU64, ops::Range};

use unwind_core::Row;

use crate::{
    compact::{
        builder::CompactBuilder, format::MAX_ADDR, omission::CompactOmissionReason, overlay::Layers,
    },
    format::flags::Flags,
    read::{section::Section, table::Table},
    write::{
        lost::{OmissionReason, WriteError},
        merge::{Violation, copy},
    },
};

/// Addresses for which a lookup looks at the rows of a function.
#[derive(Clone, Copy)]
struct Part {
    function: u32,
    start: u64,
    end: u64,
}

impl CompactBuilder {
    /// Adds the rows of all tables of a section, each for the addresses for which
    /// [`Section::find`] finds it. The section has to be [at](Section::at) its address in the file.
    ///
    /// A function that is malformed anywhere has no rows, nor have functions that make more of their
    /// rows than 16 for each byte of rows (and 65,536 in any case). Nothing is added from the first table
    /// on whose header is malformed, that says that its functions ascend if they do not, or that is at an
    /// address of 2^48 or more itself.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfMemory`] and [`WriteError::TooLarge`]; some rows have been added then.
    pub fn add_section(&mut self, section: &Section<'_>) -> Result<(), WriteError> {
        for table in section.tables() {
            let table = table.ok();
            if !table.map_or(Ok(false), |table| self.add_table(&table))? {
                self.count(CompactOmissionReason::Malformed, 0);
                break;
            }
        }
        Ok(())
    }

    /// False if it is not known what a lookup finds in the table.
    fn add_table(&mut self, table: &Table<'_>) -> Result<bool, WriteError> {
        for code in functions(table) {
            let inside = code.addresses(table);
            let inside = inside.end.saturating_sub(inside.start);
            let outside = u64::from(code.size).saturating_sub(inside);
            if outside != 0 {
                self.count(CompactOmissionReason::Address, outside);
            }
        }
        if table.addr() > MAX_ADDR {
            return Ok(false);
        }
        let is_sorted = table.header().flags.contains(Flags::SORTED);
        let parts = if is_sorted { sorted_parts(table)? } else { Some(scanned_parts(table)?) };
        let Some(mut parts) = parts else { return Ok(false) };
        parts.sort_unstable_by_key(|part| (part.function, part.start));
        let mut rows = Vec::new();
        let mut left = table.max_rows();
        for parts in parts.chunk_by(|a, b| a.function == b.function) {
            self.add_function(table, parts, &mut rows, &mut left)?;
        }
        Ok(true)
    }

    /// Adds the parts of one function. Takes the rows that its own are copied to off `left`.
    fn add_function(
        &mut self,
        table: &Table<'_>,
        parts: &[Part],
        rows: &mut Vec<(u32, Row)>,
        left: &mut u64,
    ) -> Result<(), WriteError> {
        let Some(first) = parts.first() else { return Ok(()) };
        let fde = table.fde(first.function).map_err(Violation::from);
        let Some(fde) = fde.transpose() else { return Ok(()) };
        let copied = fde.and_then(|fde| Ok((fde.range.start, copy(table, &fde, rows, left)?)));
        let (start, block_size) = match copied {
            Ok((start, function)) => (start, function.block_size),
            Err(Violation::Write(error)) => return Err(error),
            Err(Violation::Omission(reason)) => {
                let reason = match reason {
                    OmissionReason::SharedRows => CompactOmissionReason::SharedRows,
                    _ => CompactOmissionReason::Malformed,
                };
                return parts.iter().try_for_each(|part| self.omit(part.start..part.end, reason));
            }
        };
        // Of none each block would be looked at.
        let parts = if rows.is_empty() { &[] } else { parts };
        for &Part { start: from, end, .. } in parts {
            let Some(size) = block_size.map(NonZeroU64::from) else {
                self.add_rows(start, rows, from..end)?;
                continue;
            };
            let mut from = from;
            while from < end {
                let count = u64::try_from(rows.len()).unwrap_or(u64::MAX);
                let Some(rest) = left.checked_sub(count) else {
                    self.omit(from..end, CompactOmissionReason::SharedRows)?;
                    break;
                };
                *left = rest;
                let inside = from.wrapping_sub(start) % size;
                let block = from.wrapping_sub(inside);
                let block_end = from.saturating_add(size.get().saturating_sub(inside)).min(end);
                self.add_rows(block, rows, from..block_end)?;
                from = block_end;
            }
        }
        Ok(())
    }

    /// Adds rows that count from `base`, as far as they are in `part`.
    fn add_rows(
        &mut self,
        base: u64,
        rows: &[(u32, Row)],
        part: Range<u64>,
    ) -> Result<(), WriteError> {
        let from = part.start.wrapping_sub(base);
        let to = part.end.wrapping_sub(base);
        let first = rows.partition_point(|(at, _)| u64::from(*at) <= from).saturating_sub(1);
        let mut rows = rows.get(first..).unwrap_or_default().iter().peekable();
        while let Some((at, row)) = rows.next_if(|(at, _)| u64::from(*at) < to) {
            let end = rows.peek().map_or(to, |(next, _)| to.min(u64::from(*next)));
            let start = from.max(u64::from(*at));
            self.add(base.wrapping_add(start)..base.wrapping_add(end), row)?;
        }
        Ok(())
    }
}

/// The code of a function: where it starts and ends, in bytes from the table.
#[derive(Clone, Copy)]
struct Code {
    start: i64,
    size: u32,
}

impl Code {
    fn end(self) -> i64 {
        self.start.saturating_add_unsigned(self.size.into())
    }

    /// The addresses that an image can have.
    fn addresses(self, table: &Table<'_>) -> Range<u64> {
        addresses(table, self.start..self.end())
    }
}

/// The code of each function, in the order of the table.
fn functions(table: &Table<'_>) -> impl Iterator<Item = Code> {
    let entries = (0..table.header().num_fdes).map_while(|index| table.entry(index));
    entries.map(|(start, entry)| Code { start, size: entry.size })
}

/// A range in bytes from the table as addresses, as far as an image can have them. It has none of a table
/// that is outside of them itself, from which distances may wrap.
fn addresses(table: &Table<'_>, range: Range<i64>) -> Range<u64> {
    let table = table.addr();
    let Some(table) = i64::try_from(table).ok().filter(|_| table <= MAX_ADDR) else { return 0..0 };
    let address = |distance: i64| {
        u64::try_from(table.saturating_add(distance)).unwrap_or_default().min(MAX_ADDR)
    };
    address(range.start)..address(range.end)
}

/// The parts of a table whose functions ascend, by which a lookup bisects; `None` if they do not.
///
/// It looks at the last function that starts at or before an address. If the address is after its end, it
/// looks at the one before that, too, if that starts there as well, and in place of functions of size
/// zero.
fn sorted_parts(table: &Table<'_>) -> Result<Option<Vec<Part>>, WriteError> {
    let mut parts = Vec::new();
    // Those that are looked at, the first one last. Each ends before the one that is looked at after
    // it.
    let mut open: Vec<(i64, u32)> = Vec::new();
    let mut at = i64::MIN;
    let last = Code { start: i64::MAX, size: 0 };
    for (function, code) in (0_u32..).zip(functions(table).chain([last])) {
        // From the entry of a function, too, distances have to ascend.
        let is_near = code.start.checked_sub(1 << 33).is_some();
        if code.start < at || !is_near {
            return Ok(None);
        }
        let is_neighbour = code.start == at && function != 0;
        while let Some(&(end, function)) = open.last() {
            let range = addresses(table, at..end.min(code.start));
            if !range.is_empty() {
                parts.try_reserve(1)?;
                parts.push(Part { function, start: range.start, end: range.end });
            }
            at = at.max(end.min(code.start));
            if end > code.start {
                break;
            }
            open.pop();
        }
        at = code.start;
        if code.size == 0 {
            continue;
        }
        if !is_neighbour {
            open.clear();
        }
        while open.last().is_some_and(|(end, _)| *end <= code.end()) {
            open.pop();
        }
        open.try_reserve(1)?;
        open.push((code.end(), function));
    }
    Ok(Some(parts))
}

/// The parts of any other table: the first function that covers an address is found.
fn scanned_parts(table: &Table<'_>) -> Result<Vec<Part>, WriteError> {
    let mut layers = Layers::new();
    for (function, code) in (0_u32..).zip(functions(table)) {
        layers.push(code.addresses(table), function)?;
    }
    let mut parts = Vec::new();
    layers.overlay(|range, function| {
        parts.try_reserve(1)?;
        parts.push(Part { function, start: range.start, end: range.end });
        Ok(())
    })?;
    Ok(parts)
}

//! Rows of SFrame tables.

use alloc::vec::Vec;
use core::{num::NonZeroU64, ops::Range};

use unwind_core::Row;

use crate::{
    compact::{
        builder::CompactBuilder, format::MAX_ADDR, omission::CompactOmissionReason, overlay::Layers,
    },
    format::{fde::FuncRange, flags::Flags},
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
    /// rows than 16 for each byte of rows (and 65,536 in any case).
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfMemory`] and [`WriteError::TooLarge`]; some rows have been added then.
    pub fn add_section(&mut self, section: &Section<'_>) -> Result<(), WriteError> {
        for table in section.tables() {
            match table {
                Ok(table) => self.add_table(&table)?,
                Err(_) => self.count(CompactOmissionReason::Malformed, 0),
            }
        }
        Ok(())
    }

    fn add_table(&mut self, table: &Table<'_>) -> Result<(), WriteError> {
        for range in ranges(table) {
            let inside = addresses(range);
            let inside = inside.end.saturating_sub(inside.start);
            let outside = u64::from(range.size).saturating_sub(inside);
            if outside != 0 {
                self.count(CompactOmissionReason::Address, outside);
            }
        }
        let is_sorted = table.header().flags.contains(Flags::SORTED);
        let mut parts = if is_sorted { sorted_parts(table) } else { scanned_parts(table) }?;
        parts.sort_unstable_by_key(|part| (part.function, part.start));
        let mut rows = Vec::new();
        let mut left = table.max_rows();
        for parts in parts.chunk_by(|a, b| a.function == b.function) {
            self.add_function(table, parts, &mut rows, &mut left)?;
        }
        Ok(())
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
        let mut rows = rows.iter().peekable();
        while let Some((at, row)) = rows.next() {
            let end = rows.peek().map_or(to, |(next, _)| to.min(u64::from(*next)));
            let start = from.max(u64::from(*at));
            if start < end {
                self.add(base.wrapping_add(start)..base.wrapping_add(end), row)?;
            }
        }
        Ok(())
    }
}

/// The code of each function, in the order of the table.
fn ranges(table: &Table<'_>) -> impl Iterator<Item = FuncRange> {
    (0..table.header().num_fdes).map_while(|index| table.range(index))
}

/// The addresses of a function that an image can have.
fn addresses(range: FuncRange) -> Range<u64> {
    let end = range.start.wrapping_add(range.size.into());
    // Where the address space ends inside it, those after that.
    let start = if end < range.start { 0 } else { range.start };
    start.min(MAX_ADDR)..end.min(MAX_ADDR)
}

/// The parts of a table that is searched by bisection: between any two ends of functions it finds
/// the same one for each address.
fn sorted_parts(table: &Table<'_>) -> Result<Vec<Part>, WriteError> {
    let mut ends = Vec::new();
    // Distances from the table change their sign here.
    let far = table.addr().wrapping_add(1 << 63);
    let functions = ranges(table).flat_map(|range| {
        let end = range.start.wrapping_add(range.size.into());
        [range.start, end]
    });
    for end in functions.chain([0, far, MAX_ADDR]).filter(|end| *end <= MAX_ADDR) {
        ends.try_reserve(1)?;
        ends.push(end);
    }
    ends.sort_unstable();
    ends.dedup();
    let mut parts: Vec<Part> = Vec::new();
    for pair in ends.windows(2) {
        let &[start, end] = pair else { continue };
        let Some(function) = table.find_sorted(start) else { continue };
        match parts.last_mut() {
            Some(last) if last.function == function && last.end == start => last.end = end,
            _ => {
                parts.try_reserve(1)?;
                parts.push(Part { function, start, end });
            }
        }
    }
    Ok(parts)
}

/// The parts of any other table: the first function that covers an address is found.
fn scanned_parts(table: &Table<'_>) -> Result<Vec<Part>, WriteError> {
    let mut layers = Layers::new();
    for (function, range) in (0_u32..).zip(ranges(table)) {
        layers.push(addresses(range), function)?;
    }
    let mut parts = Vec::new();
    layers.overlay(|range, function| {
        parts.try_reserve(1)?;
        parts.push(Part { function, start: range.start, end: range.end });
        Ok(())
    })?;
    Ok(parts)
}

//! Rows of call frame information.

use core::ops::Range;

use unwind_cfi::{CfiAbi, CfiError, CfiSection, NoRow, Step};
use unwind_core::Row;

use crate::{
    cfi::{
        convert::{CfiConverter, CfiReport},
        parts::{Held, Parts},
    },
    compact::{builder::CompactBuilder, omission::CompactOmissionReason, rbx::Rbx},
    write::lost::WriteError,
};

impl CompactBuilder {
    /// Adds the rows of `.eh_frame` or `.debug_frame`, as lookups find them
    /// ([`CfiTable::find_row`](unwind_cfi::CfiTable::find_row)). Functions that may return to where an
    /// exception is caught are [marked](Row::with_eh_return) as [`CfiConverter::eh_returns`] tells.
    ///
    /// Of FDEs about the same code the first one of the section holds. One of which nothing can be used is
    /// counted without its length. Code of repeated blocks, such as
    /// that of a linkage table, has at most 16 rows for each byte of the section, and 65,536 in any
    /// case.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfMemory`] and [`WriteError::TooLarge`]; some rows have been added then.
    ///
    /// # Example
    ///
    /// ```
    /// use sframe::{CfiAbi, CfiSection, CompactBuilder, CompactTable};
    /// use unwind_core::{CfaRule, RegRule, Row};
    ///
    /// let eh_frame = [
    ///     0x14, 0, 0, 0, 0, 0, 0, 0, // CIE of 20 bytes
    ///     1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, // code 1, data -8, RA 16, pc-relative
    ///     0x0c, 7, 8, 0x90, 1, 0, 0, // CFA = rsp+8, RA at CFA-8
    ///     0x10, 0, 0, 0, 0x1c, 0, 0, 0, // FDE of 16 bytes, CIE 28 bytes back
    ///     0xe0, 0x0f, 0, 0, 8, 0, 0, 0, // from 0x1000 on, 8 bytes
    ///     0, 0x44, 0x0e, 16, // 4 bytes on: CFA = rsp+16
    /// ];
    /// let mut builder = CompactBuilder::new();
    /// builder.add_cfi(CfiSection::eh_frame(&eh_frame, 0), CfiAbi::X86_64)?;
    /// let (image, omissions) = builder.finish()?;
    /// assert!(omissions.is_empty());
    ///
    /// let row = CompactTable::parse(&image)?.row(0x1004).expect("the FDE covers it");
    /// assert_eq!(row, Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::SameValue));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_cfi(
        &mut self,
        section: CfiSection<'_>,
        abi: CfiAbi,
    ) -> Result<CfiReport, WriteError> {
        let mut left = section.len().saturating_mul(16).max(0x1_0000);
        let mut converter = CfiConverter::of(section, abi);
        let mut parts = Parts::default();
        while converter.next_parts(&mut parts, &mut |range, held, rbx| match held {
            Held::Row(row) => self.add_row(range, &row, rbx),
            Held::Loads(row, loads) => self.add_row_by_loads(range, (&row, loads), rbx),
            Held::No(NoRow::Blocks(before, after, step)) => {
                self.add_blocks(range, [before, after], rbx, step, &mut left)
            }
            // An entry about no code.
            Held::No(NoRow::Error(CfiError::Empty)) => Ok(()),
            Held::No(NoRow::Error(error)) => {
                let reason = match error.is_fault() {
                    true => CompactOmissionReason::Malformed,
                    false => CompactOmissionReason::NoRow,
                };
                self.omit(range, reason)
            }
        })? {}
        Ok(converter.report())
    }

    /// Adds code in which each block has a row for its first part and another for the rest. Takes the
    /// rows off `left`.
    fn add_blocks(
        &mut self,
        range: Range<u64>,
        [before, after]: [Row; 2],
        rbx: Rbx,
        step: Step,
        left: &mut usize,
    ) -> Result<(), WriteError> {
        let mask = u64::from(step.mask);
        let Range { mut start, end } = range;
        while start < end {
            let Some(rest) = left.checked_sub(2) else {
                return self.omit(start..end, CompactOmissionReason::SharedRows);
            };
            *left = rest;
            let block = start & !mask;
            let next = block.saturating_add(mask).saturating_add(1).min(end);
            let middle = block.saturating_add(step.at.into()).clamp(start, next);
            self.add_row(start..middle, &before, rbx)?;
            self.add_row(middle..next, &after, rbx)?;
            start = next;
        }
        Ok(())
    }
}

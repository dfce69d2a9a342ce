//! Where a function may be on its way to where an exception is caught.

use alloc::{collections::TryReserveError, vec::Vec};
use core::ops::Range;

use unwind_cfi::{Leaving, Rows};

/// The parts of functions that may be on their way to a handler, as their rows come.
#[derive(Debug, Default)]
pub(super) struct EhReturns {
    /// In addresses of the target, ascending within a function.
    ranges: Vec<Range<u64>>,
    /// How many of them are certain. What follows goes if the function returns to its caller first.
    certain: usize,
    /// The last range ends where the next row begins.
    is_open: bool,
}

impl EhReturns {
    pub(super) fn clear(&mut self) {
        *self = Self { ranges: core::mem::take(&mut self.ranges), ..Self::default() };
        self.ranges.clear();
    }

    /// Those of the function whose rows have [ended](Self::end).
    pub(super) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// From this address on the rules hold that were run to.
    pub(super) fn row(&mut self, at: u64, rows: &Rows<'_, '_, '_>) -> Result<(), TryReserveError> {
        self.close(at);
        let leaving = rows.leaving();
        if leaving == Some(Leaving::ToCaller) {
            self.ranges.truncate(self.certain);
        }
        if rows.is_eh_return() {
            let is_certain = self.certain == self.ranges.len();
            if is_certain || self.ranges.last().is_none_or(|last| last.end != at) {
                self.ranges.try_reserve(1)?;
                self.ranges.push(at..at);
            }
            self.is_open = true;
        }
        if leaving == Some(Leaving::ToHandler) {
            self.certain = self.ranges.len();
        }
        Ok(())
    }

    /// The function ends at this address.
    pub(super) fn end(&mut self, at: u64) {
        self.close(at);
        self.certain = self.ranges.len();
    }

    fn close(&mut self, at: u64) {
        let open = self.ranges.last_mut().filter(|_| self.is_open);
        if let Some(last) = open {
            last.end = at;
        }
        self.is_open = false;
    }
}

//! Collects rows for a compact table.

use alloc::vec::Vec;
use core::ops::Range;

use unwind_core::{CfaLoads, Row};

use crate::{
    compact::{
        format::MAX_ADDR,
        image::Image,
        omission::{CompactOmissionReason, CompactOmissions},
        overlay::Layers,
        rbx::Rbx,
        recent::Recent,
        rule::Rule,
        rule_set::RuleSet,
    },
    write::lost::WriteError,
};

/// A compact table that is being written: the rows of a file in some four bytes each, for a reader
/// that has no time to decode a table.
///
/// Rows come from [`Section`](crate::Section)s ([`add_section`](Self::add_section)), from call frame
/// information (`add_cfi`, with the feature `cfi`), and one range at a time ([`add`](Self::add)).
/// Where ranges overlap, the one that was added first holds, also if it has no row that the table can
/// say. So code about which nothing is known comes last.
///
/// What the table cannot say has no row, and is counted by reason.
///
/// # Example
///
/// ```
/// use sframe::{CompactBuilder, CompactTable};
/// use unwind_core::{CfaRule, RegRule, Row};
///
/// // push %rbp; mov %rsp,%rbp; ...
/// let saved = RegRule::Offset(-8);
/// let entry = Row::new(CfaRule::sp(8), saved, RegRule::SameValue);
/// let pushed = Row::new(CfaRule::sp(16), saved, RegRule::Offset(-16));
/// let body = Row::new(CfaRule::fp(16), saved, RegRule::Offset(-16));
///
/// let mut builder = CompactBuilder::new();
/// builder.add(0x1040..0x1041, &entry)?;
/// builder.add(0x1041..0x1044, &pushed)?;
/// builder.add(0x1044..0x1060, &body)?;
/// let (image, omissions) = builder.finish()?;
/// assert!(omissions.is_empty());
///
/// let table = CompactTable::parse(&image)?;
/// assert_eq!(table.row(0x1043), Some(pushed));
/// assert_eq!(table.row(0x1060), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CompactBuilder {
    layers: Layers<u16>,
    rules: RuleSet,
    /// The numbers of the rules, or why there are none.
    recent: Recent<Result<u16, CompactOmissionReason>>,
    omissions: CompactOmissions,
}

impl Default for CompactBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl CompactBuilder {
    /// A table without rows.
    #[must_use]
    pub fn new() -> Self {
        Self {
            layers: Layers::new(),
            rules: RuleSet::default(),
            recent: Recent::new(),
            omissions: CompactOmissions::default(),
        }
    }

    /// Says that `row` holds in a range of addresses of the file, where nothing that was added
    /// before holds.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfMemory`], and [`WriteError::TooLarge`] after 2^32 ranges; the range is not
    /// added then.
    pub fn add(&mut self, range: Range<u64>, row: &Row) -> Result<(), WriteError> {
        self.add_row(range, row, Rbx::UNKNOWN)
    }

    /// The same of a row whose CFA is found by loads that no row says, whatever the row says of it. A
    /// later [`CompactTable::loads`](crate::CompactTable::loads) finds both.
    ///
    /// # Errors
    ///
    /// Those of [`add`](Self::add).
    pub fn add_loads(
        &mut self,
        range: Range<u64>,
        row: &Row,
        loads: CfaLoads,
    ) -> Result<(), WriteError> {
        self.add_row_by_loads(range, (row, loads), Rbx::UNKNOWN)
    }

    /// A row of code in which the caller's rbx is found so.
    pub(super) fn add_row(
        &mut self,
        range: Range<u64>,
        row: &Row,
        rbx: Rbx,
    ) -> Result<(), WriteError> {
        let number = match self.recent.get(row, rbx) {
            Some(number) => number,
            None => {
                let number = self.number(Rule::new(row), rbx)?;
                self.recent.keep(*row, rbx, number);
                number
            }
        };
        self.push_number(range, number)
    }

    /// The same with loads.
    pub(super) fn add_row_by_loads(
        &mut self,
        range: Range<u64>,
        (row, loads): (&Row, CfaLoads),
        rbx: Rbx,
    ) -> Result<(), WriteError> {
        let number = self.number(Rule::by_loads(row, loads), rbx)?;
        self.push_number(range, number)
    }

    fn number(
        &mut self,
        rule: Result<Rule, CompactOmissionReason>,
        rbx: Rbx,
    ) -> Result<Result<u16, CompactOmissionReason>, WriteError> {
        Ok(match rule {
            Ok(rule) => {
                let number = self.rules.number(rule.with_rbx(rbx))?;
                number.ok_or(CompactOmissionReason::TooManyRules)
            }
            Err(reason) => Err(reason),
        })
    }

    fn push_number(
        &mut self,
        range: Range<u64>,
        number: Result<u16, CompactOmissionReason>,
    ) -> Result<(), WriteError> {
        match number {
            Ok(number) => self.push(range, number),
            Err(reason) => self.omit(range, reason),
        }
    }

    /// Says that there is no row in a range, for this reason. It may be empty.
    pub(super) fn omit(
        &mut self,
        range: Range<u64>,
        reason: CompactOmissionReason,
    ) -> Result<(), WriteError> {
        self.count(reason, range.end.saturating_sub(range.start));
        self.push(range, 0)
    }

    /// Counts what no range is known of, or of which it has no row.
    pub(super) fn count(&mut self, reason: CompactOmissionReason, bytes: u64) {
        self.omissions.add(reason, bytes);
    }

    fn push(&mut self, range: Range<u64>, rule: u16) -> Result<(), WriteError> {
        let outside = range.start.max(MAX_ADDR)..range.end;
        if !outside.is_empty() {
            self.count(CompactOmissionReason::Address, outside.end.saturating_sub(outside.start));
        }
        self.layers.push(range.start..range.end.min(MAX_ADDR), rule)
    }

    /// The bytes of the table, and what is not in it.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfMemory`]; [`WriteError::TooFarApart`] if there are more than 64 GiB from the
    /// first row to the last; and [`WriteError::TooLarge`] if there are 2^32 rows or more.
    pub fn finish(mut self) -> Result<(Vec<u8>, CompactOmissions), WriteError> {
        let span = self.layers.span().unwrap_or_default();
        let mut image = Image::new(&span)?;
        let mut end = span.start;
        self.layers.overlay(|range, rule| {
            if end != range.start {
                image.hold(end, 0)?;
            }
            end = range.end;
            image.hold(range.start, rule)
        })?;
        image.hold(end, 0)?;
        Ok((image.finish(self.rules.rules())?, self.omissions))
    }
}

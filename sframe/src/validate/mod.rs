//! Whether a table keeps all rules of its format.

pub(crate) mod diagnostic;
mod fast;

use core::ops::ControlFlow;

use unwind_core::{BaseReg, RegRule};

use crate::{
    error::Error,
    format::{
        fde::{Fde, FdeEntry, FdeType, FreType, PcType},
        flags::Flags,
        fre::Fre,
        header::{Abi, Header, Version},
    },
    read::{rules::is_impossible_ra, source::entry_at, table::Table},
    validate::{
        diagnostic::{Diagnostic, Severity, Summary, Violation},
        fast::Usual,
    },
};

impl Table<'_> {
    /// Checks every rule of the format, and hands each finding to `visit`,
    /// which may stop the validation by [`ControlFlow::Break`].
    ///
    /// `buffer` is where functions of a table that is not sorted are put in
    /// order to look for overlaps, one word each. It may be shorter, or empty;
    /// then they are not looked for.
    ///
    /// It takes time linear in the size of the table; with a buffer, that to
    /// sort the functions.
    ///
    /// # Example
    ///
    /// ```
    /// # use core::ops::ControlFlow;
    /// # let bytes = [
    /// #     0xe2, 0xde, 2, 1, 3, 0, 0xf8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    /// # ];
    /// let table = sframe::Table::parse(&bytes)?;
    /// let summary = table.validate(&mut [], |finding| {
    ///     println!("{finding}");
    ///     ControlFlow::<()>::Continue(())
    /// });
    /// assert_eq!(summary.continue_value().map(|summary| summary.errors), Some(0));
    /// # Ok::<(), sframe::Error>(())
    /// ```
    pub fn validate<B>(
        &self,
        buffer: &mut [u32],
        visit: impl FnMut(Diagnostic) -> ControlFlow<B>,
    ) -> ControlFlow<B, Summary> {
        let mut validator = Validator::new(self, visit);
        validator.run(buffer)?;
        ControlFlow::Continue(validator.summary)
    }

    /// Checks every rule of the format up to the first [`Error`](Severity::Error).
    ///
    /// # Errors
    ///
    /// The first finding that is against the format.
    pub fn check(&self) -> Result<Summary, Diagnostic> {
        let checked = self.validate(&mut [], |finding| match finding.fault.severity() {
            Severity::Error => ControlFlow::Break(finding),
            Severity::Note => ControlFlow::Continue(()),
        });
        match checked {
            ControlFlow::Continue(summary) => Ok(summary),
            ControlFlow::Break(finding) => Err(finding),
        }
    }
}

struct Validator<'s, 'a, V> {
    table: &'s Table<'a>,
    header: Header,
    usual: Usual,
    visit: V,
    summary: Summary,
    /// How many rows the functions say that they have.
    declared: u64,
    /// Bytes of the attributes and rows that were looked at.
    bytes: u64,
    /// All functions and rows could be looked at.
    whole: bool,
    /// See [`Table::max_rows`].
    max_rows: u64,
}

impl<'s, 'a, V> Validator<'s, 'a, V> {
    fn new(table: &'s Table<'a>, visit: V) -> Self {
        let header = table.header();
        Self {
            table,
            header,
            usual: Usual::new(&header),
            visit,
            summary: Summary::default(),
            declared: 0,
            bytes: 0,
            whole: true,
            max_rows: table.max_rows(),
        }
    }

    fn run<B>(&mut self, buffer: &mut [u32]) -> ControlFlow<B>
    where
        V: FnMut(Diagnostic) -> ControlFlow<B>,
    {
        let header = self.header;
        if let Abi::Unknown(id) = header.abi {
            self.report(None, Violation::UnknownAbi(id))?;
        }
        let mut order = Order::default();
        for index in 0..header.num_fdes {
            let Some((start, entry)) = self.table.entry(index) else { break };
            self.summary.functions = self.summary.functions.saturating_add(1);
            if header.flags.contains(Flags::SORTED) {
                self.neighbours(&mut order, index, start, entry.size)?;
            }
            if !self.pass(entry) {
                self.function(index)?;
            }
        }
        if header.flags.contains(Flags::SORTED) {
            self.summary.overlaps_checked = true;
        } else {
            self.overlaps(buffer)?;
        }
        // Of a malformed function the numbers are not known.
        if self.whole && self.declared != u64::from(header.num_fres) {
            let found = self.declared;
            self.report(None, Violation::FreCount { header: header.num_fres, found })?;
        }
        if self.whole && self.bytes != u64::from(header.fre_len) {
            let found = self.bytes;
            self.report(None, Violation::FreBytes { header: header.fre_len, found })?;
        }
        ControlFlow::Continue(())
    }

    /// Counts a function and its rows if there is nothing to say of them; false if
    /// they have to be looked at one by one.
    fn pass(&mut self, mut entry: FdeEntry) -> bool {
        let Some(rows) = self.table.rows(&mut entry) else { return false };
        let count = u64::from(entry.num_fres);
        if self.summary.rows.saturating_add(count) > self.max_rows {
            return false;
        }
        let Some(len) = self.usual.rows_len(&entry, rows) else { return false };
        self.summary.rows = self.summary.rows.saturating_add(count);
        self.declared = self.declared.saturating_add(count);
        self.add_bytes(len);
        true
    }

    /// Adds those of a function's rows.
    fn add_bytes(&mut self, rows_len: usize) {
        let attribute = self.header.version.attribute_size();
        let len = u64::try_from(rows_len.saturating_add(attribute)).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(len);
    }

    #[cold]
    fn report<B>(&mut self, function: Option<u32>, fault: Violation) -> ControlFlow<B>
    where
        V: FnMut(Diagnostic) -> ControlFlow<B>,
    {
        let count = match fault.severity() {
            Severity::Error => &mut self.summary.errors,
            Severity::Note => &mut self.summary.notes,
        };
        *count = count.saturating_add(1);
        (self.visit)(Diagnostic { fault, function })
    }

    /// Reports an error after which nothing more of a function is known.
    fn cut<B>(&mut self, function: u32, error: Error) -> ControlFlow<B>
    where
        V: FnMut(Diagnostic) -> ControlFlow<B>,
    {
        self.whole = false;
        self.report(Some(function), Violation::Malformed(error))
    }

    /// Looks for overlaps of functions that are not in order.
    fn overlaps<B>(&mut self, buffer: &mut [u32]) -> ControlFlow<B>
    where
        V: FnMut(Diagnostic) -> ControlFlow<B>,
    {
        let (table, header) = (self.table, self.header);
        let count = usize::try_from(header.num_fdes).unwrap_or(usize::MAX);
        let Some(indices) = buffer.get_mut(..count) else { return ControlFlow::Continue(()) };
        for (slot, index) in indices.iter_mut().zip(0..) {
            *slot = index;
        }
        let start = |index| table.entry(index).map(|(start, _)| start);
        unwind_core::sort::sort(indices, |a, b| (start(a), a) < (start(b), b));
        let mut order = Order::default();
        for &mut index in indices {
            let Some((start, entry)) = table.entry(index) else { break };
            self.neighbours(&mut order, index, start, entry.size)?;
        }
        self.summary.overlaps_checked = true;
        ControlFlow::Continue(())
    }

    /// Compares a function with those before it in order.
    fn neighbours<B>(
        &mut self,
        order: &mut Order,
        index: u32,
        start: i64,
        size: u32,
    ) -> ControlFlow<B>
    where
        V: FnMut(Diagnostic) -> ControlFlow<B>,
    {
        let before = core::mem::replace(order, order.with(start, size, index));
        // The usual case.
        if before.size != 0 && start >= before.end && start != before.start {
            return ControlFlow::Continue(());
        }
        let at = entry_at(&self.header, index);
        if before.any && start < before.start {
            self.report(Some(index), Violation::UnsortedFde(at))?;
        }
        // The end may be one that no distance can say.
        let is_covered = start < before.end || (start == before.start && before.size != 0);
        if before.any && size == 0 && (is_covered || start == before.start) {
            let other = if start < before.end { before.widest } else { before.index };
            self.report(Some(index), Violation::EmptyNeighbour { at, other })?;
        } else if before.any && size != 0 && is_covered {
            self.report(Some(index), Violation::Overlap { at, other: before.widest })?;
        } else if before.any && start == before.start {
            let at = entry_at(&self.header, before.index);
            self.report(Some(before.index), Violation::EmptyNeighbour { at, other: index })?;
        }
        ControlFlow::Continue(())
    }

    /// Looks closer at one function.
    #[cold]
    fn function<B>(&mut self, index: u32) -> ControlFlow<B>
    where
        V: FnMut(Diagnostic) -> ControlFlow<B>,
    {
        let function = Some(index);
        let fde = match self.table.fde(index) {
            Ok(Some(fde)) => fde,
            Ok(None) => return ControlFlow::Continue(()),
            Err(error) => return self.cut(index, error),
        };
        self.declared = self.declared.saturating_add(fde.num_fres.into());
        if has_reserved_bits(&fde) {
            self.report(function, Violation::ReservedBits(fde.at))?;
        }
        if let FdeType::Unknown(_) = fde.fde_type() {
            let error = Error::UnknownFdeType { at: fde.at, info2: fde.info2 };
            self.report(function, Violation::Malformed(error))?;
        }
        // The length of what row starts count in.
        let end = match fde.pc_type() {
            Ok(PcType::Increment) => fde.range.size,
            Ok(PcType::Mask(rep_size)) => u32::from(rep_size.get()).min(fde.range.size),
            Err(error) => {
                self.report(function, Violation::Malformed(error))?;
                fde.range.size
            }
        };
        if fde.num_fres == 0 && fde.dialect.version != Version::V3 {
            self.report(function, Violation::NoRows(fde.at))?;
        }
        if self.summary.rows.saturating_add(fde.num_fres.into()) > self.max_rows {
            self.whole = false;
            return self.report(function, Violation::TooManyRows(fde.at));
        }
        match (fde.fre_type(), self.table.fres(&fde)) {
            (Ok(kind), Ok(rows)) => self.rows(&fde, kind, rows.bytes(), end),
            (Err(error), _) | (_, Err(error)) => self.cut(index, error),
        }
    }

    /// Checks the rows at the start of `bytes`, which reaches to the section's
    /// end.
    fn rows<B>(&mut self, fde: &Fde, kind: FreType, bytes: &[u8], end: u32) -> ControlFlow<B>
    where
        V: FnMut(Diagnostic) -> ControlFlow<B>,
    {
        let mut rest = bytes;
        let mut least = 0_u64;
        for _ in 0..fde.num_fres {
            let Some((start, next)) = self.row(fde, kind, rest, least, end)? else { break };
            (rest, least) = (next, u64::from(start).wrapping_add(1));
            self.summary.rows = self.summary.rows.saturating_add(1);
        }
        self.add_bytes(bytes.len().saturating_sub(rest.len()));
        ControlFlow::Continue(())
    }

    /// Looks closer at one row. Returns where it starts to hold and what is
    /// after it, unless nothing is known of that.
    fn row<'b, B>(
        &mut self,
        fde: &Fde,
        kind: FreType,
        bytes: &'b [u8],
        least: u64,
        end: u32,
    ) -> ControlFlow<B, Option<(u32, &'b [u8])>>
    where
        V: FnMut(Diagnostic) -> ControlFlow<B>,
    {
        let function = Some(fde.index);
        let at = self.table.offset_of(bytes);
        let fre = Fre::decode(bytes, at, kind, fde.dialect.endian);
        let fre = match fre {
            Ok(fre) => fre,
            Err(error) => {
                self.cut(fde.index, error)?;
                return ControlFlow::Continue(None);
            }
        };
        let next = bytes.get(fre.len(kind)..).unwrap_or_default();
        let start = fre.start;
        if u64::from(start) < least {
            self.report(function, Violation::Malformed(Error::UnsortedFres(at)))?;
        }
        if start >= end {
            self.report(function, Violation::RowPastEnd { at, start })?;
        }
        if least == 0 && start != 0 && start < end {
            self.report(function, Violation::LateFirstRow { at, start })?;
        }
        // Said once, of the function or the table.
        let meaningless = matches!(fde.fde_type(), FdeType::Unknown(_))
            || matches!(fde.dialect.abi, Abi::Unknown(_));
        match fde.row(&fre) {
            _ if meaningless => {}
            Err(error) => self.report(function, Violation::Malformed(error))?,
            Ok(row) if is_impossible_ra(fde.dialect.abi, row.ra()) => {
                self.report(function, Violation::ImpossibleRa(at))?;
            }
            Ok(row) if matches!(row.ra(), RegRule::Register(BaseReg::Fp, _)) => {
                self.report(function, Violation::RaInFp(at))?;
            }
            Ok(_) => {}
        }
        let count = fre.info.word_count();
        let is_surplus = match fde.fde_type() {
            FdeType::Default => count > self.header.meaningful_words(),
            FdeType::Flexible => fre.ends_in_padding(),
            FdeType::Unknown(_) => false,
        };
        if is_surplus {
            self.report(function, Violation::SurplusWords { at, count })?;
        }
        if fre.info.mangled_ra() && !fde.dialect.abi.is_aarch64() && !meaningless {
            self.report(function, Violation::SignedRa(at))?;
        }
        ControlFlow::Continue(Some((start, next)))
    }
}

/// The functions before one, in order of start.
#[derive(Clone, Copy, Default)]
struct Order {
    any: bool,
    /// The last one.
    start: i64,
    size: u32,
    index: u32,
    /// The one that reaches furthest, and where it ends.
    widest: u32,
    end: i64,
}

impl Order {
    fn with(self, start: i64, size: u32, index: u32) -> Self {
        let end = start.saturating_add(size.into());
        let (widest, end) = match self.any && self.end >= end {
            true => (self.widest, self.end),
            false => (index, end),
        };
        Self { any: true, start, size, index, widest, end }
    }
}

fn has_reserved_bits(fde: &Fde) -> bool {
    let reserved = FdeEntry::reserved_info(fde.dialect.version, fde.dialect.abi);
    fde.info & reserved != 0 || fde.info2 & 0xe0 != 0
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "tests")]
mod tests {
    extern crate alloc;
    use alloc::vec::Vec;

    use testdata::{Function, Row, TableBuilder};

    use super::*;

    /// What is found in a table, and the summary.
    fn validate(table: &Table<'_>, usual: Option<Usual>) -> (Vec<Diagnostic>, Summary) {
        let mut found = Vec::new();
        let mut validator = Validator::new(table, |finding| {
            found.push(finding);
            ControlFlow::<()>::Continue(())
        });
        if let Some(usual) = usual {
            validator.usual = usual;
        }
        assert!(validator.run(&mut [0; 8]).is_continue());
        let summary = validator.summary;
        (found, summary)
    }

    #[test]
    fn what_is_passed_as_usual_is_what_a_closer_look_has_nothing_to_say_of() {
        let rows = || [Row::sp(0, &[8]), Row::sp(1, &[16, -16]), Row::fp(9, &[16, -16])].into();
        let mut passed = 0;
        for table in [
            TableBuilder::amd64(1),
            TableBuilder::amd64(2),
            TableBuilder::amd64(3),
            TableBuilder { fixed_ra: 0, ..TableBuilder::amd64(3) },
            TableBuilder::aarch64(2, true),
            TableBuilder::s390x(2),
            TableBuilder::s390x(3),
        ] {
            let table = table
                .function(Function::new(0x1000, 0x20, rows()))
                .function(Function {
                    info: 0x10,
                    rep_size: 16,
                    ..Function::new(0x1020, 0x20, rows())
                })
                .function(Function { info: 1, ..Function::new(0x1040, 0x300, rows()) })
                .function(Function::new(0x1340, 0x10, [].into()));
            let whole = table.build();
            // All values of all bytes after the magic number.
            for (at, value) in (2..whole.len()).flat_map(|at| (0..=u8::MAX).map(move |v| (at, v))) {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let Ok(table) = Table::parse(&bytes) else { continue };
                let both = validate(&table, None);
                assert_eq!(both, validate(&table, Some(Usual::NONE)), "{value:#x} at {at}");
                passed += u32::from(both.0.is_empty());
            }
        }
        assert!(passed > 1000, "{passed}");
    }
}

//! Whether a table keeps all rules of its format.

use core::ops::ControlFlow;

use unwind_core::{Base, RegRule};

use crate::{
    Abi, Endian, Error, Fault, Fde, FdeKind, Finding, Fre, FreInfo, FreType, FuncRange, PcKind,
    Section, Severity, Summary, Version, fde::Entry, fre::split_head, lookup, order,
    row::is_impossible_ra,
};

impl Section<'_> {
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
    /// let section = sframe::Section::parse(&bytes)?;
    /// let summary = section.validate(&mut [], |finding| {
    ///     println!("{finding}");
    ///     ControlFlow::<()>::Continue(())
    /// });
    /// assert_eq!(summary.continue_value().map(|summary| summary.errors), Some(0));
    /// # Ok::<(), sframe::Error>(())
    /// ```
    pub fn validate<B>(
        &self,
        buffer: &mut [u32],
        visit: impl FnMut(Finding) -> ControlFlow<B>,
    ) -> ControlFlow<B, Summary> {
        let mut validator = Validator {
            section: self,
            visit,
            summary: Summary::default(),
            words_len: words_len(self),
            declared: 0,
            bytes: 0,
            whole: true,
        };
        validator.run(buffer)?;
        ControlFlow::Continue(validator.summary)
    }

    /// Checks every rule of the format up to the first [`Error`](Severity::Error).
    ///
    /// # Errors
    ///
    /// The first finding that is against the format.
    pub fn check(&self) -> Result<Summary, Finding> {
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
    section: &'s Section<'a>,
    visit: V,
    summary: Summary,
    /// By info byte of a row of a default function: the size of its words, or
    /// [`UNUSUAL`].
    words_len: [u8; 256],
    /// How many rows the functions say that they have.
    declared: u64,
    /// Bytes of the attributes and rows that were looked at.
    bytes: u64,
    /// All functions and rows could be looked at.
    whole: bool,
}

impl<V> Validator<'_, '_, V> {
    fn run<B>(&mut self, buffer: &mut [u32]) -> ControlFlow<B>
    where
        V: FnMut(Finding) -> ControlFlow<B>,
    {
        let header = self.section.header();
        if let Abi::Unknown(id) = header.abi {
            self.report(None, Fault::UnknownAbi(id))?;
        }
        let mut order = Order::default();
        for index in 0..header.num_fdes {
            let Some(range) = self.section.range(index) else { break };
            self.summary.functions = self.summary.functions.saturating_add(1);
            if header.flags.sorted() {
                self.neighbours(&mut order, index, range)?;
            }
            self.function(index, range)?;
        }
        if header.flags.sorted() {
            self.summary.overlaps_checked = true;
        } else {
            self.overlaps(buffer)?;
        }
        // Of a malformed function the numbers are not known.
        if self.whole && self.declared != u64::from(header.num_fres) {
            let found = self.declared;
            self.report(None, Fault::FreCount { header: header.num_fres, found })?;
        }
        if self.whole && self.bytes != u64::from(header.fre_len) {
            let found = self.bytes;
            self.report(None, Fault::FreBytes { header: header.fre_len, found })?;
        }
        ControlFlow::Continue(())
    }

    #[cold]
    fn report<B>(&mut self, function: Option<u32>, fault: Fault) -> ControlFlow<B>
    where
        V: FnMut(Finding) -> ControlFlow<B>,
    {
        let count = match fault.severity() {
            Severity::Error => &mut self.summary.errors,
            Severity::Note => &mut self.summary.notes,
        };
        *count = count.saturating_add(1);
        (self.visit)(Finding { fault, function })
    }

    /// Reports an error behind which nothing more of a function is known.
    fn cut<B>(&mut self, function: u32, error: Error) -> ControlFlow<B>
    where
        V: FnMut(Finding) -> ControlFlow<B>,
    {
        self.whole = false;
        self.report(Some(function), Fault::Malformed(error))
    }

    /// Looks for overlaps of functions that are not in order.
    fn overlaps<B>(&mut self, buffer: &mut [u32]) -> ControlFlow<B>
    where
        V: FnMut(Finding) -> ControlFlow<B>,
    {
        let count = usize::try_from(self.section.header().num_fdes).unwrap_or(usize::MAX);
        let Some(indices) = buffer.get_mut(..count) else { return ControlFlow::Continue(()) };
        for (slot, index) in indices.iter_mut().zip(0..) {
            *slot = index;
        }
        let section = self.section;
        let start = |index| section.range(index).map(|range| relative_start(section, range));
        order::sort(indices, |a, b| (start(a), a) < (start(b), b));
        let mut order = Order::default();
        for &mut index in indices {
            let Some(range) = section.range(index) else { break };
            self.neighbours(&mut order, index, range)?;
        }
        self.summary.overlaps_checked = true;
        ControlFlow::Continue(())
    }

    /// Compares a function with those before it in order.
    fn neighbours<B>(&mut self, order: &mut Order, index: u32, range: FuncRange) -> ControlFlow<B>
    where
        V: FnMut(Finding) -> ControlFlow<B>,
    {
        let section = self.section;
        let (start, size) = (relative_start(section, range), range.size);
        let before = core::mem::replace(order, order.with(start, size, index));
        // The usual case.
        if before.size != 0 && start >= before.end && start != before.start {
            return ControlFlow::Continue(());
        }
        let at = lookup::entry_at(&section.header(), index);
        if before.any && start < before.start {
            self.report(Some(index), Fault::UnsortedFde(at))?;
        }
        // The end may be one that no distance can say.
        let is_covered = start < before.end || (start == before.start && before.size != 0);
        if before.any && size == 0 && (is_covered || start == before.start) {
            let other = if start < before.end { before.widest } else { before.index };
            self.report(Some(index), Fault::EmptyNeighbour { at, other })?;
        } else if before.any && size != 0 && is_covered {
            self.report(Some(index), Fault::Overlap { at, other: before.widest })?;
        } else if before.any && start == before.start {
            let at = lookup::entry_at(&section.header(), before.index);
            self.report(Some(before.index), Fault::EmptyNeighbour { at, other: index })?;
        }
        ControlFlow::Continue(())
    }

    fn function<B>(&mut self, index: u32, range: FuncRange) -> ControlFlow<B>
    where
        V: FnMut(Finding) -> ControlFlow<B>,
    {
        let function = Some(index);
        let fde = match self.section.fde_in(index, range) {
            Ok(Some(fde)) => fde,
            Ok(None) => return ControlFlow::Continue(()),
            Err(error) => return self.cut(index, error),
        };
        self.declared = self.declared.saturating_add(fde.num_fres.into());
        if has_reserved_bits(&fde) {
            self.report(function, Fault::ReservedBits(fde.at))?;
        }
        if let FdeKind::Unknown(_) = fde.kind() {
            let error = Error::UnknownFdeType { at: fde.at, info2: fde.info2 };
            self.report(function, Fault::Malformed(error))?;
        }
        // The length of what row starts count in.
        let end = match fde.pc_kind() {
            Ok(PcKind::Increment) => fde.range.size,
            Ok(PcKind::Mask(rep_size)) => u32::from(rep_size.get()).min(fde.range.size),
            Err(error) => {
                self.report(function, Fault::Malformed(error))?;
                fde.range.size
            }
        };
        if fde.num_fres == 0 && fde.dialect.version != Version::V3 {
            self.report(function, Fault::NoRows(fde.at))?;
        }
        if self.summary.rows.saturating_add(fde.num_fres.into()) > self.section.max_rows() {
            self.whole = false;
            return self.report(function, Fault::TooManyRows(fde.at));
        }
        match (fde.fre_type(), self.section.fres(&fde)) {
            (Ok(kind @ FreType::Addr1), Ok(rows)) => {
                self.rows::<B, 2>(&fde, kind, rows.bytes(), end)
            }
            (Ok(kind @ FreType::Addr2), Ok(rows)) => {
                self.rows::<B, 3>(&fde, kind, rows.bytes(), end)
            }
            (Ok(kind @ FreType::Addr4), Ok(rows)) => {
                self.rows::<B, 5>(&fde, kind, rows.bytes(), end)
            }
            (Err(error), _) | (_, Err(error)) => self.cut(index, error),
        }
    }

    /// Checks the rows at the start of `bytes`, which reaches to the section's
    /// end. `HEAD` is the size in bytes of a row's start and info byte.
    fn rows<B, const HEAD: usize>(
        &mut self,
        fde: &Fde,
        kind: FreType,
        bytes: &[u8],
        end: u32,
    ) -> ControlFlow<B>
    where
        V: FnMut(Finding) -> ControlFlow<B>,
    {
        let endian = fde.dialect.endian;
        let mut rest = bytes;
        let mut left = fde.num_fres;
        let mut least = 0_u64;
        while left > 0 {
            let before = left;
            // The first row should start at 0.
            let late = least == 0
                && rest.first_chunk().is_some_and(|head| {
                    let (start, _) = split_head::<HEAD>(head, endian);
                    start != 0
                });
            if let (Ok(least_usual), FdeKind::Default, false) =
                (u32::try_from(least), fde.kind(), late)
            {
                let usual = Usual { rest, left, least: least_usual, end };
                let usual = match endian {
                    Endian::Little => usual.pass::<HEAD, false>(&self.words_len),
                    Endian::Big => usual.pass::<HEAD, true>(&self.words_len),
                };
                (rest, left, least) = (usual.rest, usual.left, usual.least.into());
            }
            if left > 0 {
                let Some((start, next)) = self.row::<B, HEAD>(fde, kind, rest, least, end)? else {
                    break;
                };
                (rest, left, least) =
                    (next, left.wrapping_sub(1), u64::from(start).wrapping_add(1));
            }
            let passed = u64::from(before.wrapping_sub(left));
            self.summary.rows = self.summary.rows.saturating_add(passed);
        }
        let attribute = if fde.dialect.version == Version::V3 { Entry::ATTRIBUTE_SIZE } else { 0 };
        let used = bytes.len().saturating_sub(rest.len()).saturating_add(attribute);
        self.bytes = self.bytes.saturating_add(u64::try_from(used).unwrap_or(u64::MAX));
        ControlFlow::Continue(())
    }

    /// Looks closer at one row. Returns where it starts to hold and what is
    /// behind it, unless nothing is known of that.
    fn row<'b, B, const HEAD: usize>(
        &mut self,
        fde: &Fde,
        kind: FreType,
        bytes: &'b [u8],
        least: u64,
        end: u32,
    ) -> ControlFlow<B, Option<(u32, &'b [u8])>>
    where
        V: FnMut(Finding) -> ControlFlow<B>,
    {
        let function = Some(fde.index);
        let at = self.section.offset_of(bytes);
        let fre = Fre::decode(bytes, at, kind, fde.dialect.endian);
        let len = |fre: &Fre| fre.info.words_len().saturating_add(HEAD);
        // Words behind the sixth may be cut off without `decode` noticing.
        let (fre, next) = match fre.map(|fre| (fre, bytes.get(len(&fre)..))) {
            Ok((fre, Some(next))) => (fre, next),
            Ok((_, None)) => {
                self.cut(fde.index, Error::Truncated(at))?;
                return ControlFlow::Continue(None);
            }
            Err(error) => {
                self.cut(fde.index, error)?;
                return ControlFlow::Continue(None);
            }
        };
        let start = fre.start;
        if u64::from(start) < least {
            self.report(function, Fault::Malformed(Error::UnsortedFres(at)))?;
        }
        if start >= end {
            self.report(function, Fault::RowBehindEnd { at, start })?;
        }
        if least == 0 && start != 0 && start < end {
            self.report(function, Fault::LateFirstRow { at, start })?;
        }
        // Said once, of the function or the table.
        let meaningless =
            matches!(fde.kind(), FdeKind::Unknown(_)) || matches!(fde.dialect.abi, Abi::Unknown(_));
        match fde.row(&fre) {
            _ if meaningless => {}
            Err(error) => self.report(function, Fault::Malformed(error))?,
            Ok(row) if is_impossible_ra(fde.dialect.abi, row.ra()) => {
                self.report(function, Fault::ImpossibleRa(at))?;
            }
            Ok(row) if matches!(row.ra(), RegRule::Reg(Base::Fp, _)) => {
                self.report(function, Fault::RaInFp(at))?;
            }
            Ok(_) => {}
        }
        let count = fre.info.word_count();
        if fde.kind() == FdeKind::Default && count > meaningful_words(self.section) {
            self.report(function, Fault::SurplusWords { at, count })?;
        }
        if fre.info.mangled_ra() && !is_aarch64(fde.dialect.abi) && !meaningless {
            self.report(function, Fault::SignedRa(at))?;
        }
        ControlFlow::Continue(Some((start, next)))
    }
}

/// Rows of a default function, as far as they are usual.
struct Usual<'a> {
    rest: &'a [u8],
    /// Rows that are not passed.
    left: u32,
    /// The least that the next row may start at.
    least: u32,
    end: u32,
}

impl Usual<'_> {
    /// Passes all rows before the first unusual one, or before one that is cut
    /// off.
    ///
    /// Never inlined, so that the loop has all registers.
    #[inline(never)]
    fn pass<const HEAD: usize, const BIG: bool>(self, words_len: &[u8; 256]) -> Self {
        let endian = if BIG { Endian::Big } else { Endian::Little };
        // In locals, so that they stay in registers.
        let Self { mut rest, mut left, mut least, end } = self;
        while left > 0 {
            let Some((head, words)) = rest.split_first_chunk::<HEAD>() else { break };
            let (start, info) = split_head(head, endian);
            let len = words_len.get(usize::from(info)).copied().unwrap_or(UNUSUAL);
            if len == UNUSUAL || start < least || start >= end {
                break;
            }
            let Some(next) = words.get(usize::from(len)..) else { break };
            rest = next;
            // Below the end, so that it does not overflow.
            least = start.wrapping_add(1);
            left = left.wrapping_sub(1);
        }
        Self { rest, left, least, end }
    }
}

/// Longer than any words.
const UNUSUAL: u8 = 0xff;

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

/// The start of a function as the search compares it.
fn relative_start(section: &Section<'_>, range: FuncRange) -> i64 {
    range.start.wrapping_sub(section.addr()).cast_signed()
}

/// By info byte of a row of a default function: the size of its words, or
/// [`UNUSUAL`] if there is more to look at.
fn words_len(section: &Section<'_>) -> [u8; 256] {
    let header = section.header();
    let abi = header.abi;
    // A word can name a register, or no place at all.
    let any_ra = match abi {
        Abi::S390xBig => header.version == Version::V2,
        _ => abi == Abi::Amd64Little && header.fixed_ra_offset.is_none(),
    };
    let mut lens = [UNUSUAL; 256];
    for (len, info) in lens.iter_mut().zip(0..=u8::MAX) {
        let info = FreInfo(info);
        let count = info.word_count();
        // s390x scales the CFA's offset, so that only wide ones overflow.
        let overflows = abi == Abi::S390xBig && info.word_size() == Some(4);
        let no_words = count == 0 && header.version == Version::V1;
        let signed = info.mangled_ra() && !is_aarch64(abi);
        let unusual = overflows
            || no_words
            || signed
            || (any_ra && count != 0)
            || count > meaningful_words(section);
        if info.word_size().is_some() && !unusual {
            // At most 3 words of 4 bytes.
            *len = u8::try_from(info.words_len()).unwrap_or(UNUSUAL);
        }
    }
    lens
}

/// How many words of a default row have a meaning.
fn meaningful_words(section: &Section<'_>) -> u8 {
    if section.header().fixed_ra_offset.is_some() { 2 } else { 3 }
}

fn has_reserved_bits(fde: &Fde) -> bool {
    let mut reserved = 0x40;
    if fde.dialect.version != Version::V3 {
        reserved |= 0x80;
    }
    if !is_aarch64(fde.dialect.abi) {
        reserved |= 0x20;
    }
    fde.info & reserved != 0 || fde.info2 & 0xe0 != 0
}

const fn is_aarch64(abi: Abi) -> bool {
    matches!(abi, Abi::Aarch64Big | Abi::Aarch64Little)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "tests")]
mod tests {
    use testdata::{Function, Row, SectionBuilder};

    use super::*;

    #[test]
    fn rows_with_something_to_say_of_them_are_unusual() {
        let no_fixed_ra = SectionBuilder { fixed_ra: 0, ..SectionBuilder::amd64(3) };
        // How many words a usual row has, and whether some have four bytes or a
        // signed return address.
        for (table, counts, wide, signed) in [
            (SectionBuilder::amd64(1), 1..=2, true, false),
            (SectionBuilder::amd64(2), 0..=2, true, false),
            (SectionBuilder::amd64(3), 0..=2, true, false),
            (no_fixed_ra, 0..=0, true, false),
            (SectionBuilder::aarch64(2, false), 0..=3, true, true),
            (SectionBuilder::aarch64(3, true), 0..=3, true, true),
            (SectionBuilder::s390x(2), 0..=0, false, false),
            (SectionBuilder::s390x(3), 0..=3, false, false),
        ] {
            let bytes = table.build();
            let section = Section::parse(&bytes).unwrap();
            for (info, len) in (0..=u8::MAX).map(FreInfo).zip(words_len(&section)) {
                let is_usual = counts.contains(&info.word_count())
                    && info.word_size().is_some_and(|size| wide || size < 4)
                    && (signed || !info.mangled_ra());
                let expected = if is_usual { info.words_len() } else { UNUSUAL.into() };
                assert_eq!(usize::from(len), expected, "{:?}: {info:?}", section.header());
            }
        }
    }

    #[test]
    fn usual_rows_are_passed_up_to_the_first_that_is_not() {
        let rows = |third| [Row::sp(0, &[8]), Row::sp(1, &[16, -16]), third, Row::sp(9, &[8])];
        for (third, left) in [
            (Row::sp(5, &[24]), 0),
            (Row::new(5, 0x81, &[24]), 2),
            (Row::sp(1, &[24]), 2),
            (Row::sp(0x20, &[24]), 2),
        ] {
            let function = Function::new(0, 0x20, rows(third).into());
            let bytes = SectionBuilder::amd64(2).function(function).build();
            let section = Section::parse(&bytes).unwrap();
            let usual = Usual { rest: section.fres_bytes(), left: 4, least: 0, end: 0x20 };
            let usual = usual.pass::<2, false>(&words_len(&section));
            assert_eq!(usual.left, left);
            assert_eq!(usual.least, if left == 0 { 10 } else { 2 });
        }
    }
}

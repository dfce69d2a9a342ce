//! Whether a table keeps all rules of its format.

use core::{fmt, ops::ControlFlow};

use crate::{
    Abi, Error, Fde, FdeKind, Fre, FreInfo, FreType, PcKind, Section, SectionOffset, Version,
    fre::{WORDS_LEN, split_head},
    lookup,
};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Legal, seen in the output of tools, and without harm to lookups.
    Note,
    /// Against the format: something cannot be found, or is found wrong.
    Error,
}

/// What is unusual about a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A function or row is malformed.
    Malformed(Error),
    /// The table says that it is sorted, but the function starts before the one
    /// before it.
    UnsortedFde(SectionOffset),
    /// The function covers code that another one covers, too.
    Overlap {
        /// Where the function's entry is.
        at: SectionOffset,
        /// The index of the other function.
        other: u32,
    },
    /// The functions' rows are not as many as the header says.
    FreCount {
        /// By the header.
        header: u32,
        /// By the functions.
        found: u64,
    },
    /// Functions share rows so often that they were not all looked at.
    TooManyRows(SectionOffset),
    /// The rows are for an ABI that is not known: nobody can use them.
    UnknownAbi(u8),

    /// The functions' rows do not fill the bytes that the header says.
    FreBytes {
        /// By the header.
        header: u32,
        /// By the functions.
        found: u64,
    },
    /// A function of size zero starts where another one starts, or inside it.
    EmptyNeighbour {
        /// Where the entry of the function of size zero is.
        at: SectionOffset,
        /// The index of the other function.
        other: u32,
    },
    /// The row starts at or behind the end of its function or block: no address
    /// has it.
    RowBehindEnd {
        /// Where the row is.
        at: SectionOffset,
        /// Where it starts to hold.
        start: u32,
    },
    /// The first row does not start where its function does.
    LateFirstRow {
        /// Where the row is.
        at: SectionOffset,
        /// Where it starts to hold.
        start: u32,
    },
    /// The function has no rows, which means nothing before V3.
    NoRows(SectionOffset),
    /// The row has more words than its ABI gives a meaning.
    SurplusWords {
        /// Where the row is.
        at: SectionOffset,
        /// How many words it has.
        count: u8,
    },
    /// The row says that the RA is signed, on a CPU that does not sign.
    SignedRa(SectionOffset),
    /// Bits without a meaning are set in an info byte of the function.
    ReservedBits(SectionOffset),
}

impl Fault {
    /// How bad it is.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Self::Malformed(_)
            | Self::UnsortedFde(_)
            | Self::Overlap { .. }
            | Self::FreCount { .. }
            | Self::TooManyRows(_)
            | Self::UnknownAbi(_) => Severity::Error,
            Self::FreBytes { .. }
            | Self::EmptyNeighbour { .. }
            | Self::RowBehindEnd { .. }
            | Self::LateFirstRow { .. }
            | Self::NoRows(_)
            | Self::SurplusWords { .. }
            | Self::SignedRa(_)
            | Self::ReservedBits(_) => Severity::Note,
        }
    }

    /// Where in the section it is.
    #[must_use]
    pub const fn at(self) -> SectionOffset {
        match self {
            Self::Malformed(error) => error.at(),
            Self::UnknownAbi(_) => SectionOffset(0x04),
            Self::FreCount { .. } => SectionOffset(0x0c),
            Self::FreBytes { .. } => SectionOffset(0x10),
            Self::UnsortedFde(at)
            | Self::TooManyRows(at)
            | Self::NoRows(at)
            | Self::SignedRa(at)
            | Self::ReservedBits(at)
            | Self::Overlap { at, .. }
            | Self::EmptyNeighbour { at, .. }
            | Self::RowBehindEnd { at, .. }
            | Self::LateFirstRow { at, .. }
            | Self::SurplusWords { at, .. } => at,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Malformed(error) = self {
            return error.fmt(f);
        }
        write!(f, "{}: ", self.at())?;
        match *self {
            Self::Malformed(_) => Ok(()),
            Self::UnsortedFde(_) => f.write_str("the function starts before the one before it"),
            Self::Overlap { other, .. } => write!(f, "the function overlaps function {other}"),
            Self::FreCount { header, found } => {
                write!(f, "the functions have {found} rows, not {header}")
            }
            Self::TooManyRows(_) => f.write_str("too many functions share rows to look at them"),
            Self::UnknownAbi(abi) => write!(f, "nobody can use the rows of abi {abi}"),
            Self::FreBytes { header, found } => {
                write!(f, "the functions' rows take {found:#x} bytes, not {header:#x}")
            }
            Self::EmptyNeighbour { other, .. } => {
                write!(f, "the function of size zero starts in function {other}")
            }
            Self::RowBehindEnd { start, .. } => {
                write!(f, "the row starts at +{start:#x}, behind all code")
            }
            Self::LateFirstRow { start, .. } => write!(f, "the first row starts at +{start:#x}"),
            Self::NoRows(_) => f.write_str("the function has no rows"),
            Self::SurplusWords { count, .. } => write!(f, "not all {count} words have a meaning"),
            Self::SignedRa(_) => f.write_str("the cpu does not sign return addresses"),
            Self::ReservedBits(_) => f.write_str("reserved bits in the function's info are set"),
        }
    }
}

/// One finding of a validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What it is.
    pub fault: Fault,
    /// The index of the function that it is about; `None` for the whole table.
    pub function: Option<u32>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.function {
            Some(index) => write!(f, "function {index}: {}", self.fault),
            None => self.fault.fmt(f),
        }
    }
}

impl core::error::Error for Finding {}

/// What a validation looked at and found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Functions.
    pub functions: u32,
    /// Rows, of all functions together.
    pub rows: u64,
    /// Findings that are against the format.
    pub errors: u64,
    /// Findings that are not.
    pub notes: u64,
    /// Whether overlaps of functions were looked for: they are not in a table
    /// that is not sorted unless the buffer has room for all functions.
    pub overlaps_checked: bool,
}

/// The rows of all functions are at most this many for each byte of rows. A
/// table of functions that share no rows has one for two bytes or more.
const ROWS_PER_BYTE: u64 = 16;

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
            slow: slow_infos(self),
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
    /// By info byte of a row of a default function: whether more than its size
    /// has to be looked at.
    slow: [bool; 256],
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
        let header = *self.section.header();
        if let Abi::Unknown(id) = header.abi {
            self.report(None, Fault::UnknownAbi(id))?;
        }
        let mut order = Order::default();
        for index in 0..header.num_fdes {
            self.summary.functions = self.summary.functions.saturating_add(1);
            if header.flags.sorted() {
                self.neighbours(&mut order, index)?;
            }
            self.function(index)?;
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
        indices.sort_unstable_by_key(|&index| (relative_start(section, index), index));
        let mut order = Order::default();
        for &mut index in indices {
            self.neighbours(&mut order, index)?;
        }
        self.summary.overlaps_checked = true;
        ControlFlow::Continue(())
    }

    /// Compares a function with those before it in order.
    fn neighbours<B>(&mut self, order: &mut Order, index: u32) -> ControlFlow<B>
    where
        V: FnMut(Finding) -> ControlFlow<B>,
    {
        let section = self.section;
        let start = relative_start(section, index);
        let size = section.range(index).map_or(0, |range| range.size);
        let at = lookup::entry_at(section.header(), index);
        let before = core::mem::replace(order, order.with(start, size, index));
        if before.any && start < before.start {
            self.report(Some(index), Fault::UnsortedFde(at))?;
        }
        if before.any && size == 0 && (start < before.end || start == before.start) {
            let other = if start < before.end { before.widest } else { before.index };
            self.report(Some(index), Fault::EmptyNeighbour { at, other })?;
        } else if before.any && size != 0 && start < before.end {
            self.report(Some(index), Fault::Overlap { at, other: before.widest })?;
        } else if before.any && before.size == 0 && start == before.start {
            let at = lookup::entry_at(section.header(), before.index);
            self.report(Some(before.index), Fault::EmptyNeighbour { at, other: index })?;
        }
        ControlFlow::Continue(())
    }

    fn function<B>(&mut self, index: u32) -> ControlFlow<B>
    where
        V: FnMut(Finding) -> ControlFlow<B>,
    {
        let function = Some(index);
        let fde = match self.section.fde(index) {
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
        let limit = u64::from(self.section.header().fre_len).saturating_mul(ROWS_PER_BYTE);
        if self.summary.rows.saturating_add(fde.num_fres.into()) > limit.max(0x1_0000) {
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
        let plain = fde.kind() == FdeKind::Default;
        let mut rest = bytes;
        let mut least = 0;
        for _ in 0..fde.num_fres {
            let Some((head, words)) = rest.split_first_chunk::<HEAD>() else {
                self.cut(fde.index, Error::Truncated(self.section.offset_of(rest)))?;
                break;
            };
            let (start, info) = split_head(head, endian);
            let slow = self.slow.get(usize::from(info)).copied().unwrap_or(true) || !plain;
            if slow || start >= end || u64::from(start) < least || (least == 0 && start != 0) {
                let fre = self.row(fde, kind, rest, least, end)?;
                if fre.is_none() {
                    break;
                }
            }
            let len = WORDS_LEN.get(usize::from(info & 0x7f)).copied().unwrap_or_default();
            let Some(next) = words.get(usize::from(len)..) else {
                self.cut(fde.index, Error::Truncated(self.section.offset_of(rest)))?;
                break;
            };
            rest = next;
            least = u64::from(start).wrapping_add(1);
            self.summary.rows = self.summary.rows.wrapping_add(1);
        }
        let attribute = if fde.dialect.version == Version::V3 { Fde::ATTRIBUTE_SIZE } else { 0 };
        let used = bytes.len().saturating_sub(rest.len()).saturating_add(attribute);
        self.bytes = self.bytes.saturating_add(u64::try_from(used).unwrap_or(u64::MAX));
        ControlFlow::Continue(())
    }

    /// Looks closer at one row. Without it, nothing is known of those behind it.
    #[cold]
    fn row<B>(
        &mut self,
        fde: &Fde,
        kind: FreType,
        bytes: &[u8],
        least: u64,
        end: u32,
    ) -> ControlFlow<B, Option<Fre>>
    where
        V: FnMut(Finding) -> ControlFlow<B>,
    {
        let function = Some(fde.index);
        let at = self.section.offset_of(bytes);
        let fre = match Fre::decode(bytes, at, kind, fde.dialect.endian) {
            Ok(fre) => fre,
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
        if !meaningless && let Err(error) = fde.row(&fre) {
            self.report(function, Fault::Malformed(error))?;
        }
        let count = fre.info.word_count();
        if fde.kind() == FdeKind::Default && count > meaningful_words(self.section) {
            self.report(function, Fault::SurplusWords { at, count })?;
        }
        if fre.info.mangled_ra() && !is_aarch64(fde.dialect.abi) && !meaningless {
            self.report(function, Fault::SignedRa(at))?;
        }
        ControlFlow::Continue(Some(fre))
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

/// The start of a function as the search compares it.
fn relative_start(section: &Section<'_>, index: u32) -> i64 {
    let start = section.range(index).map_or(0, |range| range.start);
    start.wrapping_sub(section.addr()).cast_signed()
}

/// Which rows of default functions have more to look at than their size.
fn slow_infos(section: &Section<'_>) -> [bool; 256] {
    let abi = section.header().abi;
    let mut slow = [true; 256];
    for (slow, info) in slow.iter_mut().zip(0..=u8::MAX) {
        let info = FreInfo(info);
        let count = info.word_count();
        // s390x scales the CFA's offset, so that only wide ones overflow.
        let overflows = abi == Abi::S390xBig && info.word_size() == Some(4);
        let no_words = count == 0 && section.header().version == Version::V1;
        let signed = info.mangled_ra() && !is_aarch64(abi);
        *slow = info.word_size().is_none()
            || count > meaningful_words(section)
            || overflows
            || no_words
            || signed;
    }
    slow
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

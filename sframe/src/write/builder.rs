//! Collects functions, each encoded as it comes.

use alloc::vec::Vec;

use unwind_core::Row;

use crate::{
    format::{
        bytes::Endian,
        fde::{FreType, PauthKey},
        header::{Abi, Version},
    },
    write::{
        encode::{Body, Encoder, Kind, ShortRow, put},
        function::{Format, Function},
        lost::{Omission, OmissionReason, WriteError},
        run::{Class, Run, V3_MAX_ROWS},
        work_counter,
    },
};

/// A table that is being written.
///
/// Functions go in by [`add`](Self::add) in any order, or from another table by
/// [`add_table`](Self::add_table), and each is encoded at once in the
/// smallest form: row starts as wide as its last row needs, words as wide as
/// their row needs, flexible rows only where a rule needs them, and no row that
/// repeats the one before it. [`finish`](Self::finish) sorts them and gives the
/// section.
///
/// Ranges whose rules the format cannot express are handed to a function `lost`; everything else
/// is added.
///
/// A lack of memory is an error ([`WriteError::OutOfMemory`]), after which the builder is as it
/// was before the call.
///
/// # Example
///
/// ```
/// use sframe::{Abi, Builder, Format, Function, Table};
/// use unwind_core::{CfaRule, RegRule, Row};
///
/// // push %rbp; mov %rsp,%rbp; ...
/// let saved = RegRule::Offset(-8);
/// let rows = [
///     (0, Row::new(CfaRule::sp(8), saved, RegRule::SameValue)),
///     (1, Row::new(CfaRule::sp(16), saved, RegRule::Offset(-16))),
///     (4, Row::new(CfaRule::fp(16), saved, RegRule::Offset(-16))),
/// ];
/// let mut builder = Builder::new(Format::V3, Abi::Amd64Little)?;
/// builder.add(&Function::new(0x1040, 0x20, &rows), |lost| panic!("{lost}"))?;
/// let bytes = builder.finish(0x2000, |lost| panic!("{lost}"))?;
///
/// let section = Table::parse(&bytes)?.at(0x2000);
/// assert_eq!(section.find(0x1042)?.unwrap().row()?, rows[1].1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Builder {
    pub(crate) format: Format,
    pub(crate) encoder: Encoder,
    /// What becomes an entry of the function table each.
    pub(crate) entries: Vec<BuiltFunction>,
    /// The rows of all entries.
    pub(crate) fres: Vec<u8>,
    /// Rows of the function that is being copied from another table.
    pub(crate) scratch: Vec<(u32, Row)>,
    pub(crate) sorted: bool,
}

/// An entry of the function table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BuiltFunction {
    pub(crate) start: u64,
    pub(crate) size: u32,
    /// In what order it was added.
    pub(crate) order: u32,
    /// Where its rows are in `fres`, in bytes.
    pub(crate) rows_at: u32,
    pub(crate) rows_len: u32,
    pub(crate) num_fres: u32,
    pub(crate) info: u8,
    pub(crate) info2: u8,
    pub(crate) rep_size: u8,
}

/// The most bytes of one row: start, info byte, six words.
const MAX_ROW: usize = 4 + 1 + 6 * 4;

/// Rows that were appended.
#[derive(Clone, Copy)]
struct Shape {
    kind: Kind,
    width: FreType,
    num_fres: u32,
}

impl Shape {
    const NO_ROWS: Self = Self { kind: Kind::Default, width: FreType::Addr1, num_fres: 0 };
}

impl Builder {
    /// A table without functions.
    ///
    /// # Errors
    ///
    /// [`WriteError::UnknownAbi`] if it is not known how rows of `abi` are
    /// written.
    pub const fn new(format: Format, abi: Abi) -> Result<Self, WriteError> {
        let encoder = match Encoder::new(format, abi) {
            Ok(encoder) => encoder,
            Err(error) => return Err(error),
        };
        Ok(Self {
            format,
            encoder,
            entries: Vec::new(),
            fres: Vec::new(),
            scratch: Vec::new(),
            sorted: true,
        })
    }

    /// The form that the table is written in.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// The ABI of the code.
    #[must_use]
    pub const fn abi(&self) -> Abi {
        self.encoder.abi
    }

    /// Whether the table would have no function.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the whole of `function` can be written.
    ///
    /// # Errors
    ///
    /// The first [`Omission`] range.
    pub fn check(&self, function: &Function<'_>) -> Result<(), Omission> {
        let rows = inside(function);
        let lost = |start, size, reason| Omission::new(function.start, start, size, reason);
        self.check_shape(function, !rows.is_empty())
            .map_err(|reason| lost(function.start, function.size.into(), reason))?;
        if let Some(reason) = unsorted(rows) {
            return Err(lost(function.start, function.size.into(), reason));
        }
        let mut rows = rows.iter().peekable();
        while let Some(&(offset, row)) = rows.next() {
            if let Some(reason) =
                Class::of(self.encoder, &row, function.block_size.is_some()).lost()
            {
                let end = rows.peek().map_or(function.size, |&&(next, _)| next);
                let start = function.start.wrapping_add(offset.into());
                return Err(lost(start, end.saturating_sub(offset).into(), reason));
            }
        }
        Ok(())
    }

    /// Adds a function, as far as the format can express it. Ranges that it cannot express
    /// are handed to `lost` and split the function; one of blocks is lost as a
    /// whole.
    ///
    /// A function of more rows than an entry can have becomes several.
    ///
    /// # Errors
    ///
    /// [`WriteError::OutOfMemory`] and [`WriteError::TooLarge`]; nothing is
    /// added then.
    #[inline]
    pub fn add(
        &mut self,
        function: &Function<'_>,
        mut lost: impl FnMut(Omission),
    ) -> Result<(), WriteError> {
        let rows = inside(function);
        if let Err(reason) = self.check_shape(function, !rows.is_empty()) {
            lost(Omission::new(function.start, function.start, function.size.into(), reason));
            return Ok(());
        }
        self.reserve(rows.len())?;
        let mark = (self.entries.len(), self.fres.len(), self.sorted);
        // Nearly every function is one entry of default rows.
        let added = match self.put_default(rows) {
            Some(shape) => self.push(function, (function.start, function.size), shape, mark.1),
            None => {
                self.fres.truncate(mark.1);
                self.add_in_parts(function, rows, &mut lost)
            }
        };
        added.inspect_err(|_| {
            self.entries.truncate(mark.0);
            self.fres.truncate(mark.1);
            self.sorted = mark.2;
        })
    }

    /// V3 has some bytes of each entry with the entry's rows.
    pub(crate) const fn attribute_size(&self) -> u32 {
        match self.format.version() {
            Version::V3 => 5,
            _ => 0,
        }
    }

    /// What is wrong with the function as such.
    fn check_shape(&self, function: &Function<'_>, has_rows: bool) -> Result<(), OmissionReason> {
        if function.size == 0 {
            return Err(OmissionReason::Empty);
        }
        // Of its last byte: it may end where the address space does.
        if function.start.checked_add(u64::from(function.size).wrapping_sub(1)).is_none() {
            return Err(OmissionReason::Wraps);
        }
        if !has_rows {
            return Err(OmissionReason::NoRows);
        }
        if function.signal && self.format.version() != Version::V3 {
            return Err(OmissionReason::SignalFrame);
        }
        Ok(())
    }

    /// Makes room for that many rows, in as many entries as they may need.
    #[inline]
    fn reserve(&mut self, rows: usize) -> Result<(), WriteError> {
        let bytes = rows.checked_mul(MAX_ROW).and_then(|bytes| bytes.checked_add(Body::SIZE));
        let bytes = bytes.ok_or(WriteError::TooLarge)?;
        let total = self.fres.len().checked_add(bytes).ok_or(WriteError::TooLarge)?;
        u32::try_from(total).map_err(|_| WriteError::TooLarge)?;
        self.fres.try_reserve(bytes)?;
        self.entries.try_reserve(1)?;
        Ok(())
    }

    /// Appends all rows of a function as default rows of one entry. `None`, if
    /// they cannot be that or ask for a closer look; some may be appended then.
    #[inline]
    fn put_default(&mut self, rows: &[(u32, Row)]) -> Option<Shape> {
        if self.format.version() == Version::V3 && rows.len() > V3_MAX_ROWS {
            return None;
        }
        let encoder = self.encoder;
        let width = width_of(rows.last()?.0);
        let mut num_fres = 0_u32;
        let (mut least, mut last) = (0, 0);
        let (mut before_short, mut before) = (0, Body::NONE);
        for &(offset, ref row) in rows {
            work_counter::steps(1);
            if u64::from(offset) < least {
                return None;
            }
            least = u64::from(offset).wrapping_add(1);
            let Some(short) = encoder.encode_short(offset, row) else {
                let body = encoder.encode(Kind::Default, row).ok()?;
                before_short = 0;
                if body != core::mem::replace(&mut before, body) {
                    self.put_row(offset, width, &body);
                    num_fres = num_fres.wrapping_add(1);
                    last = offset;
                }
                continue;
            };
            before = Body::NONE;
            if short.bits == core::mem::replace(&mut before_short, short.bits) {
                continue;
            }
            self.put_short(width, &short);
            num_fres = num_fres.wrapping_add(1);
            last = offset;
        }
        // Less than the width said, if the last rows repeat one another.
        (width == width_of(last)).then_some(Shape { kind: Kind::Default, width, num_fres })
    }

    /// Adds a function of these rows, of which none says what the one before it does. False, if it
    /// is none that they alone say; it is not added then.
    ///
    /// # Errors
    ///
    /// As of [`add`](Self::add). The function's own rows are not looked at.
    #[cfg(feature = "cfi")]
    #[inline]
    pub(crate) fn add_short(
        &mut self,
        function: &Function<'_>,
        rows: &[ShortRow],
    ) -> Result<bool, WriteError> {
        let Some(last) = rows.last() else { return Ok(false) };
        if rows.len() > V3_MAX_ROWS || self.check_shape(function, true).is_err() {
            return Ok(false);
        }
        self.reserve(rows.len())?;
        let rows_at = self.fres.len();
        let width = width_of(last.start);
        for row in rows {
            work_counter::steps(1);
            self.put_short(width, row);
        }
        let num_fres = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let shape = Shape { kind: Kind::Default, width, num_fres };
        let added = self.push(function, (function.start, function.size), shape, rows_at);
        added.inspect_err(|_| self.fres.truncate(rows_at))?;
        Ok(true)
    }

    /// Appends a row. There is room for it.
    #[inline]
    fn put_short(&mut self, width: FreType, row: &ShortRow) {
        let start = match (self.encoder.endian, width) {
            (Endian::Little, _) | (_, FreType::Addr1) => row.start,
            (Endian::Big, FreType::Addr2) => row.start.swap_bytes() >> 16,
            (Endian::Big, FreType::Addr4) => row.start.swap_bytes(),
        };
        let bits = u128::from(row.bits);
        // Seven bytes and four at most.
        let bits = u128::from(start)
            | match width {
                FreType::Addr1 => bits << 8,
                FreType::Addr2 => bits << 16,
                FreType::Addr4 => bits << 32,
            };
        let len = usize::from(width.width().wrapping_add(row.len));
        let end = self.fres.len().wrapping_add(len);
        // A copy of constant length; what is after the row is cut off.
        self.fres.extend_from_slice(&bits.to_le_bytes());
        self.fres.truncate(end);
    }

    /// Adds a function that is not one entry of default rows.
    #[cold]
    fn add_in_parts(
        &mut self,
        function: &Function<'_>,
        rows: &[(u32, Row)],
        lost: &mut impl FnMut(Omission),
    ) -> Result<(), WriteError> {
        let whole =
            |reason| Omission::new(function.start, function.start, function.size.into(), reason);
        if let Some(reason) = unsorted(rows) {
            lost(whole(reason));
            return Ok(());
        }
        let mut of_blocks = rows.iter().filter(|_| function.block_size.is_some());
        if let Some(reason) =
            of_blocks.find_map(|(_, row)| Class::of(self.encoder, row, true).lost())
        {
            lost(whole(reason));
            return Ok(());
        }
        let mut first = 0;
        while let Some(&(offset, _)) = rows.get(first) {
            let run = Run::longest(self.encoder, rows, first);
            let end = rows.get(run.end).map_or(function.size, |&(next, _)| next);
            let part = rows.get(first..run.end).unwrap_or_default();
            let at_row = function.start.wrapping_add(offset.into());
            let len = end.saturating_sub(offset);
            let rows_at = self.fres.len();
            match run.class {
                Class::Omission(reason) => {
                    lost(Omission::new(function.start, at_row, len.into(), reason));
                }
                Class::SignalContext => {
                    // Without rows an entry is about all of its bytes.
                    self.push(function, (at_row, len), Shape::NO_ROWS, rows_at)?;
                }
                Class::Rows(kind) => {
                    // The entry of the first rows starts where the function does.
                    let base = if first == 0 { 0 } else { offset };
                    let shape = self.put_rows(kind, part, base);
                    let start = function.start.wrapping_add(base.into());
                    let size = end.saturating_sub(base);
                    self.push(function, (start, size), shape, rows_at)?;
                }
            }
            first = run.end;
        }
        Ok(())
    }

    /// Adds an entry for code at a start, of a size, with the rows from `rows_at`
    /// on.
    #[inline]
    fn push(
        &mut self,
        function: &Function<'_>,
        (start, size): (u64, u32),
        shape: Shape,
        rows_at: usize,
    ) -> Result<(), WriteError> {
        let to_u32 = |len: usize| u32::try_from(len).map_err(|_| WriteError::TooLarge);
        let mut info = match shape.width {
            FreType::Addr1 => 0,
            FreType::Addr2 => 1,
            FreType::Addr4 => 2,
        };
        let blocks = function.block_size.map_or(0, |size| size.get());
        info |= u8::from(blocks != 0) << 4;
        let key_b = self.encoder.is_aarch64() && function.pauth_key == PauthKey::B;
        info |= u8::from(key_b) << 5;
        // A trampoline that only its context tells about is one, too.
        info |= u8::from(function.signal || shape.num_fres == 0) << 7;
        let entry = BuiltFunction {
            start,
            size,
            order: to_u32(self.entries.len())?,
            rows_at: to_u32(rows_at)?,
            rows_len: to_u32(self.fres.len().saturating_sub(rows_at))?,
            num_fres: shape.num_fres,
            info,
            info2: u8::from(shape.kind == Kind::Flexible),
            rep_size: blocks,
        };
        self.entries.try_reserve(1)?;
        self.sorted &= self.entries.last().is_none_or(|last| last.start < start);
        self.entries.push(entry);
        Ok(())
    }

    /// Appends rows, less those that repeat the one before them.
    fn put_rows(&mut self, kind: Kind, rows: &[(u32, Row)], base: u32) -> Shape {
        let width = width_of(self.last_start(kind, rows).saturating_sub(base));
        let mut before = Body::NONE;
        let mut num_fres = 0_u32;
        for &(offset, ref row) in rows {
            work_counter::steps(1);
            let Ok(body) = self.encoder.encode(kind, row) else { continue };
            if body != core::mem::replace(&mut before, body) {
                self.put_row(offset.saturating_sub(base), width, &body);
                num_fres = num_fres.saturating_add(1);
            }
        }
        Shape { kind, width, num_fres }
    }

    /// The start of the last row that does not repeat the one before it.
    fn last_start(&self, kind: Kind, rows: &[(u32, Row)]) -> u32 {
        let mut rest = rows;
        while let [head @ .., (_, last)] = rest {
            let Some((_, before)) = head.last() else { break };
            if self.encoder.encode(kind, before) != self.encoder.encode(kind, last) {
                break;
            }
            work_counter::steps(1);
            rest = head;
        }
        rest.last().map_or(0, |&(offset, _)| offset)
    }

    fn put_row(&mut self, start: u32, width: FreType, body: &Body) {
        let head = usize::from(width.width());
        let mut bytes = [0; 4 + Body::SIZE];
        put(&mut bytes, 0, start, head, self.encoder.endian);
        if let Some(tail) = bytes.get_mut(head..).and_then(<[u8]>::first_chunk_mut) {
            *tail = body.bytes;
        }
        // A copy of constant length; what is after the row is cut off.
        let end = self.fres.len().saturating_add(head).saturating_add(body.len);
        self.fres.extend_from_slice(&bytes);
        self.fres.truncate(end);
    }
}

/// The rows of a function that begin inside it, or inside its block.
fn inside<'a>(function: &Function<'a>) -> &'a [(u32, Row)] {
    let end =
        function.block_size.map_or(function.size, |size| function.size.min(size.get().into()));
    let rows = function.rows;
    // Rows after the end are few, and last.
    let after = rows.iter().rev().take_while(|&&(offset, _)| offset >= end).count();
    rows.get(..rows.len().saturating_sub(after)).unwrap_or_default()
}

/// The first row that does not start after the one before it.
fn unsorted(rows: &[(u32, Row)]) -> Option<OmissionReason> {
    let mut pairs = rows.iter().zip(rows.iter().skip(1));
    let (_, &(offset, _)) = pairs.find(|((before, _), (offset, _))| before >= offset)?;
    Some(OmissionReason::Unsorted { offset })
}

const fn width_of(last_start: u32) -> FreType {
    match last_start {
        0..=0xff => FreType::Addr1,
        0x100..=0xffff => FreType::Addr2,
        _ => FreType::Addr4,
    }
}

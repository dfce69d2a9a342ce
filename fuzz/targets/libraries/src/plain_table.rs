//! A second reader of SFrame tables, as plain as can be: everything is decoded
//! one byte at a time, in 128 bits, and every search goes over all of it.

use sframe::{Error, Lookup, Table};

/// A table whose header is valid.
pub(crate) struct PlainTable<'a> {
    bytes: &'a [u8],
    big: bool,
    version: u8,
    flags: u8,
    abi: u8,
    num_fdes: u128,
    fdes_at: u128,
    fres_at: u128,
    fre_len: u128,
}

/// A function.
#[derive(Clone, Copy)]
pub(crate) struct PlainFunction {
    pub(crate) index: u128,
    /// From the section, in 64 bits with a sign.
    pub(crate) start: i64,
    pub(crate) size: u32,
    fre_offset: u128,
}

/// The function and the row of a pc; no row where the function has none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlainFound {
    index: u128,
    row: Option<PlainRow>,
}

#[derive(Debug, PartialEq, Eq)]
struct PlainRow {
    at: u128,
    start: u128,
    info: u8,
    words: Vec<i32>,
}

/// Something is malformed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl<'a> PlainTable<'a> {
    /// Reads the header, unless it is not valid.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        let head = bytes.get(..28)?;
        let big = match head[..2] {
            [0xe2, 0xde] => false,
            [0xde, 0xe2] => true,
            _ => return None,
        };
        let (version, flags, abi, aux_len) = (head[2], head[3], head[4], head[7]);
        let known = [0_u8, 3, 7, 5].get(usize::from(version)).filter(|_| version != 0)?;
        let endian_of_abi = match abi {
            1 => Some(true),
            2 | 3 => Some(false),
            4 if version != 1 => Some(true),
            _ => None,
        };
        if flags & !known != 0 || endian_of_abi.is_some_and(|of_abi| of_abi != big) {
            return None;
        }
        let mut table = Self {
            bytes,
            big,
            version,
            flags,
            abi,
            num_fdes: 0,
            fdes_at: 0,
            fres_at: 0,
            fre_len: 0,
        };
        let field = |at| table.number(at, 4);
        let header_end = 28 + u128::from(aux_len);
        let (num_fdes, fre_len) = (field(8)?, field(16)?);
        let (fdes_at, fres_at) = (header_end + field(20)?, header_end + field(24)?);
        let fdes_end = fdes_at + num_fdes * table.entry_size();
        if fdes_end > fres_at || fres_at + fre_len > bytes.len() as u128 {
            return None;
        }
        table.num_fdes = num_fdes;
        table.fre_len = fre_len;
        table.fdes_at = fdes_at;
        table.fres_at = fres_at;
        Some(table)
    }

    const fn entry_size(&self) -> u128 {
        match self.version {
            1 => 17,
            2 => 20,
            _ => 16,
        }
    }

    /// An unsigned number of up to 8 bytes, if the bytes have it.
    fn number(&self, at: u128, len: u128) -> Option<u128> {
        let mut value = 0;
        for i in 0..len {
            let place = if self.big { at + i } else { at + len - 1 - i };
            value = value << 8 | u128::from(*self.bytes.get(usize::try_from(place).ok()?)?);
        }
        Some(value)
    }

    /// The same inside the rows of the table.
    fn row_number(&self, at: u128, len: u128) -> Result<u128, Malformed> {
        if at + len > self.fres_at + self.fre_len {
            return Err(Malformed);
        }
        self.number(at, len).ok_or(Malformed)
    }

    pub(crate) fn functions(&self) -> impl Iterator<Item = PlainFunction> + '_ {
        (0..self.num_fdes).map(|index| {
            let at = self.fdes_at + index * self.entry_size();
            let start_len = if self.version == 3 { 8 } else { 4 };
            let raw = self.number(at, start_len).unwrap() as u64;
            let raw = if start_len == 4 { i64::from(raw as u32 as i32) } else { raw as i64 };
            let anchor = if self.flags & 4 != 0 { at as i64 } else { 0 };
            PlainFunction {
                index,
                start: raw.wrapping_add(anchor),
                size: self.number(at + start_len, 4).unwrap() as u32,
                fre_offset: self.number(at + start_len + 4, 4).unwrap(),
            }
        })
    }

    pub(crate) const fn is_sorted(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Whether a table that says that it is sorted is.
    pub(crate) fn is_honest(&self) -> bool {
        !self.is_sorted() || self.functions().is_sorted_by_key(|function| function.start)
    }

    /// The function that covers a pc, in bytes from the section: by the order
    /// of the table, or of a sorted one the last that starts at or before the
    /// pc, those of size zero and those of equal starts left out that do not
    /// cover it.
    fn function(&self, functions: &[PlainFunction], pc: i64) -> Option<PlainFunction> {
        let covers = |f: &&PlainFunction| (pc.wrapping_sub(f.start) as u64) < u64::from(f.size);
        if !self.is_sorted() {
            return functions.iter().find(covers).copied();
        }
        let mut previous: Option<&PlainFunction> = None;
        for function in functions.iter().rev().skip_while(|function| function.start > pc) {
            if previous.is_some_and(|last| last.size != 0 && last.start != function.start) {
                return None;
            }
            if covers(&function) {
                return Some(*function);
            }
            previous = Some(function);
        }
        None
    }

    /// The row of a pc, in bytes from the section, by a search of all rows.
    pub(crate) fn find(
        &self,
        functions: &[PlainFunction],
        pc: i64,
    ) -> Result<Option<PlainFound>, Malformed> {
        let Some(function) = self.function(functions, pc) else { return Ok(None) };
        let mut at = self.fres_at + function.fre_offset;
        if function.fre_offset > self.fre_len {
            return Err(Malformed);
        }
        let entry = self.fdes_at + function.index * self.entry_size();
        let (num_fres, info, info2, mut rep_size) = if self.version == 3 {
            let attribute = at;
            at += 5;
            (
                self.row_number(attribute, 2)?,
                self.row_number(attribute + 2, 1)?,
                self.row_number(attribute + 3, 1)?,
                self.row_number(attribute + 4, 1)?,
            )
        } else {
            let number = |offset, len| self.number(entry + offset, len).unwrap();
            let rep_size = if self.version == 2 { number(17, 1) } else { 0 };
            (number(12, 4), number(16, 1), 0, rep_size)
        };
        if info2 & 0x1f > 1 {
            return Err(Malformed);
        }
        if num_fres == 0 {
            let found = PlainFound { index: function.index, row: None };
            return Ok((self.version == 3).then_some(found));
        }
        let mut target = u128::from(pc.wrapping_sub(function.start) as u64);
        if info & 0x10 != 0 {
            if self.version == 1 && self.abi == 3 {
                rep_size = 16;
            }
            if rep_size == 0 {
                return Err(Malformed);
            }
            target %= rep_size;
        }
        let width = match info & 0xf {
            0 => 1,
            1 => 2,
            2 => 4,
            _ => return Err(Malformed),
        };
        let row = self.row(at, num_fres, width, target)?;
        Ok(row.map(|row| PlainFound { index: function.index, row: Some(row) }))
    }

    /// The last of the rows that starts at or before the target.
    fn row(
        &self,
        mut at: u128,
        num_fres: u128,
        width: u128,
        target: u128,
    ) -> Result<Option<PlainRow>, Malformed> {
        let mut found: Option<PlainRow> = None;
        for _ in 0..num_fres {
            let start = self.row_number(at, width)?;
            let info = self.row_number(at + width, 1)?;
            if start > target {
                break;
            }
            if found.as_ref().is_some_and(|before| start <= before.start) {
                return Err(Malformed);
            }
            let size = [1, 2, 4].get((info >> 5 & 3) as usize).ok_or(Malformed)?;
            let count = info >> 1 & 0xf;
            let words_at = at + width + 1;
            let word = |index: u128| {
                let word = self.row_number(words_at + index * size, *size)? as u32;
                let unused = 32 - 8 * *size as u32;
                Ok((word << unused) as i32 >> unused)
            };
            let words = (0..count).map(word).collect::<Result<Vec<i32>, _>>()?;
            found = Some(PlainRow { at, start, info: info as u8, words });
            at = words_at + count * size;
        }
        Ok(found)
    }
}

/// The answer of the reader under test in the terms of this one.
pub(crate) fn found(found: Result<Option<Lookup>, Error>) -> Result<Option<PlainFound>, Malformed> {
    let Some(found) = found.map_err(|_| Malformed)? else { return Ok(None) };
    let row = found.fre.map(|fre| PlainRow {
        at: fre.at.0.into(),
        start: fre.start.into(),
        info: fre.info.0,
        words: fre.words().to_vec(),
    });
    Ok(Some(PlainFound { index: found.fde.index.into(), row }))
}

impl PlainFound {
    /// With no more words than any format gives a meaning.
    pub(crate) fn shortened(mut self) -> Self {
        if let Some(row) = &mut self.row {
            row.words.truncate(6);
        }
        self
    }
}

/// Addresses where the answer may change: of some functions, both ends and a
/// few inside, and the ends of the address space.
pub(crate) fn pcs(table: &Table<'_>) -> Vec<u64> {
    let mut pcs = vec![0, u64::MAX, table.addr(), table.addr().wrapping_add(1 << 63)];
    for range in (0..table.header().num_fdes.min(24)).filter_map(|index| table.range(index)) {
        let size = u64::from(range.size);
        for offset in [0, 1, 2, 4, 5, 9, 16, 17, size / 2, size.wrapping_sub(1), size] {
            pcs.push(range.start.wrapping_add(offset));
        }
        pcs.push(range.start.wrapping_sub(1));
    }
    pcs.sort_unstable();
    pcs.dedup();
    pcs
}

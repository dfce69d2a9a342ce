//! The entries of a section: CIEs and FDEs without their instructions.

use crate::sign::Signed;
use core::ops::Range;

use gimli::{DwEhPe, Reader as _, constants};

use super::{lost::CfiOmissionReason, reader::Reader};
use crate::write::work_counter;

/// Call frame information of 64-bit code, and where it is linked.
#[derive(Clone, Copy, Debug)]
pub struct CfiSection<'a> {
    bytes: &'a [u8],
    is_eh: bool,
    addr: u64,
    text: Option<u64>,
    data: Option<u64>,
    code: &'a [Range<u64>],
}

impl<'a> CfiSection<'a> {
    /// The bytes of `.eh_frame`, linked or loaded at `addr`.
    #[must_use]
    pub const fn eh_frame(bytes: &'a [u8], addr: u64) -> Self {
        Self { bytes, is_eh: true, addr, text: None, data: None, code: &[] }
    }

    /// The bytes of `.debug_frame`.
    #[must_use]
    pub const fn debug_frame(bytes: &'a [u8]) -> Self {
        Self { bytes, is_eh: false, addr: 0, text: None, data: None, code: &[] }
    }

    /// Says where the code is that text-relative addresses count from.
    #[must_use]
    pub const fn text(mut self, addr: u64) -> Self {
        self.text = Some(addr);
        self
    }

    /// Says where the data is (the GOT, on x86-64) that data-relative addresses
    /// count from.
    #[must_use]
    pub const fn data(mut self, addr: u64) -> Self {
        self.data = Some(addr);
        self
    }

    /// Says where code is. Entries about other addresses are left out: linkers
    /// leave such for functions that they drop. Without this, or with no
    /// ranges, every address may be code.
    ///
    /// Ranges that ascend and do not overlap are searched by bisection; others
    /// are looked through for each entry.
    #[must_use]
    pub const fn code(mut self, ranges: &'a [Range<u64>]) -> Self {
        self.code = ranges;
        self
    }

    /// The length of the section in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the section has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether the ranges of code ascend.
    fn is_ascending(&self) -> bool {
        work_counter::steps(self.code.len());
        self.code.is_sorted_by(|a, b| a.start <= a.end && a.end <= b.start)
    }
}

/// A CIE without its instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cie<'a> {
    pub(crate) code_align: u64,
    pub(crate) data_align: i64,
    /// The column of the return address.
    pub(crate) ra: u64,
    pub(crate) is_signal: bool,
    pub(crate) key_b: bool,
    /// Its FDEs have augmentation data.
    has_data: bool,
    pub(crate) address_encoding: DwEhPe,
    pub(crate) instructions: Reader<'a>,
}

/// An FDE without its CIE's part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fde<'a> {
    /// Where the entry is.
    pub(crate) at: u64,
    /// Where its CIE is.
    pub(crate) cie: u64,
    rest: Reader<'a>,
}

/// The code that an FDE is about, and its instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'a> {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) instructions: Reader<'a>,
}

/// Reads entries and what they point to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entries<'a> {
    pub(crate) section: CfiSection<'a>,
    /// The ranges of code can be searched by bisection.
    is_code_ascending: bool,
    whole: Reader<'a>,
    rest: Reader<'a>,
}

impl<'a> Entries<'a> {
    pub(crate) fn new(section: CfiSection<'a>, endian: gimli::RunTimeEndian) -> Self {
        let whole = Reader::new(section.bytes, endian);
        Self { section, is_code_ascending: section.is_ascending(), whole, rest: whole }
    }

    fn is_code(&self, addr: u64) -> bool {
        let code = self.section.code;
        let first = match self.is_code_ascending {
            true => code.partition_point(|range| {
                work_counter::steps(1);
                range.end <= addr
            }),
            false => 0,
        };
        let mut rest = code.iter().skip(first);
        let found = match self.is_code_ascending {
            true => rest.next().is_some_and(|range| range.contains(&addr)),
            false => rest.any(|range| {
                work_counter::steps(1);
                range.contains(&addr)
            }),
        };
        code.is_empty() || found
    }

    /// The offset of what `reader` reads next.
    pub(crate) fn offset(&self, reader: &Reader<'_>) -> u64 {
        u64::try_from(reader.offset_from(self.whole)).unwrap_or(u64::MAX)
    }

    /// The offset of the next entry.
    pub(crate) fn position(&self) -> u64 {
        self.offset(&self.rest)
    }

    /// The reason for a reader that ended.
    pub(crate) fn truncated(&self, reader: &Reader<'_>) -> CfiOmissionReason {
        CfiOmissionReason::TruncatedEntry { at: self.offset(reader) }
    }

    /// The next FDE; `None` at the end. An error is about the entry that starts
    /// at the offset with it, and those after it follow.
    pub(crate) fn next_fde(&mut self) -> Result<Option<Fde<'a>>, (u64, CfiOmissionReason)> {
        while !self.rest.is_empty() {
            let at = self.position();
            let Some(entry) = split_entry(&mut self.rest) else {
                self.end();
                return Err((at, CfiOmissionReason::Truncated));
            };
            if entry.rest.is_empty() {
                // A terminator, but in `.debug_frame` an assembler's mistake.
                if self.section.is_eh {
                    self.end();
                }
                continue;
            }
            match self.fde(at, entry) {
                Ok(None) => {}
                Ok(Some(fde)) => return Ok(Some(fde)),
                Err(reason) => return Err((at, reason)),
            }
        }
        Ok(None)
    }

    /// Goes past the next entry, if it starts at `up_to` or before. `Some` says
    /// whether it is a CIE.
    pub(crate) fn pass(&mut self, up_to: u64) -> Option<bool> {
        if self.rest.is_empty() || self.position() > up_to {
            return None;
        }
        let Some(mut entry) = split_entry(&mut self.rest) else {
            self.end();
            return None;
        };
        if entry.rest.is_empty() && self.section.is_eh {
            self.end();
        }
        Some(self.id(&mut entry).is_some_and(|id| self.is_cie(id, &entry)))
    }

    /// Leaves no entries.
    fn end(&mut self) {
        let len = self.rest.len();
        // Not `empty`, after which offsets mean nothing.
        _ = self.rest.skip(len);
    }

    /// The entry as an FDE, unless it is a CIE.
    fn fde(&self, at: u64, mut entry: Entry<'a>) -> Result<Option<Fde<'a>>, CfiOmissionReason> {
        let base = self.offset(&entry.rest);
        let id = self.id(&mut entry).ok_or(self.truncated(&entry.rest))?;
        if self.is_cie(id, &entry) {
            return Ok(None);
        }
        // In `.eh_frame` it counts back from its own field.
        let cie = if self.section.is_eh { base.wrapping_sub(id) } else { id };
        Ok(Some(Fde { at, cie, rest: entry.rest }))
    }

    fn id(&self, entry: &mut Entry<'a>) -> Option<u64> {
        if entry.is_64 && !self.section.is_eh {
            entry.rest.read_u64().ok()
        } else {
            entry.rest.read_u32().ok().map(u64::from)
        }
    }

    const fn is_cie(&self, id: u64, entry: &Entry<'_>) -> bool {
        match (self.section.is_eh, entry.is_64) {
            (true, _) => id == 0,
            (false, true) => id == u64::MAX,
            (false, false) => id == 0xffff_ffff,
        }
    }

    /// Reads the CIE at an offset where [`pass`](Self::pass) met one.
    pub(crate) fn cie(&self, at: u64) -> Result<Cie<'a>, CfiOmissionReason> {
        let not_cie = CfiOmissionReason::NotCie { at };
        let mut rest = self.whole;
        usize::try_from(at).ok().and_then(|at| rest.skip(at).ok()).ok_or(not_cie)?;
        let mut entry = split_entry(&mut rest).ok_or(not_cie)?;
        self.id(&mut entry).ok_or(not_cie)?;
        let mut r = entry.rest;
        let truncated = |r: &Reader<'_>| self.truncated(r);
        let version = r.read_u8().map_err(|_| truncated(&r))?;
        if !matches!(version, 1 | 3 | 4) {
            return Err(CfiOmissionReason::CieVersion(version));
        }
        let augmentation = r.read_null_terminated_slice().map_err(|_| truncated(&r))?;
        if version == 4 && !self.section.is_eh {
            let [size, segment] = [(); 2].map(|()| r.read_u8().unwrap_or(0));
            if (size, segment) != (8, 0) {
                return Err(CfiOmissionReason::AddressSize(size));
            }
        }
        let code_align = r.read_uleb128().map_err(|_| truncated(&r))?;
        let data_align = r.read_sleb128().map_err(|_| truncated(&r))?;
        let ra = if version == 1 { r.read_u8().map(u64::from) } else { r.read_uleb128() };
        let ra = ra.map_err(|_| truncated(&r))?;
        let mut cie = Cie {
            code_align,
            data_align,
            ra,
            is_signal: false,
            key_b: false,
            has_data: false,
            address_encoding: constants::DW_EH_PE_absptr,
            instructions: r,
        };
        self.augment(&mut cie, augmentation)?;
        Ok(cie)
    }

    /// Reads what the letters of an augmentation say, from where a CIE's
    /// instructions would otherwise start.
    fn augment(&self, cie: &mut Cie<'a>, letters: Reader<'a>) -> Result<(), CfiOmissionReason> {
        let truncated = |r: &Reader<'_>| self.truncated(r);
        let mut data = None;
        for (index, &letter) in letters.slice().iter().enumerate() {
            work_counter::steps(1);
            let unknown = CfiOmissionReason::Augmentation(letter);
            match letter {
                b'z' if index == 0 => {
                    let r = &mut cie.instructions;
                    let len = r.read_uleb128().map_err(|_| truncated(r))?;
                    let len = usize::try_from(len).map_err(|_| truncated(r))?;
                    data = Some(r.split(len).map_err(|_| truncated(r))?);
                    cie.has_data = true;
                }
                b'S' => cie.is_signal = true,
                // The key of signed return addresses; tagged stack memory.
                b'B' => cie.key_b = true,
                b'G' => {}
                b'L' | b'R' | b'P' => {
                    let r = data.as_mut().ok_or(unknown)?;
                    let encoding = DwEhPe(r.read_u8().map_err(|_| truncated(r))?);
                    match letter {
                        b'R' => cie.address_encoding = encoding,
                        b'P' => {
                            let aligned = encoding.application() == constants::DW_EH_PE_aligned;
                            let personality = if aligned { None } else { self.value(encoding, r) };
                            personality.ok_or(CfiOmissionReason::Pointer(encoding.0))?;
                        }
                        _ => {}
                    }
                }
                _ => return Err(unknown),
            }
        }
        Ok(())
    }

    /// Reads the part of an FDE that its CIE explains.
    pub(crate) fn body(&self, fde: &Fde<'a>, cie: &Cie<'a>) -> Result<Body<'a>, CfiOmissionReason> {
        let mut r = fde.rest;
        let encoding = cie.address_encoding;
        let pointer = CfiOmissionReason::Pointer(encoding.0);
        let start = self.pointer(encoding, &mut r).ok_or(pointer)?;
        let len = self.value(encoding, &mut r).ok_or(pointer)?;
        if cie.has_data {
            let data_len = r.read_uleb128().map_err(|_| self.truncated(&r))?;
            let skipped = usize::try_from(data_len).ok().and_then(|len| r.skip(len).ok());
            skipped.ok_or(self.truncated(&r))?;
        }
        if len != 0 && !self.is_code(start) {
            return Err(CfiOmissionReason::NotCode);
        }
        Ok(Body { start, len, instructions: r })
    }

    /// Reads an address.
    pub(crate) fn pointer(&self, encoding: DwEhPe, r: &mut Reader<'a>) -> Option<u64> {
        let base = match encoding.application() {
            constants::DW_EH_PE_absptr => 0,
            constants::DW_EH_PE_pcrel => self.section.addr.wrapping_add(self.offset(r)),
            constants::DW_EH_PE_textrel => self.section.text?,
            constants::DW_EH_PE_datarel => self.section.data?,
            _ => return None,
        };
        if encoding.is_indirect() {
            return None;
        }
        self.value(encoding, r).map(|value| base.wrapping_add(value))
    }

    /// Reads a number by the format of an encoding.
    fn value(&self, encoding: DwEhPe, r: &mut Reader<'a>) -> Option<u64> {
        let signed = |value: i64| value.unsigned();
        match encoding.format() {
            constants::DW_EH_PE_absptr | constants::DW_EH_PE_udata8 => r.read_u64().ok(),
            constants::DW_EH_PE_uleb128 => r.read_uleb128().ok(),
            constants::DW_EH_PE_udata2 => r.read_u16().ok().map(u64::from),
            constants::DW_EH_PE_udata4 => r.read_u32().ok().map(u64::from),
            constants::DW_EH_PE_sleb128 => r.read_sleb128().ok().map(signed),
            constants::DW_EH_PE_sdata2 => r.read_i16().ok().map(i64::from).map(signed),
            constants::DW_EH_PE_sdata4 => r.read_i32().ok().map(i64::from).map(signed),
            constants::DW_EH_PE_sdata8 => r.read_i64().ok().map(signed),
            _ => None,
        }
    }
}

/// The bytes of an entry after its length.
#[derive(Clone, Copy)]
struct Entry<'a> {
    is_64: bool,
    rest: Reader<'a>,
}

fn split_entry<'a>(rest: &mut Reader<'a>) -> Option<Entry<'a>> {
    work_counter::steps(1);
    let (len, format) = rest.read_initial_length().ok()?;
    let entry = rest.split(len).ok()?;
    Some(Entry { is_64: format == gimli::Format::Dwarf64, rest: entry })
}

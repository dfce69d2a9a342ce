//! The entries of a section: CIEs and FDEs without their instructions.

use gimli::{DwEhPe, Reader as _, constants};

use crate::{
    abi::{CfiAbi, RegisterNumbers},
    error::CfiError,
    reader::Reader,
    section::CfiSection,
    work_counter,
};

/// The most letters of an augmentation. All that are known make seven.
const MAX_LETTERS: usize = 15;

/// A common information entry: what many FDEs have in common.
#[derive(Clone, Copy, Debug)]
pub struct Cie<'a> {
    pub(crate) code_align: u64,
    pub(crate) data_align: i64,
    /// The column of the return address.
    pub(crate) ra: u64,
    pub(crate) is_signal: bool,
    pub(crate) key_b: bool,
    /// Its FDEs have augmentation data.
    pub(crate) has_data: bool,
    pub(crate) address_encoding: DwEhPe,
    pub(crate) instructions: Reader<'a>,
}

/// What unwinding of exceptions needs to know of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExceptionData {
    /// The function that decides what becomes of an exception: of the language.
    pub personality: Option<EncodedPointer>,
    /// What it looks at: the language's own data.
    pub lsda: Option<EncodedPointer>,
}

/// An address that call frame information has for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedPointer {
    /// The address, or where it is in memory.
    pub addr: u64,
    /// The address is in memory.
    pub is_indirect: bool,
}

/// A frame description entry, as far as it can be read without its CIE.
#[derive(Clone, Copy, Debug)]
pub struct Fde<'a> {
    /// The offset of the entry in the section, in bytes.
    pub at: u64,
    /// The offset of its CIE in the section, in bytes.
    pub cie: u64,
    pub(crate) rest: Reader<'a>,
}

impl Fde<'_> {
    /// How far after the section's start the entry ends, in bytes.
    pub(crate) fn end(&self, entries: &Entries<'_>) -> u64 {
        let len = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        entries.offset(&self.rest).saturating_add(len)
    }
}

/// The code that an FDE is about, and its instructions.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    /// Address of the first byte of code.
    pub start: u64,
    /// Length of the code in bytes.
    pub len: u64,
    pub(crate) instructions: Reader<'a>,
}

impl Body<'_> {
    /// False if no instruction is about the register with this DWARF number, less than 64. It takes time linear
    /// in the bytes of the instructions.
    #[must_use]
    pub fn may_name(&self, register: u8) -> bool {
        may_name(self.instructions, register)
    }
}

/// Instructions name a register by a number of its own, or in their lowest bits: `DW_CFA_offset` is 0x80 and
/// `DW_CFA_restore` 0xc0. A number may have more bytes than it needs, the first of which has the bit 0x80.
fn may_name(instructions: Reader<'_>, register: u8) -> bool {
    let names = [register, 0x80 | register, 0xc0 | register];
    instructions.slice().iter().any(|byte| names.contains(byte))
}

/// The entries of a section, one after the other, and what they point to.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a> {
    section: CfiSection<'a>,
    pub(crate) abi: CfiAbi,
    pub(crate) registers: RegisterNumbers,
    /// The ranges of code can be searched by bisection.
    is_code_ascending: bool,
    /// It is `.eh_frame` of little-endian code.
    pub(crate) is_little_eh: bool,
    whole: Reader<'a>,
    rest: Reader<'a>,
}

impl Cie<'_> {
    /// The same as [`Body::may_name`].
    #[must_use]
    pub fn may_name(&self, register: u8) -> bool {
        may_name(self.instructions, register)
    }

    /// Whether the code is a signal trampoline: a return address to it is the interrupted
    /// instruction itself.
    #[must_use]
    pub const fn is_signal(&self) -> bool {
        self.is_signal
    }

    /// AArch64: whether return addresses are signed by key B, and not by key A.
    #[must_use]
    pub const fn uses_key_b(&self) -> bool {
        self.key_b
    }
}

impl<'a> Entries<'a> {
    /// The entries of a section, from the first one on.
    #[must_use]
    pub fn new(section: CfiSection<'a>, abi: CfiAbi) -> Self {
        let whole = Reader::new(section.bytes, abi.endian());
        let is_code_ascending = section.is_ascending();
        Self {
            section,
            abi,
            registers: RegisterNumbers::new(abi),
            is_code_ascending,
            is_little_eh: section.is_eh && abi.endian() == gimli::RunTimeEndian::Little,
            whole,
            rest: whole,
        }
    }

    /// The same, where rules are kept of the register with this DWARF number in place of the frame pointer.
    #[must_use]
    pub fn keeping(mut self, register: u8) -> Self {
        self.registers.kept = register;
        self
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

    /// The code that the section describes.
    #[must_use]
    pub const fn abi(&self) -> CfiAbi {
        self.abi
    }

    /// The section.
    #[must_use]
    pub const fn section(&self) -> &CfiSection<'a> {
        &self.section
    }

    /// Reads from an offset on, at most the end.
    pub(crate) fn from(&self, offset: u64) -> Reader<'a> {
        let mut rest = self.whole;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(rest.len());
        _ = rest.skip(offset);
        rest
    }

    /// The offset of what `reader` reads next.
    pub(crate) fn offset(&self, reader: &Reader<'_>) -> u64 {
        u64::try_from(reader.offset_from(self.whole)).unwrap_or(u64::MAX)
    }

    /// The offset of the next entry in the section, in bytes.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.offset(&self.rest)
    }

    /// The reason for a reader that ended.
    pub(crate) fn truncated(&self, reader: &Reader<'_>) -> CfiError {
        CfiError::TruncatedEntry { at: self.offset(reader) }
    }

    /// The next FDE; `None` at the end.
    ///
    /// # Errors
    ///
    /// What is wrong with an entry, and the offset in the section that it starts at. The
    /// entries after it follow.
    pub fn next_fde(&mut self) -> Result<Option<Fde<'a>>, (u64, CfiError)> {
        while !self.rest.is_empty() {
            let at = self.position();
            let Some(entry) = split_entry(&mut self.rest) else {
                self.end();
                return Err((at, CfiError::Truncated));
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
    pub fn pass(&mut self, up_to: u64) -> Option<bool> {
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

    /// The entry as an FDE, unless it is a CIE or a terminator.
    fn fde(&self, at: u64, mut entry: RawEntry<'a>) -> Result<Option<Fde<'a>>, CfiError> {
        if entry.rest.is_empty() {
            return Ok(None);
        }
        let base = self.offset(&entry.rest);
        let id = self.id(&mut entry).ok_or(self.truncated(&entry.rest))?;
        if self.is_cie(id, &entry) {
            return Ok(None);
        }
        // In `.eh_frame` it counts back from its own field.
        let cie = if self.section.is_eh { base.wrapping_sub(id) } else { id };
        Ok(Some(Fde { at, cie, rest: entry.rest }))
    }

    fn id(&self, entry: &mut RawEntry<'a>) -> Option<u64> {
        if entry.is_64 && !self.section.is_eh {
            entry.rest.read_u64().ok()
        } else {
            entry.rest.read_u32().ok().map(u64::from)
        }
    }

    const fn is_cie(&self, id: u64, entry: &RawEntry<'_>) -> bool {
        match (self.section.is_eh, entry.is_64) {
            (true, _) => id == 0,
            (false, true) => id == u64::MAX,
            (false, false) => id == 0xffff_ffff,
        }
    }

    /// Reads the CIE at an offset in the section.
    ///
    /// # Errors
    ///
    /// [`CfiError`] if there is none, or if it is malformed.
    pub fn cie(&self, at: u64) -> Result<Cie<'a>, CfiError> {
        match self.frequent_cie(at) {
            Some(cie) => Ok(cie),
            None => self.read_cie(at),
        }
    }

    /// The same of any form.
    #[inline(never)]
    pub(crate) fn read_cie(&self, at: u64) -> Result<Cie<'a>, CfiError> {
        let not_cie = CfiError::NotCie { at };
        let mut rest = self.whole;
        usize::try_from(at).ok().and_then(|at| rest.skip(at).ok()).ok_or(not_cie)?;
        let mut entry = split_entry(&mut rest).ok_or(not_cie)?;
        self.id(&mut entry).filter(|&id| self.is_cie(id, &entry)).ok_or(not_cie)?;
        let mut r = entry.rest;
        let truncated = |r: &Reader<'_>| self.truncated(r);
        let version = r.read_u8().map_err(|_| truncated(&r))?;
        if !matches!(version, 1 | 3 | 4) {
            return Err(CfiError::CieVersion(version));
        }
        let augmentation = self.augmentation(&mut r)?;
        if version == 4 && !self.section.is_eh {
            let [size, segment] = [(); 2].map(|()| r.read_u8().unwrap_or(0));
            if (size, segment) != (self.abi.address_size(), 0) {
                return Err(CfiError::AddressSize(size));
            }
        }
        let code_align = r.read_uleb128().map_err(|_| truncated(&r))?;
        let data_align = r.read_sleb128().map_err(|_| truncated(&r))?;
        let ra = if version == 1 { r.read_u8().map(u64::from) } else { r.read_uleb128() };
        let ra = ra.map_err(|_| truncated(&r))?;
        if ra == self.registers.fp.into() || ra == self.registers.sp.into() {
            return Err(CfiError::NoReturnAddress);
        }
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

    /// The letters of an augmentation, of which there are few.
    fn augmentation(&self, r: &mut Reader<'a>) -> Result<Reader<'a>, CfiError> {
        let mut head = *r;
        _ = head.truncate(head.len().min(MAX_LETTERS.saturating_add(1)));
        let len = match head.find(0) {
            Some(len) => len,
            None if head.len() <= MAX_LETTERS => return Err(self.truncated(r)),
            None => return Err(CfiError::Augmentation(head.slice().last().copied().unwrap_or(0))),
        };
        let letters = r.split(len).map_err(|_| self.truncated(r))?;
        _ = r.skip(1);
        Ok(letters)
    }

    /// Reads what the letters of an augmentation say, from where a CIE's
    /// instructions would otherwise start.
    fn augment(&self, cie: &mut Cie<'a>, letters: Reader<'a>) -> Result<(), CfiError> {
        let truncated = |r: &Reader<'_>| self.truncated(r);
        let mut data = None;
        for (index, &letter) in letters.slice().iter().enumerate() {
            work_counter::steps(1);
            let unknown = CfiError::Augmentation(letter);
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
                            personality.ok_or(CfiError::Pointer(encoding.0))?;
                        }
                        _ => {}
                    }
                }
                _ => return Err(unknown),
            }
        }
        Ok(())
    }

    /// Reads the FDE at an offset in the section.
    ///
    /// # Errors
    ///
    /// [`CfiError`] if there is none, or if it is malformed.
    pub fn fde_at(&self, at: u64) -> Result<Fde<'a>, CfiError> {
        match self.frequent_fde(at) {
            Some(fde) => Ok(fde),
            None => self.read_fde(at),
        }
    }

    /// The same of any form.
    #[inline(never)]
    pub(crate) fn read_fde(&self, at: u64) -> Result<Fde<'a>, CfiError> {
        let mut rest = self.whole;
        let entry = usize::try_from(at).ok().and_then(|at| rest.skip(at).ok());
        let entry = entry.and_then(|()| split_entry(&mut rest)).ok_or(CfiError::Truncated)?;
        self.fde(at, entry)?.ok_or(CfiError::NotFde { at })
    }

    /// Reads the FDE that starts with the section, of which the section may be the first
    /// part only.
    pub(crate) fn clipped_fde(&self) -> Result<Fde<'a>, CfiError> {
        let mut rest = self.whole;
        let (_, format) = rest.read_initial_length().map_err(|_| CfiError::Truncated)?;
        let entry = RawEntry { is_64: format == gimli::Format::Dwarf64, rest };
        self.fde(0, entry)?.ok_or(CfiError::NotFde { at: 0 })
    }

    /// Reads the part of an FDE that its CIE explains.
    ///
    /// # Errors
    ///
    /// [`CfiError`] if it is malformed, or is not about [code](CfiSection::code).
    pub fn body(&self, fde: &Fde<'a>, cie: &Cie<'a>) -> Result<Body<'a>, CfiError> {
        match self.frequent_body(fde, cie) {
            Some(body) => Ok(body),
            None => self.read_body(fde, cie),
        }
    }

    /// The same of any form.
    #[inline(never)]
    pub(crate) fn read_body(&self, fde: &Fde<'a>, cie: &Cie<'a>) -> Result<Body<'a>, CfiError> {
        let mut r = fde.rest;
        let encoding = cie.address_encoding;
        let pointer = CfiError::Pointer(encoding.0);
        let start = self.pointer(encoding, &mut r).ok_or(pointer)?;
        let len = self.value(encoding, &mut r).ok_or(pointer)?;
        if cie.has_data {
            let data_len = r.read_uleb128().map_err(|_| self.truncated(&r))?;
            let skipped = usize::try_from(data_len).ok().and_then(|len| r.skip(len).ok());
            skipped.ok_or(self.truncated(&r))?;
        }
        if len != 0 && !self.is_code(start) {
            return Err(CfiError::NotCode);
        }
        Ok(Body { start, len, instructions: r })
    }

    /// Reads what an FDE and its CIE have for exceptions; `None` if they have nothing.
    // Apart from what a row takes, which it does not make larger.
    pub(crate) fn exception_data(&self, fde: &Fde<'a>) -> Option<ExceptionData> {
        let mut r = self.from(fde.cie);
        let mut entry = split_entry(&mut r)?;
        self.id(&mut entry)?;
        let mut r = entry.rest;
        _ = r.read_u8();
        let letters = self.augmentation(&mut r).ok()?;
        // Alignments, and the return address.
        for _ in 0..3 {
            r.read_uleb128().ok()?;
        }
        let mut letters = letters.slice().iter();
        letters.next().filter(|letter| **letter == b'z')?;
        r.read_uleb128().ok()?;
        let (mut address, mut lsda) = (constants::DW_EH_PE_absptr, constants::DW_EH_PE_omit);
        let mut found = ExceptionData::default();
        for letter in letters {
            if matches!(letter, b'L' | b'P' | b'R') {
                let encoding = DwEhPe(r.read_u8().ok()?);
                match letter {
                    b'L' => lsda = encoding,
                    b'R' => address = encoding,
                    _ => found.personality = self.encoded_pointer(encoding, &mut r),
                }
            }
        }
        let mut r = fde.rest;
        self.encoded_pointer(address, &mut r);
        self.encoded_pointer(DwEhPe(address.0 & 0xf), &mut r);
        r.read_uleb128().ok()?;
        found.lsda = self.encoded_pointer(lsda, &mut r);
        Some(found)
    }

    /// Reads an address for others; `None` if there is none.
    #[inline(never)]
    fn encoded_pointer(&self, encoding: DwEhPe, r: &mut Reader<'a>) -> Option<EncodedPointer> {
        let base = match encoding.application() {
            constants::DW_EH_PE_absptr => 0,
            constants::DW_EH_PE_pcrel => self.section.addr.wrapping_add(self.offset(r)),
            _ => return None,
        };
        let value = self.value(encoding, r).filter(|&value| value != 0)?;
        let addr = self.abi.address(base.wrapping_add(value));
        Some(EncodedPointer { addr, is_indirect: encoding.is_indirect() })
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
        self.value(encoding, r).map(|value| self.abi.address(base.wrapping_add(value)))
    }

    /// Reads a number by the format of an encoding.
    fn value(&self, encoding: DwEhPe, r: &mut Reader<'a>) -> Option<u64> {
        let signed = |value: i64| value.cast_unsigned();
        match encoding.format() {
            constants::DW_EH_PE_absptr if self.abi.address_size() == 4 => {
                r.read_u32().ok().map(u64::from)
            }
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
struct RawEntry<'a> {
    is_64: bool,
    rest: Reader<'a>,
}

fn split_entry<'a>(rest: &mut Reader<'a>) -> Option<RawEntry<'a>> {
    work_counter::steps(1);
    let (len, format) = rest.read_initial_length().ok()?;
    let entry = rest.split(len).ok()?;
    Some(RawEntry { is_64: format == gimli::Format::Dwarf64, rest: entry })
}

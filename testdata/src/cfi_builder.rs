//! `.eh_frame` and `.debug_frame` laid out entry by entry.
//!
//! As with sections, nothing is checked or improved.

/// Call frame information to be.
#[derive(Clone, Debug)]
pub struct CfiBuilder {
    /// `.eh_frame`, else `.debug_frame`.
    pub eh: bool,
    /// Big-endian, else little-endian.
    pub big: bool,
    /// 64-bit DWARF.
    pub dwarf64: bool,
    /// Where the section is, for addresses relative to it.
    pub addr: u64,
    bytes: Vec<u8>,
}

/// A CIE to be.
#[derive(Clone, Debug)]
pub struct Cie {
    /// 1, 3 or 4.
    pub version: u8,
    /// The letters, without the zero after them.
    pub augmentation: &'static [u8],
    /// What the letters say, without its length.
    pub data: Vec<u8>,
    /// The unit of locations in bytes.
    pub code_align: u8,
    /// The unit of offsets in bytes, 64 to -64.
    pub data_align: i8,
    /// The column of the return address.
    pub ra: u8,
    /// The instructions.
    pub instructions: Vec<u8>,
}

impl Cie {
    /// What compilers write for x86-64: at the start CFA = rsp+8, RA at CFA-8;
    /// addresses of 4 bytes, relative to their place.
    #[must_use]
    pub fn amd64() -> Self {
        Self {
            version: 1,
            augmentation: b"zR",
            data: vec![0x1b],
            code_align: 1,
            data_align: -8,
            ra: 16,
            instructions: vec![0x0c, 7, 8, 0x90, 1],
        }
    }

    /// For AArch64: at the start CFA = sp.
    #[must_use]
    pub fn aarch64() -> Self {
        Self { code_align: 4, ra: 30, instructions: vec![0x0c, 31, 0], ..Self::amd64() }
    }

    /// For s390x: at the start CFA = r15+160.
    #[must_use]
    pub fn s390x() -> Self {
        Self { ra: 14, instructions: vec![0x0c, 15, 0xa0, 1], ..Self::amd64() }
    }
}

impl CfiBuilder {
    /// A little-endian `.eh_frame` at `addr`.
    #[must_use]
    pub fn eh_frame(addr: u64) -> Self {
        Self { eh: true, big: false, dwarf64: false, addr, bytes: Vec::new() }
    }

    /// A little-endian `.debug_frame`.
    #[must_use]
    pub fn debug_frame() -> Self {
        Self { eh: false, ..Self::eh_frame(0) }
    }

    /// The bytes so far.
    #[must_use]
    pub fn build(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds raw bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Adds a CIE and says where it is.
    pub fn cie(&mut self, cie: &Cie) -> u64 {
        let id = match (self.eh, self.dwarf64) {
            (true, _) => 0,
            (false, true) => u64::MAX,
            (false, false) => 0xffff_ffff,
        };
        let mut rest = vec![cie.version];
        rest.extend(cie.augmentation);
        rest.push(0);
        if cie.version == 4 && !self.eh {
            rest.extend([8, 0]);
        }
        rest.extend([cie.code_align, cie.data_align.cast_unsigned() & 0x7f, cie.ra]);
        if cie.augmentation.first() == Some(&b'z') {
            rest.push(u8::try_from(cie.data.len()).unwrap());
            rest.extend(&cie.data);
        }
        rest.extend(&cie.instructions);
        self.entry(id, rest)
    }

    /// Adds an FDE for a CIE with addresses of 4 bytes, relative to their place
    /// (or in `.debug_frame`, absolute and of 8 bytes), and with augmentation
    /// data. Says where it is.
    pub fn fde(&mut self, cie: u64, start: u64, len: u64, instructions: &[u8]) -> u64 {
        let header = if self.dwarf64 { 12 } else { 4 };
        let at = u64::try_from(self.bytes.len()).unwrap() + header;
        let mut rest = Vec::new();
        if self.eh {
            let field = self.addr + at + 4;
            rest.extend(self.u32(u32::try_from(start.wrapping_sub(field) & 0xffff_ffff).unwrap()));
            rest.extend(self.u32(u32::try_from(len).unwrap()));
            rest.push(0);
        } else {
            rest.extend(self.u64(start));
            rest.extend(self.u64(len));
        }
        rest.extend(instructions);
        let id = if self.eh { at - cie } else { cie };
        self.entry(id, rest)
    }

    fn entry(&mut self, id: u64, rest: Vec<u8>) -> u64 {
        let at = u64::try_from(self.bytes.len()).unwrap();
        let id = if self.dwarf64 && !self.eh {
            self.u64(id).to_vec()
        } else {
            self.u32(u32::try_from(id).unwrap()).to_vec()
        };
        let len = u64::try_from(id.len() + rest.len()).unwrap();
        if self.dwarf64 {
            self.bytes.extend([0xff; 4]);
            self.bytes.extend(self.u64(len));
        } else {
            self.bytes.extend(self.u32(u32::try_from(len).unwrap()));
        }
        self.bytes.extend(id);
        self.bytes.extend(rest);
        at
    }

    fn u32(&self, value: u32) -> [u8; 4] {
        if self.big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    fn u64(&self, value: u64) -> [u8; 8] {
        if self.big { value.to_be_bytes() } else { value.to_le_bytes() }
    }
}

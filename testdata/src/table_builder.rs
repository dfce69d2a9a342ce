//! SFrame sections laid out byte by byte.
//!
//! Nothing is checked or improved: what a test says is what the section holds,
//! right or wrong.

/// A table to be.
#[derive(Clone, Debug)]
pub struct TableBuilder {
    /// `sfp_version`: 1, 2 or 3.
    pub version: u8,
    /// Big-endian, else little-endian.
    pub big: bool,
    /// `sfp_flags`.
    pub flags: u8,
    /// `sfh_abi_arch`.
    pub abi: u8,
    /// `sfh_cfa_fixed_fp_offset`.
    pub fixed_fp: i8,
    /// `sfh_cfa_fixed_ra_offset`.
    pub fixed_ra: i8,
    /// The auxiliary header.
    pub aux: Vec<u8>,
    /// Bytes between the header and the function table.
    pub gap: Vec<u8>,
    /// The functions, in the order of the table.
    pub functions: Vec<Function>,
}

/// A function to be.
#[derive(Clone, Debug)]
pub struct Function {
    /// The first byte, counted from the section's start.
    pub start: i64,
    /// Length in bytes.
    pub size: u32,
    /// The info byte, with the width of the row starts in its low bits.
    pub info: u8,
    /// V3: the second info byte.
    pub info2: u8,
    /// V2 and V3: the block size.
    pub rep_size: u8,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row to be.
#[derive(Clone, Debug)]
pub struct Row {
    /// Offset from the function's start.
    pub start: u32,
    /// The info byte. Its size bits say how many bytes a word takes, its count
    /// bits nothing: all of `words` follow.
    pub info: u8,
    /// The words.
    pub words: Vec<i32>,
}

impl TableBuilder {
    /// `SFRAME_F_FDE_SORTED`.
    pub const SORTED: u8 = 1;
    /// `SFRAME_F_FDE_FUNC_START_PCREL`.
    pub const PCREL: u8 = 4;

    /// A little-endian AMD64 table without functions, sorted, with starts as
    /// the version's linkers write them.
    #[must_use]
    pub fn amd64(version: u8) -> Self {
        Self {
            version,
            big: false,
            flags: Self::SORTED | if version == 3 { Self::PCREL } else { 0 },
            abi: 3,
            fixed_fp: 0,
            fixed_ra: -8,
            aux: Vec::new(),
            gap: Vec::new(),
            functions: Vec::new(),
        }
    }

    /// An AArch64 table.
    #[must_use]
    pub fn aarch64(version: u8, big: bool) -> Self {
        Self { big, abi: if big { 1 } else { 2 }, fixed_ra: 0, ..Self::amd64(version) }
    }

    /// A big-endian s390x table.
    #[must_use]
    pub fn s390x(version: u8) -> Self {
        Self { big: true, abi: 4, fixed_ra: 0, ..Self::amd64(version) }
    }

    /// The same with one function more.
    #[must_use]
    pub fn function(mut self, function: Function) -> Self {
        self.functions.push(function);
        self
    }

    /// The size in bytes of an entry of the function table.
    #[must_use]
    pub fn fde_size(&self) -> usize {
        match self.version {
            1 => 17,
            2 => 20,
            _ => 16,
        }
    }

    /// The bytes of the table.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let mut fdes = Out::new(self.big);
        let mut fres = Out::new(self.big);
        let fdes_at = 28 + self.aux.len() + self.gap.len();
        for (index, function) in self.functions.iter().enumerate() {
            let field = if self.flags & Self::PCREL == 0 {
                0
            } else {
                i64::try_from(fdes_at + index * self.fde_size()).unwrap()
            };
            self.function_bytes(function, function.start - field, &mut fdes, &mut fres);
        }

        let mut out = Out::new(self.big);
        out.u16(0xdee2);
        out.bytes.extend([self.version, self.flags, self.abi]);
        out.bytes.extend(self.fixed_fp.to_ne_bytes());
        out.bytes.extend(self.fixed_ra.to_ne_bytes());
        out.bytes.push(u8::try_from(self.aux.len()).unwrap());
        out.len(self.functions.len());
        out.len(self.functions.iter().map(|function| function.rows.len()).sum());
        out.len(fres.bytes.len());
        out.len(self.gap.len());
        out.len(self.gap.len() + fdes.bytes.len());
        out.bytes.extend(&self.aux);
        out.bytes.extend(&self.gap);
        out.bytes.extend(fdes.bytes);
        out.bytes.extend(fres.bytes);
        out.bytes
    }

    fn function_bytes(&self, function: &Function, start: i64, fdes: &mut Out, fres: &mut Out) {
        if self.version == 3 {
            fdes.u64(start.cast_unsigned());
        } else {
            fdes.u32(i32::try_from(start).unwrap().cast_unsigned());
        }
        fdes.u32(function.size);
        fdes.len(fres.bytes.len());
        if self.version == 3 {
            fres.u16(u16::try_from(function.rows.len()).unwrap());
            fres.bytes.extend([function.info, function.info2, function.rep_size]);
        } else {
            fdes.len(function.rows.len());
            fdes.bytes.push(function.info);
            if self.version == 2 {
                fdes.bytes.extend([function.rep_size, 0, 0]);
            }
        }
        for row in &function.rows {
            row.bytes(function.info & 0xf, fres);
        }
    }
}

impl Function {
    /// A function of default rows, whose starts are as wide as its size asks
    /// for.
    #[must_use]
    pub fn new(start: i64, size: u32, rows: Vec<Row>) -> Self {
        let info = match size {
            0..0x100 => 0,
            0x100..0x1_0000 => 1,
            _ => 2,
        };
        Self { start, size, info, info2: 0, rep_size: 0, rows }
    }

    /// The same with bits added to the info byte.
    #[must_use]
    pub fn with_info(mut self, bits: u8) -> Self {
        self.info |= bits;
        self
    }

    /// The same as a run of blocks of `rep_size` bytes.
    #[must_use]
    pub fn blocks(mut self, rep_size: u8) -> Self {
        self.rep_size = rep_size;
        self.with_info(0x10)
    }

    /// The same as a signal trampoline (V3).
    #[must_use]
    pub fn signal(self) -> Self {
        self.with_info(0x80)
    }

    /// The same with flexible rows (V3).
    #[must_use]
    pub fn flexible(mut self) -> Self {
        self.info2 = 1;
        self
    }
}

impl Row {
    /// A row whose CFA is an offset from SP.
    #[must_use]
    pub fn sp(start: u32, words: &[i32]) -> Self {
        Self::new(start, 1, words)
    }

    /// A row whose CFA is an offset from FP, or a flexible row.
    #[must_use]
    pub fn fp(start: u32, words: &[i32]) -> Self {
        Self::new(start, 0, words)
    }

    /// A row with these info bits beside the words' number and size, which is
    /// the smallest that holds them.
    #[must_use]
    pub fn new(start: u32, info: u8, words: &[i32]) -> Self {
        let fits = |bits: u32| words.iter().all(|&word| word >> (bits - 1) == word >> 31);
        let size = if fits(8) { 0 } else { 1 + u8::from(!fits(16)) };
        let count = u8::try_from(words.len()).unwrap();
        Self { start, info: info | count << 1 | size << 5, words: words.to_vec() }
    }

    fn bytes(&self, fre_type: u8, out: &mut Out) {
        match fre_type {
            0 => out.bytes.push(u8::try_from(self.start).unwrap()),
            1 => out.u16(u16::try_from(self.start).unwrap()),
            _ => out.u32(self.start),
        }
        out.bytes.push(self.info);
        for &word in &self.words {
            match self.info >> 5 & 3 {
                0 => out.bytes.extend(i8::try_from(word).unwrap().to_ne_bytes()),
                1 => out.u16(i16::try_from(word).unwrap().cast_unsigned()),
                _ => out.u32(word.cast_unsigned()),
            }
        }
    }
}

/// Bytes in one order.
struct Out {
    bytes: Vec<u8>,
    big: bool,
}

impl Out {
    fn new(big: bool) -> Self {
        Self { bytes: Vec::new(), big }
    }

    fn u16(&mut self, value: u16) {
        self.bytes.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
    }

    fn len(&mut self, len: usize) {
        self.u32(u32::try_from(len).unwrap());
    }
}

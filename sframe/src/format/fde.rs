//! Function descriptors: one function's range and where its rows are.

use crate::sign::Unsigned;
use core::num::{NonZeroU8, NonZeroU32};

use crate::{
    error::{Error, TableOffset},
    format::{
        bytes::Endian,
        header::{Abi, Header, Version},
    },
};

/// A function's range of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FuncRange {
    /// Address of the first byte.
    pub start: u64,
    /// Length in bytes.
    pub size: u32,
}

impl FuncRange {
    /// Whether `pc` is inside.
    #[must_use]
    pub const fn contains(self, pc: u64) -> bool {
        // Widening; `From` is not const.
        #[expect(clippy::as_conversions, reason = "u32 to u64 in a const fn")]
        let size = self.size as u64;
        pc.wrapping_sub(self.start) < size
    }
}

/// The width of the row starts of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FreType {
    /// `SFRAME_FRE_TYPE_ADDR1`: one byte.
    Addr1,
    /// `SFRAME_FRE_TYPE_ADDR2`: two bytes.
    Addr2,
    /// `SFRAME_FRE_TYPE_ADDR4`: four bytes.
    Addr4,
}

impl FreType {
    /// The width in bytes.
    #[must_use]
    pub const fn width(self) -> u8 {
        match self {
            Self::Addr1 => 1,
            Self::Addr2 => 2,
            Self::Addr4 => 4,
        }
    }

    /// The bits of a start.
    pub(crate) const fn mask(self) -> u32 {
        match self {
            Self::Addr1 => 0xff,
            Self::Addr2 => 0xffff,
            Self::Addr4 => u32::MAX,
        }
    }
}

/// How a pc and the row starts of its function compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PcType {
    /// `PCINC`: rows start at an offset from the function's start.
    Increment,
    /// `PCMASK`: the function is a run of equal blocks of this many bytes, as
    /// PLTs are, and rows start at an offset from the block's start.
    Mask(NonZeroU8),
}

/// How the words of a function's rows are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FdeType {
    /// `SFRAME_FDE_TYPE_DEFAULT`: offsets from SP, FP and CFA.
    Default,
    /// `SFRAME_FDE_TYPE_FLEX`: pairs of a control word and an offset.
    Flexible,
    /// A reserved type: the sizes of its rows are known, their meaning is not.
    Unknown(u8),
}

/// The key that signs the return addresses of an AArch64 function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PauthKey {
    /// Key A.
    A,
    /// Key B.
    B,
}

/// The bytes of an entry of the function table, with zeros after one that is
/// shorter than that of V2.
pub(crate) type EntryBytes = [[u8; 4]; 5];

/// What an entry of the function table, and in V3 the attribute that goes with
/// it, hold beside the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FdeEntry {
    pub(crate) size: u32,
    pub(crate) fre_offset: u32,
    pub(crate) num_fres: u32,
    pub(crate) info: u8,
    pub(crate) info2: u8,
    pub(crate) rep_size: u8,
}

impl FdeEntry {
    /// Of the info byte: the width of row starts.
    pub(crate) const WIDTH: u8 = 0xf;
    /// Of the info byte: the function is one of blocks.
    pub(crate) const MASK: u8 = 0x10;
    const PAUTH_KEY_B: u8 = 0x20;
    const SIGNAL: u8 = 0x80;
    const KIND: u8 = 0x1f;

    /// One without anything.
    pub(crate) const NONE: Self =
        Self { size: 0, fre_offset: 0, num_fres: 0, info: 0, info2: 0, rep_size: 0 };
    /// The size of a V3 attribute in bytes.
    pub(crate) const ATTRIBUTE_SIZE: usize = Version::V3.attribute_size();

    /// Decodes an entry, without the attribute that V3 has apart: the start as
    /// the table has it, and the rest.
    #[inline]
    pub(crate) fn decode(bytes: &EntryBytes, version: Version, endian: Endian) -> (i64, Self) {
        let &[a, b, c, d, [info, rep_size, ..]] = bytes;
        let [a, b, c, d] = [a, b, c, d].map(|word| endian.u32(word));
        if version == Version::V3 {
            let [low, high] = if endian == Endian::Big { [b, a] } else { [a, b] };
            let start = u64::from(high) << u32::BITS | u64::from(low);
            return (start.signed(), Self { size: c, fre_offset: d, ..Self::NONE });
        }
        let entry = Self { size: b, fre_offset: c, num_fres: d, info, rep_size, ..Self::NONE };
        (a.signed().into(), entry)
    }

    /// Adds a V3 function's attribute, the first of the bytes of its rows; false
    /// if it is cut off.
    #[inline]
    pub(crate) fn add_attribute(&mut self, rows: &[u8], endian: Endian) -> bool {
        let Some(&[a, b, info, info2, rep_size]) = rows.first_chunk() else { return false };
        self.num_fres = endian.u16([a, b]).into();
        (self.info, self.info2, self.rep_size) = (info, info2, rep_size);
        true
    }

    /// The bits of the info byte that have no meaning.
    pub(crate) const fn reserved_info(version: Version, abi: Abi) -> u8 {
        let signal = if matches!(version, Version::V3) { 0 } else { Self::SIGNAL };
        let key = if abi.is_aarch64() { 0 } else { Self::PAUTH_KEY_B };
        0x40 | signal | key
    }

    #[inline(always)]
    pub(crate) const fn fre_type(self, at: TableOffset) -> Result<FreType, Error> {
        match self.info & Self::WIDTH {
            0 => Ok(FreType::Addr1),
            1 => Ok(FreType::Addr2),
            2 => Ok(FreType::Addr4),
            _ => Err(Error::BadFreType { at, info: self.info }),
        }
    }

    #[inline(always)]
    const fn pc_type(self, at: TableOffset, version: Version, abi: Abi) -> Result<PcType, Error> {
        if self.info & Self::MASK == 0 {
            return Ok(PcType::Increment);
        }
        let rep_size = match (version, abi) {
            (Version::V1, Abi::Amd64Little) => 16,
            _ => self.rep_size,
        };
        match NonZeroU8::new(rep_size) {
            Some(rep_size) => Ok(PcType::Mask(rep_size)),
            None => Err(Error::ZeroRepSize(at)),
        }
    }

    /// What row starts are compared by, `offset` bytes into the function.
    #[inline(always)]
    pub(crate) fn pc_offset(
        self,
        at: TableOffset,
        header: &Header,
        offset: u32,
    ) -> Result<u32, Error> {
        Ok(match self.pc_type(at, header.version, header.abi)? {
            PcType::Increment => offset,
            PcType::Mask(rep_size) => offset % NonZeroU32::from(rep_size),
        })
    }

    #[inline(always)]
    pub(crate) const fn fde_type(self) -> FdeType {
        match self.info2 & Self::KIND {
            0 => FdeType::Default,
            1 => FdeType::Flexible,
            other => FdeType::Unknown(other),
        }
    }

    #[inline(always)]
    pub(crate) fn is_signal(self, version: Version) -> bool {
        version == Version::V3 && self.info & Self::SIGNAL != 0
    }
}

/// What all functions of a section share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub(crate) version: Version,
    pub(crate) endian: Endian,
    pub(crate) abi: Abi,
    pub(crate) fixed_fp: Option<i8>,
    pub(crate) fixed_ra: Option<i8>,
}

impl Dialect {
    pub(crate) const fn new(header: &Header) -> Self {
        Self {
            version: header.version,
            endian: header.endian,
            abi: header.abi,
            fixed_fp: header.fixed_fp_offset,
            fixed_ra: header.fixed_ra_offset,
        }
    }
}

/// One function of a section.
///
/// The info byte:
///
/// | bits | meaning                                          |
/// |------|--------------------------------------------------|
/// | 0-3  | width of the row starts ([`FreType`])            |
/// | 4    | 0 PC-inc, 1 PC-mask ([`PcType`])                 |
/// | 5    | AArch64: 0 key A, 1 key B ([`PauthKey`])         |
/// | 7    | V3: frame of a signal trampoline                 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fde {
    /// Where the entry is in the section.
    pub at: TableOffset,
    /// Index in the function table.
    pub index: u32,
    /// The code that the function covers.
    pub range: FuncRange,
    /// `…func_start_fre_off`: bytes from the section's first row to the
    /// function's first row (V3: to its attribute).
    pub fre_offset: u32,
    /// `…func_num_fres`: how many rows the function has.
    pub num_fres: u32,
    /// `…func_info`.
    pub info: u8,
    /// `sfda_func_info2`, zero before V3.
    pub info2: u8,
    /// `…func_rep_size`: size of a block in bytes, zero in V1.
    pub rep_size: u8,
    pub(crate) dialect: Dialect,
}

impl Fde {
    pub(crate) fn new(
        header: &Header,
        at: TableOffset,
        index: u32,
        start: u64,
        entry: FdeEntry,
    ) -> Self {
        Self {
            at,
            index,
            range: FuncRange { start, size: entry.size },
            fre_offset: entry.fre_offset,
            num_fres: entry.num_fres,
            info: entry.info,
            info2: entry.info2,
            rep_size: entry.rep_size,
            dialect: Dialect::new(header),
        }
    }

    pub(crate) const fn entry(&self) -> FdeEntry {
        FdeEntry {
            size: self.range.size,
            fre_offset: self.fre_offset,
            num_fres: self.num_fres,
            info: self.info,
            info2: self.info2,
            rep_size: self.rep_size,
        }
    }

    pub(crate) const fn rows_outside(&self) -> Error {
        Error::RowsOutside { at: self.at, fre_offset: self.fre_offset }
    }

    /// The ABI of the function's section.
    #[must_use]
    pub const fn abi(&self) -> Abi {
        self.dialect.abi
    }

    /// The width of the starts of this function's rows.
    ///
    /// # Errors
    ///
    /// [`Error::BadFreType`] if it is a reserved value.
    pub const fn fre_type(&self) -> Result<FreType, Error> {
        self.entry().fre_type(self.at)
    }

    /// How a pc and the starts of this function's rows compare.
    ///
    /// # Errors
    ///
    /// [`Error::ZeroRepSize`] if the function is made of blocks whose size is
    /// not known. V1 does not say it; on AMD64 it is the 16 bytes of a PLT
    /// entry.
    pub const fn pc_type(&self) -> Result<PcType, Error> {
        self.entry().pc_type(self.at, self.dialect.version, self.dialect.abi)
    }

    /// Whether the function is a run of equal blocks.
    #[must_use]
    pub const fn is_mask(&self) -> bool {
        self.info & FdeEntry::MASK != 0
    }

    /// How the words of this function's rows are meant.
    #[must_use]
    pub const fn fde_type(&self) -> FdeType {
        self.entry().fde_type()
    }

    /// Whether this is a signal trampoline: the return address that is found
    /// for its frame is the interrupted instruction itself.
    #[must_use]
    pub fn is_signal(&self) -> bool {
        self.entry().is_signal(self.dialect.version)
    }

    /// The key that signs this function's return addresses, on AArch64.
    #[must_use]
    pub const fn pauth_key(&self) -> Option<PauthKey> {
        match self.dialect.abi {
            Abi::Aarch64Big | Abi::Aarch64Little if self.info & FdeEntry::PAUTH_KEY_B != 0 => {
                Some(PauthKey::B)
            }
            Abi::Aarch64Big | Abi::Aarch64Little => Some(PauthKey::A),
            _ => None,
        }
    }

    /// The offset of `pc`, which is compared with the starts of rows: from the function's start,
    /// or from the block's. `None` if the function does not cover `pc`.
    ///
    /// # Errors
    ///
    /// As [`pc_type`](Self::pc_type).
    pub fn pc_offset(&self, pc: u64) -> Result<Option<u32>, Error> {
        let offset = u32::try_from(pc.wrapping_sub(self.range.start)).ok();
        let Some(offset) = offset.filter(|&offset| offset < self.range.size) else {
            return Ok(None);
        };
        Ok(Some(match self.pc_type()? {
            PcType::Increment => offset,
            PcType::Mask(rep_size) => offset % NonZeroU32::from(rep_size),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fde(version: Version, abi: Abi, info: u8, rep_size: u8) -> Fde {
        let dialect =
            Dialect { version, endian: Endian::Little, abi, fixed_fp: None, fixed_ra: None };
        Fde {
            at: TableOffset(0x1c),
            index: 0,
            range: FuncRange { start: 0x1000, size: 0x40 },
            fre_offset: 0,
            num_fres: 1,
            info,
            info2: 0,
            rep_size,
            dialect,
        }
    }

    #[test]
    fn three_row_types_are_defined() {
        for info in 0..=u8::MAX {
            let expected = match info & 0xf {
                0 => Ok(FreType::Addr1),
                1 => Ok(FreType::Addr2),
                2 => Ok(FreType::Addr4),
                _ => Err(Error::BadFreType { at: TableOffset(0x1c), info }),
            };
            assert_eq!(fde(Version::V2, Abi::Amd64Little, info, 0).fre_type(), expected);
        }
    }

    #[test]
    fn f17_blocks_need_a_size() {
        let mask = |version, abi, rep_size| fde(version, abi, 0x10, rep_size).pc_type();
        let of = |bytes| Ok(PcType::Mask(NonZeroU8::new(bytes).unwrap()));
        let zero = Err(Error::ZeroRepSize(TableOffset(0x1c)));
        assert_eq!(mask(Version::V2, Abi::Amd64Little, 8), of(8));
        assert_eq!(mask(Version::V2, Abi::Amd64Little, 0), zero);
        assert_eq!(mask(Version::V3, Abi::S390xBig, 32), of(32));
        assert_eq!(mask(Version::V3, Abi::S390xBig, 0), zero);
        // V1 has no field for it; PLT entries of AMD64 are 16 bytes long.
        assert_eq!(mask(Version::V1, Abi::Amd64Little, 0), of(16));
        assert_eq!(mask(Version::V1, Abi::Aarch64Little, 0), zero);
        // A size alone does not make blocks.
        assert_eq!(fde(Version::V2, Abi::Amd64Little, 0, 16).pc_type(), Ok(PcType::Increment));
    }

    #[test]
    fn a_pc_counts_from_the_start_of_its_block() {
        let whole = fde(Version::V2, Abi::Amd64Little, 0, 0);
        let blocks = fde(Version::V2, Abi::Amd64Little, 0x10, 16);
        assert!(blocks.is_mask() && !whole.is_mask());
        for (pc, offset, in_block) in [
            (0xfff, None, None),
            (0x1000, Some(0), Some(0)),
            (0x100f, Some(15), Some(15)),
            (0x1010, Some(16), Some(0)),
            (0x103f, Some(63), Some(15)),
            (0x1040, None, None),
        ] {
            assert_eq!(whole.pc_offset(pc), Ok(offset), "at {pc:#x}");
            assert_eq!(blocks.pc_offset(pc), Ok(in_block), "at {pc:#x}");
        }
    }

    #[test]
    fn a_range_may_wrap_at_the_end_of_the_address_space() {
        let range = FuncRange { start: u64::MAX - 1, size: 4 };
        for (pc, inside) in
            [(u64::MAX - 2, false), (u64::MAX - 1, true), (u64::MAX, true), (1, true), (2, false)]
        {
            assert_eq!(range.contains(pc), inside, "at {pc:#x}");
        }
        assert!(!FuncRange { start: 5, size: 0 }.contains(5));
    }

    #[test]
    fn only_v3_marks_signal_frames() {
        for version in [Version::V1, Version::V2, Version::V3] {
            let marked = fde(version, Abi::Amd64Little, 0x80, 0);
            assert_eq!(marked.is_signal(), version == Version::V3);
            assert!(!fde(version, Abi::Amd64Little, 0x7f, 0).is_signal());
        }
    }

    #[test]
    fn only_aarch64_has_keys() {
        let key = |abi, info| fde(Version::V2, abi, info, 0).pauth_key();
        assert_eq!(key(Abi::Aarch64Little, 0), Some(PauthKey::A));
        assert_eq!(key(Abi::Aarch64Big, 0x20), Some(PauthKey::B));
        assert_eq!(key(Abi::Amd64Little, 0x20), None);
        assert_eq!(key(Abi::S390xBig, 0), None);
    }

    #[test]
    fn a_v3_attribute_follows_its_offset_whole_or_not_at_all() {
        let entry =
            FdeEntry { size: 9, fre_offset: 0, num_fres: 0, info: 0, info2: 0, rep_size: 0 };
        // num_fres, info, info2, rep_size
        let attribute = [0x34, 0x12, 0x92, 0x1f, 7, 0xee];
        for len in 0..FdeEntry::ATTRIBUTE_SIZE {
            assert!(!entry.clone().add_attribute(&attribute[..len], Endian::Little));
        }
        for (endian, num_fres) in [(Endian::Little, 0x1234), (Endian::Big, 0x3412)] {
            let mut full = entry;
            assert!(full.add_attribute(&attribute, endian));
            assert_eq!((full.num_fres, full.info, full.rep_size), (num_fres, 0x92, 7));
            assert_eq!(full.fde_type(), FdeType::Unknown(0x1f));
            assert!(full.is_signal(Version::V3) && !full.is_signal(Version::V2));
        }
    }
}

//! Function descriptors: one function's range and where its rows are.

use core::num::{NonZeroU8, NonZeroU32};

use crate::{Abi, Endian, Error, Header, SectionOffset, Version, bytes::Cursor};

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
}

/// How a pc and the row starts of its function compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PcKind {
    /// `PCINC`: rows start at an offset from the function's start.
    Increment,
    /// `PCMASK`: the function is a run of equal blocks of this many bytes, as
    /// PLTs are, and rows start at an offset from the block's start.
    Mask(NonZeroU8),
}

/// How the words of a function's rows are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FdeKind {
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
/// | 4    | 0 PC-inc, 1 PC-mask ([`PcKind`])                 |
/// | 5    | AArch64: 0 key A, 1 key B ([`PauthKey`])         |
/// | 7    | V3: frame of a signal trampoline                 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fde {
    /// Where the entry is in the section.
    pub at: SectionOffset,
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
    /// `SFRAME_V1_FUNC_INFO`'s bit for PC-mask.
    const MASK: u8 = 0x10;
    const PAUTH_KEY_B: u8 = 0x20;
    const SIGNAL: u8 = 0x80;
    const KIND: u8 = 0x1f;

    /// The size of a V3 attribute in bytes.
    pub(crate) const ATTRIBUTE_SIZE: usize = 5;

    /// Decodes the entry at `at`, without the attribute that V3 has apart.
    pub(crate) fn decode(
        header: &Header,
        index: u32,
        start: u64,
        at: SectionOffset,
        entry: &[u8],
    ) -> Result<Self, Error> {
        let mut r = Cursor::new(entry, at, header.endian);
        match header.version {
            Version::V1 | Version::V2 => _ = r.read::<u32>()?,
            Version::V3 => _ = r.read::<u64>()?,
        }
        let mut fde = Self {
            at,
            index,
            range: FuncRange { start, size: r.read()? },
            fre_offset: r.read()?,
            num_fres: 0,
            info: 0,
            info2: 0,
            rep_size: 0,
            dialect: Dialect::new(header),
        };
        if header.version != Version::V3 {
            fde.num_fres = r.read()?;
            fde.info = r.read()?;
            if header.version == Version::V2 {
                fde.rep_size = r.read()?;
            }
        }
        Ok(fde)
    }

    /// Adds a V3 function's attribute, the first of the bytes of its rows.
    pub(crate) fn with_attribute(mut self, rows: &[u8]) -> Result<Self, Error> {
        let Some(attribute) = rows.first_chunk::<{ Self::ATTRIBUTE_SIZE }>() else {
            return Err(self.rows_outside());
        };
        let mut r = Cursor::new(attribute, self.at, self.dialect.endian);
        self.num_fres = r.read::<u16>()?.into();
        self.info = r.read()?;
        self.info2 = r.read()?;
        self.rep_size = r.read()?;
        Ok(self)
    }

    pub(crate) const fn rows_outside(&self) -> Error {
        Error::RowsOutside { at: self.at, fre_offset: self.fre_offset }
    }

    /// The width of the starts of this function's rows.
    ///
    /// # Errors
    ///
    /// [`Error::BadFreType`] if it is a reserved value.
    pub const fn fre_type(&self) -> Result<FreType, Error> {
        match self.info & 0xf {
            0 => Ok(FreType::Addr1),
            1 => Ok(FreType::Addr2),
            2 => Ok(FreType::Addr4),
            _ => Err(Error::BadFreType { at: self.at, info: self.info }),
        }
    }

    /// How a pc and the starts of this function's rows compare.
    ///
    /// # Errors
    ///
    /// [`Error::ZeroRepSize`] if the function is made of blocks whose size is
    /// not known. V1 does not say it; on AMD64 it is the 16 bytes of a PLT
    /// entry.
    pub const fn pc_kind(&self) -> Result<PcKind, Error> {
        if self.info & Self::MASK == 0 {
            return Ok(PcKind::Increment);
        }
        let rep_size = match (self.dialect.version, self.dialect.abi) {
            (Version::V1, Abi::Amd64Little) => 16,
            _ => self.rep_size,
        };
        match NonZeroU8::new(rep_size) {
            Some(rep_size) => Ok(PcKind::Mask(rep_size)),
            None => Err(Error::ZeroRepSize(self.at)),
        }
    }

    pub(crate) const fn check_kind(&self) -> Result<(), Error> {
        match self.kind() {
            FdeKind::Default | FdeKind::Flexible => Ok(()),
            FdeKind::Unknown(_) => Err(Error::UnknownFdeType { at: self.at, info2: self.info2 }),
        }
    }

    /// Whether the function is a run of equal blocks.
    #[must_use]
    pub const fn is_mask(&self) -> bool {
        self.info & Self::MASK != 0
    }

    /// How the words of this function's rows are meant.
    #[must_use]
    pub const fn kind(&self) -> FdeKind {
        match self.info2 & Self::KIND {
            0 => FdeKind::Default,
            1 => FdeKind::Flexible,
            other => FdeKind::Unknown(other),
        }
    }

    /// Whether this is a signal trampoline: the return address that is found
    /// for its frame is the interrupted instruction itself.
    #[must_use]
    pub fn is_signal(&self) -> bool {
        self.dialect.version == Version::V3 && self.info & Self::SIGNAL != 0
    }

    /// The key that signs this function's return addresses, on AArch64.
    #[must_use]
    pub const fn pauth_key(&self) -> Option<PauthKey> {
        match self.dialect.abi {
            Abi::Aarch64Big | Abi::Aarch64Little if self.info & Self::PAUTH_KEY_B != 0 => {
                Some(PauthKey::B)
            }
            Abi::Aarch64Big | Abi::Aarch64Little => Some(PauthKey::A),
            _ => None,
        }
    }

    /// The offset that `pc` is compared to row starts by: from the function's
    /// start, or from the block's. `None` if the function does not cover `pc`.
    ///
    /// # Errors
    ///
    /// As [`pc_kind`](Self::pc_kind).
    pub fn pc_offset(&self, pc: u64) -> Result<Option<u32>, Error> {
        let Some(offset) = u32::try_from(pc.wrapping_sub(self.range.start))
            .ok()
            .filter(|&offset| offset < self.range.size)
        else {
            return Ok(None);
        };
        Ok(Some(match self.pc_kind()? {
            PcKind::Increment => offset,
            PcKind::Mask(rep_size) => offset % NonZeroU32::from(rep_size),
        }))
    }
}

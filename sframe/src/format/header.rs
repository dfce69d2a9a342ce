//! The first 28 bytes of a table.

use crate::sign::Unsigned;
use crate::{
    error::{Error, TableOffset},
    format::{
        bytes::{Endian, Fields},
        flags::Flags,
    },
};

/// Version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Version {
    /// `SFRAME_VERSION_1`: binutils 2.40.
    V1,
    /// `SFRAME_VERSION_2`: binutils 2.41 to 2.45, LLVM.
    V2,
    /// `SFRAME_VERSION_3`: binutils 2.46 on.
    V3,
}

impl Version {
    /// The number in the preamble.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }

    /// The size in bytes of an entry of the function table.
    #[must_use]
    pub const fn fde_size(self) -> usize {
        match self {
            Self::V1 => 17,
            Self::V2 => 20,
            Self::V3 => 16,
        }
    }

    /// The size in bytes of what a function has before its rows.
    pub(crate) const fn attribute_size(self) -> usize {
        match self {
            Self::V1 | Self::V2 => 0,
            Self::V3 => 5,
        }
    }

    /// The flag bits that the version defines.
    const fn flags(self) -> Flags {
        match self {
            Self::V1 => Flags::SORTED.union(Flags::FRAME_POINTER),
            Self::V2 => Flags::all(),
            Self::V3 => Flags::SORTED.union(Flags::PCREL),
        }
    }
}

/// ABI and architecture of the code that a section describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Abi {
    /// `SFRAME_ABI_AARCH64_ENDIAN_BIG`.
    Aarch64Big,
    /// `SFRAME_ABI_AARCH64_ENDIAN_LITTLE`.
    Aarch64Little,
    /// `SFRAME_ABI_AMD64_ENDIAN_LITTLE`.
    Amd64Little,
    /// `SFRAME_ABI_S390X_ENDIAN_BIG`, from version 2 on.
    S390xBig,
    /// An identifier that the version does not define. The table can be listed,
    /// its rows cannot be used to unwind.
    Unknown(u8),
}

impl Abi {
    /// The ABI that `id` stands for in `version`.
    #[must_use]
    pub const fn from_id(id: u8, version: Version) -> Self {
        match (id, version) {
            (1, _) => Self::Aarch64Big,
            (2, _) => Self::Aarch64Little,
            (3, _) => Self::Amd64Little,
            (4, Version::V2 | Version::V3) => Self::S390xBig,
            (id, _) => Self::Unknown(id),
        }
    }

    /// The ABI that `id` stands for, in a section of this byte order.
    fn in_order(id: u8, version: Version, endian: Endian) -> Result<Self, Error> {
        let abi = Self::from_id(id, version);
        match abi.endian() {
            Some(expected) if expected != endian => Err(Error::WrongByteOrder { abi: id }),
            _ => Ok(abi),
        }
    }

    /// The identifier in the header.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::Aarch64Big => 1,
            Self::Aarch64Little => 2,
            Self::Amd64Little => 3,
            Self::S390xBig => 4,
            Self::Unknown(id) => id,
        }
    }

    pub(crate) const fn is_aarch64(self) -> bool {
        matches!(self, Self::Aarch64Big | Self::Aarch64Little)
    }

    /// The byte order of the ABI, if it is known.
    #[must_use]
    pub const fn endian(self) -> Option<Endian> {
        match self {
            Self::Aarch64Little | Self::Amd64Little => Some(Endian::Little),
            Self::Aarch64Big | Self::S390xBig => Some(Endian::Big),
            Self::Unknown(_) => None,
        }
    }
}

/// The header of a table.
///
/// The layout is the same in all versions: see "SFrame Header" in the
/// [specification][spec].
///
/// [spec]: https://sourceware.org/binutils/docs-2.46/sframe-spec.html
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Header {
    /// Byte order, from the magic number.
    pub endian: Endian,
    /// `sfp_version`.
    pub version: Version,
    /// `sfp_flags`.
    pub flags: Flags,
    /// `sfh_abi_arch`.
    pub abi: Abi,
    /// `sfh_cfa_fixed_fp_offset`: where the caller's FP is saved, in bytes from
    /// the CFA, if that is the same everywhere.
    pub fixed_fp_offset: Option<i8>,
    /// `sfh_cfa_fixed_ra_offset`: where the RA is saved, in bytes from the CFA,
    /// if that is the same everywhere.
    pub fixed_ra_offset: Option<i8>,
    /// `sfh_auxhdr_len`, in bytes.
    pub aux_len: u8,
    /// `sfh_num_fdes`: entries of the function table.
    pub num_fdes: u32,
    /// `sfh_num_fres`: rows of all functions together.
    pub num_fres: u32,
    /// `sfh_fre_len`: bytes of all rows (V3: with the functions' attributes).
    pub fre_len: u32,
    /// `sfh_fdeoff`: bytes from the header's end to the function table.
    pub fde_offset: u32,
    /// `sfh_freoff`: bytes from the header's end to the rows.
    pub fre_offset: u32,
}

/// `SFRAME_MAGIC`.
pub(crate) const MAGIC: u16 = 0xdee2;

impl Header {
    /// The encoded size in bytes, without the auxiliary header.
    pub const SIZE: usize = 28;

    /// Parses the header at the start of `section`. Whether the tables are
    /// where it says is not looked at.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] if `section` is shorter than a header; otherwise
    /// the error that names the first field that is not valid.
    #[inline]
    pub fn parse(section: &[u8]) -> Result<Self, Error> {
        let Some(bytes) = section.first_chunk::<{ Self::SIZE }>() else {
            return Err(Error::Truncated(TableOffset(0)));
        };
        Self::decode(bytes)
    }

    #[inline]
    pub(crate) fn decode(bytes: &[u8; Self::SIZE]) -> Result<Self, Error> {
        let [a, b, ..] = *bytes;
        match u16::from_le_bytes([a, b]) {
            MAGIC => Self::decode_in(Endian::Little, bytes),
            magic if magic.swap_bytes() == MAGIC => Self::decode_in(Endian::Big, bytes),
            _ => Err(Error::BadMagic([a, b])),
        }
    }

    fn decode_in(endian: Endian, bytes: &[u8; Self::SIZE]) -> Result<Self, Error> {
        let mut fields = Fields::new(bytes, endian);
        let _magic = fields.u16();
        let version = match fields.u8() {
            1 => Version::V1,
            2 => Version::V2,
            3 => Version::V3,
            other => return Err(Error::UnsupportedVersion(other)),
        };
        let bits = fields.u8();
        let flags = Flags::from_bits(bits).filter(|&flags| version.flags().contains(flags));
        let flags = flags.ok_or(Error::UnknownFlags(bits))?;
        let abi = Abi::in_order(fields.u8(), version, endian)?;
        let offset = |offset: u8| Some(offset.signed()).filter(|&offset| offset != 0);
        Ok(Self {
            endian,
            version,
            flags,
            abi,
            fixed_fp_offset: offset(fields.u8()),
            fixed_ra_offset: offset(fields.u8()),
            aux_len: fields.u8(),
            num_fdes: fields.u32(),
            num_fres: fields.u32(),
            fre_len: fields.u32(),
            fde_offset: fields.u32(),
            fre_offset: fields.u32(),
        })
    }

    /// Where the function table starts.
    #[must_use]
    pub fn fdes_at(&self) -> TableOffset {
        self.after_header(self.fde_offset)
    }

    /// Where the rows of all functions start.
    #[must_use]
    pub fn fres_at(&self) -> TableOffset {
        self.after_header(self.fre_offset)
    }

    /// The length of the table in bytes, from the header to the last row.
    ///
    /// This is the length to trust: what surrounds a section, such as the size
    /// of `PT_GNU_SFRAME`, may be larger.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a table is never empty")]
    pub fn len(&self) -> u64 {
        self.fres_at().0.saturating_add(u64::from(self.fre_len))
    }

    /// The length of the function table in bytes.
    pub(crate) fn fdes_len(&self) -> u64 {
        // Below 2^37.
        u64::from(self.num_fdes)
            .saturating_mul(u64::try_from(self.version.fde_size()).unwrap_or(u64::MAX))
    }

    /// How many words of a default row have a meaning.
    pub(crate) const fn meaningful_words(&self) -> u8 {
        if self.fixed_ra_offset.is_some() { 2 } else { 3 }
    }

    /// Checks that both tables are inside `len` bytes and apart.
    #[inline]
    pub(crate) fn check(&self, len: u64) -> Result<(), Error> {
        let fdes_end = self.fdes_at().0.saturating_add(self.fdes_len());
        if fdes_end > len {
            return Err(Error::FdesOutside { end: fdes_end, len });
        }
        if self.len() > len {
            return Err(Error::FresOutside { end: self.len(), len });
        }
        let fres_start = self.fres_at().0;
        if fdes_end > fres_start {
            return Err(Error::TablesOverlap { fdes_end, fres_start });
        }
        Ok(())
    }

    /// Sums of two `u32` and a `u8`: no overflow is possible.
    fn after_header(&self, offset: u32) -> TableOffset {
        TableOffset(28_u64.saturating_add(self.aux_len.into()).saturating_add(offset.into()))
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::vec::Vec;

    use super::*;

    const AMD64_V2: [u8; 28] = [
        0xe2, 0xde, // magic, little-endian
        2, 1, // version, flags: sorted
        3, 0, 0xf8, 4, // AMD64, FP not fixed, RA at CFA-8, 4 bytes of auxiliary header
        2, 0, 0, 0, // functions
        5, 0, 0, 0, // rows
        0x11, 0, 0, 0, // bytes of rows
        8, 0, 0, 0, // function table, after the headers
        0x30, 0, 0, 0, // rows, after the headers
    ];

    fn with(changes: &[(usize, u8)]) -> [u8; 28] {
        let mut bytes = AMD64_V2;
        for &(at, byte) in changes {
            bytes[at] = byte;
        }
        bytes
    }

    /// The same header in the other byte order, for `abi`.
    fn big(abi: u8) -> [u8; 28] {
        let mut bytes = with(&[(4, abi)]);
        bytes[..2].reverse();
        for field in bytes[8..].chunks_mut(4) {
            field.reverse();
        }
        bytes
    }

    #[test]
    fn every_field_is_where_the_layout_says() {
        let header = Header::parse(&AMD64_V2).unwrap();
        assert_eq!(header.endian, Endian::Little);
        assert_eq!(header.version, Version::V2);
        assert!(
            header.flags.contains(Flags::SORTED)
                && !header.flags.contains(Flags::PCREL)
                && !header.flags.contains(Flags::FRAME_POINTER)
        );
        assert_eq!(header.abi, Abi::Amd64Little);
        assert_eq!((header.fixed_fp_offset, header.fixed_ra_offset), (None, Some(-8)));
        assert_eq!((header.num_fdes, header.num_fres, header.fre_len), (2, 5, 0x11));
        // 28 bytes and the auxiliary header come first.
        assert_eq!(header.fdes_at(), TableOffset(28 + 4 + 8));
        assert_eq!(header.fres_at(), TableOffset(28 + 4 + 0x30));
        assert_eq!(header.len(), 28 + 4 + 0x30 + 0x11);
    }

    #[test]
    fn the_magic_tells_the_byte_order() {
        let little = Header::parse(&AMD64_V2).unwrap();
        let swapped = Header::parse(&big(1)).unwrap();
        assert_eq!(swapped.endian, Endian::Big);
        assert_eq!(swapped, Header { endian: Endian::Big, abi: Abi::Aarch64Big, ..little });
    }

    #[test]
    fn every_prefix_of_a_header_is_truncated() {
        for len in 0..Header::SIZE {
            assert_eq!(
                Header::parse(&AMD64_V2[..len]),
                Err(Error::Truncated(TableOffset(0))),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn a_wrong_magic_is_refused() {
        for bytes in [with(&[(0, 0xe3)]), with(&[(1, 0xdf)]), [0; 28]] {
            let error = Error::BadMagic([bytes[0], bytes[1]]);
            assert_eq!(Header::parse(&bytes), Err(error));
        }
    }

    #[test]
    fn only_three_versions_are_read() {
        for version in 0..=u8::MAX {
            let parsed = Header::parse(&with(&[(2, version)])).map(|header| header.version);
            match version {
                1..=3 => assert_eq!(parsed.unwrap().number(), version),
                _ => assert_eq!(parsed, Err(Error::UnsupportedVersion(version))),
            }
        }
    }

    #[test]
    fn each_version_has_its_own_flags() {
        for (version, known) in [(1, 0x3), (2, 0x7), (3, 0x5)] {
            for flags in 0..=u8::MAX {
                let parsed = Header::parse(&with(&[(2, version), (3, flags)]));
                match flags & !known {
                    0 => {
                        let found = parsed.unwrap().flags;
                        assert_eq!(found.bits(), flags);
                        let named = [Flags::SORTED, Flags::FRAME_POINTER, Flags::PCREL];
                        let each = named.map(|flag| found.contains(flag));
                        assert_eq!(each, [1, 2, 4].map(|bit| flags & bit != 0));
                    }
                    _ => assert_eq!(parsed, Err(Error::UnknownFlags(flags)), "v{version}"),
                }
            }
        }
    }

    #[test]
    fn the_byte_order_has_to_be_that_of_the_abi() {
        for (abi, is_big) in [(1, true), (2, false), (3, false), (4, true)] {
            let wrong = if is_big { with(&[(4, abi)]) } else { big(abi) };
            assert_eq!(Header::parse(&wrong), Err(Error::WrongByteOrder { abi }));
            let right = if is_big { big(abi) } else { with(&[(4, abi)]) };
            assert_eq!(Header::parse(&right).unwrap().abi.id(), abi);
        }
    }

    #[test]
    fn an_unknown_abi_can_be_opened_in_either_byte_order() {
        for abi in [0, 5, 0xff] {
            for bytes in [with(&[(4, abi)]), big(abi)] {
                assert_eq!(Header::parse(&bytes).unwrap().abi, Abi::Unknown(abi));
            }
        }
        // s390x came with version 2.
        assert_eq!(Header::parse(&with(&[(2, 1), (4, 4)])).unwrap().abi, Abi::Unknown(4));
    }

    #[test]
    fn tables_outside_of_the_bytes_are_refused() {
        let header = Header::parse(&AMD64_V2).unwrap();
        // The rows end at 97.
        assert_eq!(header.check(97), Ok(()));
        assert_eq!(header.check(96), Err(Error::FresOutside { end: 97, len: 96 }));
        // The functions end at 80, right where the rows start.
        assert_eq!(header.check(79), Err(Error::FdesOutside { end: 80, len: 79 }));
        let closer = Header { fre_offset: 0x2f, ..header };
        let error = Error::TablesOverlap { fdes_end: 80, fres_start: 79 };
        assert_eq!(closer.check(200), Err(error));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        for version in 1..=3 {
            let mut bytes = with(&[(2, version), (3, 0), (7, 0xff)]);
            bytes[8..].fill(0xff);
            let header = Header::parse(&bytes).unwrap();
            let max = u64::from(u32::MAX);
            let size = u64::try_from(header.version.fde_size()).unwrap();
            assert_eq!(header.len(), 28 + 0xff + 2 * max);
            let end = 28 + 0xff + max + size * max;
            assert_eq!(
                header.check(1 << 40).unwrap_err(),
                Error::TablesOverlap { fdes_end: end, fres_start: 28 + 0xff + max }
            );
            assert_eq!(header.check(0), Err(Error::FdesOutside { end, len: 0 }));
        }
    }

    #[test]
    fn each_error_points_at_its_field() {
        let at: Vec<u64> = [with(&[(0, 0)]), with(&[(2, 9)]), with(&[(3, 0x80)]), with(&[(4, 1)])]
            .iter()
            .map(|bytes| Header::parse(bytes).unwrap_err().at().0)
            .collect();
        assert_eq!(at, [0, 2, 3, 4]);
    }

    #[test]
    fn tables_may_end_with_the_section_and_meet() {
        let met = Header::parse(&with(&[(16, 0)])).unwrap();
        // No rows: the functions are the last of the section.
        assert_eq!(met.check(met.len()), Ok(()));
        let len = met.len() - 1;
        assert_eq!(met.check(len), Err(Error::FdesOutside { end: met.len(), len }));
        let overlap = Error::TablesOverlap { fdes_end: met.len(), fres_start: len };
        let before = Header::parse(&with(&[(16, 1), (24, 0x2f)])).unwrap();
        assert_eq!(before.check(before.len()), Err(overlap));
    }
}

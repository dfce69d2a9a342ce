//! The start of a `perf.data`: its form, byte order, and where its parts are.

use unwind_perf::record::Endian;
use unwind_target::Untrusted;

/// A part of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Section {
    /// Bytes from the start of the file.
    pub(crate) at: u64,
    /// Its length in bytes.
    pub(crate) len: u64,
}

/// The header of the file form.
///
/// In pipe form there are only the magic number and the size, and the other
/// parts come as records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Bytes of an attr with the place of its ids after it.
    pub(crate) attr_len: u64,
    pub(crate) attrs: Section,
    pub(crate) data: Section,
    pub(crate) event_types: Section,
    /// Which features follow the data, as bits.
    pub(crate) features: [u64; 4],
}

/// How the file starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) endian: Endian,
    /// Bytes of the header.
    pub(crate) size: u64,
}

impl Start {
    /// Bytes of the magic number and the size.
    pub(crate) const LEN: usize = 16;
    /// The size that says pipe form.
    pub(crate) const PIPE: u64 = 16;

    /// Returns how a file starts, if it is a `perf.data`.
    pub(crate) fn parse(bytes: [u8; Self::LEN]) -> Option<Self> {
        let (magic, size) = bytes.split_first_chunk::<8>()?;
        let endian = match magic {
            b"PERFILE2" => Endian::Little,
            b"2ELIFREP" => Endian::Big,
            _ => return None,
        };
        Some(Self { endian, size: endian.u64(*size.first_chunk()?) })
    }

    /// The bytes of the start of a file.
    pub(crate) fn bytes(self) -> [u8; Self::LEN] {
        let magic = match self.endian {
            Endian::Little => b"PERFILE2",
            Endian::Big => b"2ELIFREP",
        };
        let mut bytes = [0; Self::LEN];
        let (first, second) = bytes.split_at_mut(magic.len());
        first.copy_from_slice(magic);
        second.copy_from_slice(&self.endian.bytes_of_u64(self.size));
        bytes
    }
}

impl FileHeader {
    /// Bytes of the header, its start included.
    pub(crate) const LEN: u64 = 104;

    /// Words after the start.
    const WORDS: usize = 11;

    /// Bytes after the start.
    pub(crate) const REST: usize = Self::WORDS.saturating_mul(8);

    /// Reads what follows the start.
    pub(crate) fn parse(bytes: &[u8; Self::REST], endian: Endian) -> Self {
        let (words, _) = bytes.as_chunks();
        let mut words = words.iter().map(|&word| endian.u64(word));
        let mut next = || words.next().unwrap_or_default();
        Self {
            attr_len: next(),
            attrs: Section { at: next(), len: next() },
            data: Section { at: next(), len: next() },
            event_types: Section { at: next(), len: next() },
            features: [next(), next(), next(), next()],
        }
    }

    /// The whole header.
    pub(crate) fn bytes(&self, endian: Endian) -> Vec<u8> {
        let mut bytes = Start { endian, size: Self::LEN }.bytes().to_vec();
        let words = [
            self.attr_len,
            self.attrs.at,
            self.attrs.len,
            self.data.at,
            self.data.len,
            self.event_types.at,
            self.event_types.len,
        ];
        let words = words.into_iter().chain(self.features);
        bytes.extend(words.flat_map(|word| endian.bytes_of_u64(word)));
        bytes
    }

    /// The features, in the order of their sections.
    pub(crate) fn features(&self) -> impl Iterator<Item = Feature> + use<> {
        let features = self.features;
        (0..=u8::MAX).map(Feature).filter(move |feature| feature.is_in(&features))
    }
}

/// A feature section, by the number of its bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Feature(pub(crate) u8);

impl Feature {
    /// The build ids of files.
    pub(crate) const BUILD_ID: Self = Self(2);
    /// The name of the machine, its kernel's version, and what kind of machine it is.
    pub(crate) const HOSTNAME: Self = Self(3);
    pub(crate) const OSRELEASE: Self = Self(4);
    pub(crate) const ARCH: Self = Self(6);
    /// How many CPUs the machine has, and how many of them are on.
    pub(crate) const NRCPUS: Self = Self(7);
    /// The attrs again, with names.
    pub(crate) const EVENT_DESC: Self = Self(12);
    /// How fine the clock of the samples is.
    pub(crate) const CLOCKID: Self = Self(23);
    /// One moment by the clock of the samples and by that of the wall.
    pub(crate) const CLOCK_DATA: Self = Self(29);
    /// How records are compressed.
    pub(crate) const COMPRESSED: Self = Self(27);
    /// What the PMU of the CPUs can do.
    pub(crate) const CPU_PMU_CAPS: Self = Self(28);
    /// Where in the file trace data are.
    pub(crate) const AUXTRACE: Self = Self(18);

    /// The ledger of `unwind record`. perf leaves out those that it does not know.
    pub(crate) const LEDGER: Self = Self(255);

    fn is_in(self, features: &[u64; 4]) -> bool {
        let word = features.get(usize::from(self.0 / 64)).copied().unwrap_or(0);
        word & self.bit() != 0
    }

    /// Its bit within its word.
    const fn bit(self) -> u64 {
        1 << (self.0 % 64)
    }

    /// Sets its bit.
    pub(crate) fn set(self, features: &mut [u64; 4]) {
        if let Some(word) = features.get_mut(usize::from(self.0 / 64)) {
            *word |= self.bit();
        }
    }
}

/// A text with its length in front.
pub(crate) fn text_of_section(section: &[u8], endian: Endian) -> Option<Untrusted> {
    let (len, rest) = section.split_first_chunk()?;
    let len = usize::try_from(endian.u32(*len)).ok()?;
    let text = rest.get(..len)?.split(|&byte| byte == 0).next()?;
    (!text.is_empty()).then(|| Untrusted::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_both_byte_orders() {
        let mut features = [0; 4];
        for feature in [0, 12, 63, 64, 128, 255] {
            Feature(feature).set(&mut features);
        }
        let header = FileHeader {
            attr_len: 160,
            attrs: Section { at: 120, len: 160 },
            data: Section { at: 280, len: 31_496 },
            event_types: Section::default(),
            features,
        };
        for endian in [Endian::Little, Endian::Big] {
            let bytes = header.bytes(endian);
            assert_eq!(u64::try_from(bytes.len()).unwrap(), FileHeader::LEN);
            let start = Start::parse(*bytes.first_chunk().unwrap()).unwrap();
            assert_eq!(start, Start { endian, size: FileHeader::LEN });
            let rest = bytes[Start::LEN..].try_into().unwrap();
            assert_eq!(FileHeader::parse(rest, endian), header);
        }
        let set: Vec<u8> = header.features().map(|feature| feature.0).collect();
        assert_eq!(set, [0, 12, 63, 64, 128, 255]);
    }
}

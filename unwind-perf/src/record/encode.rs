//! Values to bytes: one description of each layout serves both to measure a
//! record and to write it.

use super::header::{Misc, RecordHeader, RecordType};
use super::{Endian, Error, EventFormat};

/// Where encoded bytes go.
pub trait Output {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);
}

#[cfg(feature = "alloc")]
impl Output for alloc::vec::Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// An output that only measures.
#[derive(Clone, Copy, Debug, Default)]
struct Length(usize);

impl Output for Length {
    fn put(&mut self, bytes: &[u8]) {
        self.0 = self.0.saturating_add(bytes.len());
    }
}

/// Writes scalars in one byte order.
#[derive(Debug)]
pub struct Encoder<'o, O> {
    out: &'o mut O,
    endian: Endian,
}

impl<O: Output> Encoder<'_, O> {
    pub(super) const fn endian(&self) -> Endian {
        self.endian
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.out.put(bytes);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.out.put(&self.endian.bytes_of_u32(value));
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.out.put(&self.endian.bytes_of_u64(value));
    }

    /// A word, if the attr asks for it.
    pub(super) fn u64_if(&mut self, value: Option<u64>, asked: bool) {
        if let Some(value) = value.filter(|_| asked) {
            self.u64(value);
        }
    }

    /// Two half words, if the attr asks for them.
    pub(super) fn u32_pair(&mut self, pair: Option<(u32, u32)>, asked: bool) {
        if let Some((first, second)) = pair.filter(|_| asked) {
            self.u32(first);
            self.u32(second);
        }
    }

    /// A count and as many words.
    pub(super) fn counted_words(&mut self, mut words: impl Iterator<Item = u64> + Clone) {
        self.u64(u64::try_from(words.clone().count()).unwrap_or(u64::MAX));
        // Some at a time: the output has to look for room each time.
        let mut some = [[0; 8]; 32];
        loop {
            let places = some.iter_mut().zip(&mut words);
            let filled =
                places.map(|(place, word)| *place = self.endian.bytes_of_u64(word)).count();
            match some.get(..filled) {
                Some(words) if filled > 0 => self.out.put(words.as_flattened()),
                _ => return,
            }
        }
    }
}

/// A record that can be written under an event's format.
pub trait Encode {
    /// What the record is about.
    fn kind(&self) -> RecordType;

    /// The header's `misc` bits: none unless the record has some of its own.
    fn misc(&self) -> Misc {
        Misc::UNKNOWN
    }

    /// Writes the record without its header.
    ///
    /// Two calls write the same bytes: the first call measures.
    ///
    /// # Errors
    ///
    /// [`Error`] if `format` asks for what the value lacks.
    fn encode_body<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error>;

    /// Returns the record's length in bytes, header included.
    ///
    /// # Errors
    ///
    /// As [`encode_body`](Self::encode_body), and [`Error::TooLong`] if the
    /// header's size field cannot hold it.
    fn encoded_len(&self, format: EventFormat) -> Result<u16, Error> {
        let mut len = Length(RecordHeader::SIZE);
        self.encode_body(format, &mut Encoder { out: &mut len, endian: Endian::NATIVE })?;
        u16::try_from(len.0).map_err(|_| Error::TooLong { len: super::bytes::offset(len.0) })
    }

    /// Writes the whole record.
    ///
    /// Nothing is written on error.
    ///
    /// # Errors
    ///
    /// As [`encoded_len`](Self::encoded_len).
    fn encode<O: Output>(
        &self,
        format: EventFormat,
        endian: Endian,
        out: &mut O,
    ) -> Result<(), Error> {
        let size = self.encoded_len(format)?;
        out.put(&endian.bytes_of_u32(self.kind().0));
        out.put(&endian.bytes_of_u16(self.misc().0));
        out.put(&endian.bytes_of_u16(size));
        self.encode_body(format, &mut Encoder { out, endian })
    }
}

//! Records that are compressed by zstd, as `perf record -z` and `unwind record -z` write them.

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use unwind_perf::record::{Endian, RecordHeader};

/// How far back bytes may refer: as far as those of zstd's level 19. As much memory is taken.
const WINDOW: u64 = 8 << 20;

/// How many bytes may come of each compressed one, and how many more: callchains that repeat are
/// a hundredth when compressed, and those of a recursion that is as deep as a walk goes a five hundredth.
const MAX_RATIO: u64 = 1024;
const START: u64 = 1 << 20;

/// The flag of a frame that has a checksum at its end, and its length.
const HAS_CHECKSUM: u8 = 1 << 2;
const CHECKSUM: usize = 4;

/// What is compressed is damaged, or stands for more bytes than records can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadCompression;

/// One stream of compressed records, whose pieces come one after another.
///
/// Each piece may have a whole frame, as ours have, or a part of one that the next continues: perf
/// never ends its frame. Of that the last bytes, as many as later ones may refer to, are handed out
/// at the end alone.
pub(crate) struct Decompressor {
    decoder: FrameDecoder,
    /// Whether a frame has begun, and whether it will have a checksum.
    frame: Option<bool>,
    /// What came, from `decoded` on not decoded yet: a part of a block, between two pieces.
    input: Vec<u8>,
    decoded: usize,
    /// What is decoded, from `taken` on not handed out.
    output: Vec<u8>,
    taken: usize,
    read: u64,
    made: u64,
}

impl Decompressor {
    pub(crate) fn new() -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW);
        let (input, output) = (Vec::new(), Vec::new());
        Self { decoder, frame: None, input, decoded: 0, output, taken: 0, read: 0, made: 0 }
    }

    /// Takes the next piece.
    pub(crate) fn add(&mut self, piece: &[u8]) {
        self.input.drain(..self.decoded);
        self.decoded = 0;
        self.input.extend(piece);
        self.read = self.read.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
    }

    /// Whether records before the next piece may come out after it.
    pub(crate) const fn holds_back(&self) -> bool {
        self.frame.is_some()
    }

    /// Puts the next record in `record`. Returns whether there is one.
    ///
    /// # Errors
    ///
    /// [`BadCompression`].
    pub(crate) fn next(
        &mut self,
        endian: Endian,
        record: &mut Vec<u8>,
    ) -> Result<bool, BadCompression> {
        loop {
            let rest = self.output.get(self.taken..).unwrap_or_default();
            if let Some(header) = rest.first_chunk::<{ RecordHeader::SIZE }>() {
                let header = RecordHeader::parse(header, endian).map_err(|_| BadCompression)?;
                if let Some(whole) = rest.get(..header.size.into()) {
                    record.clear();
                    record.extend(whole);
                    self.taken = self.taken.saturating_add(whole.len());
                    return Ok(true);
                }
            }
            self.output.drain(..self.taken);
            self.taken = 0;
            if !self.decode()? {
                return Ok(false);
            }
        }
    }

    /// Ends the stream: what was held back comes out after that.
    ///
    /// # Errors
    ///
    /// [`BadCompression`] if it ends inside a block.
    pub(crate) fn end(&mut self) -> Result<(), BadCompression> {
        if self.decoded < self.input.len() {
            return Err(BadCompression);
        }
        if let Some(has_checksum) = self.frame {
            // The last block, without a byte.
            self.input.extend([1, 0, 0]);
            self.input.extend(if has_checksum { &[0; CHECKSUM][..] } else { &[] });
        }
        Ok(())
    }

    /// Whether all that was decoded is handed out.
    pub(crate) const fn is_empty(&self) -> bool {
        self.output.len() == self.taken
    }

    /// Decodes the next block, if it is there as a whole.
    fn decode(&mut self) -> Result<bool, BadCompression> {
        let has_checksum = match self.frame {
            Some(has_checksum) => has_checksum,
            None => {
                let left = self.input.get(self.decoded..).unwrap_or_default();
                let Some(&descriptor) = left.get(4) else { return Ok(false) };
                let Some(header) = left.get(..frame_header_len(descriptor)) else {
                    return Ok(false);
                };
                self.decoder.reset(header).map_err(|_| BadCompression)?;
                self.decoded = self.decoded.saturating_add(header.len());
                *self.frame.insert(descriptor & HAS_CHECKSUM != 0)
            }
        };
        let left = self.input.get(self.decoded..).unwrap_or_default();
        let Some(&[first, second, third]) = left.first_chunk() else { return Ok(false) };
        let header = u32::from_le_bytes([first, second, third, 0]);
        let (is_last, is_one_byte) = (header & 1 != 0, header >> 1 & 3 == 1);
        let size = if is_one_byte { 1 } else { usize::try_from(header >> 3).unwrap_or(usize::MAX) };
        let after = if is_last && has_checksum { CHECKSUM } else { 0 };
        let len = size.saturating_add(after).saturating_add(3);
        let Some(mut block) = left.get(..len) else { return Ok(false) };
        let strategy = BlockDecodingStrategy::UptoBlocks(1);
        self.decoder.decode_blocks(&mut block, strategy).map_err(|_| BadCompression)?;
        self.decoded = self.decoded.saturating_add(len);
        let decoded = self.decoder.collect().unwrap_or_default();
        self.made = self.made.saturating_add(u64::try_from(decoded.len()).unwrap_or(u64::MAX));
        if self.made > self.read.saturating_mul(MAX_RATIO).saturating_add(START) {
            return Err(BadCompression);
        }
        self.output.extend(decoded);
        if is_last {
            self.frame = None;
        }
        Ok(true)
    }
}

/// How long the header of a frame is whose first byte after the magic number is `descriptor`.
fn frame_header_len(descriptor: u8) -> usize {
    let is_single_segment = descriptor & 1 << 5 != 0;
    let dictionary = match descriptor & 3 {
        3 => 4,
        len => usize::from(len),
    };
    let content = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let window = usize::from(!is_single_segment);
    [4, 1, window, dictionary, content].iter().sum()
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    /// Records of different lengths, as they are when they are not compressed.
    fn records() -> Vec<Vec<u8>> {
        let record = |number: u16| {
            let len = 8 + number % 113 * 8;
            let mut record = vec![9, 0, 0, 0, 0, 0];
            record.extend(len.to_le_bytes());
            record.extend((8..len).map(|at| u8::try_from(at / 7 % 256).unwrap()));
            record
        };
        (0..2000).map(record).collect()
    }

    /// What comes out of pieces, also after each.
    fn decompressed<'p>(
        pieces: impl IntoIterator<Item = &'p [u8]>,
    ) -> Result<Vec<Vec<u8>>, BadCompression> {
        let mut decompressor = Decompressor::new();
        let (mut records, mut record) = (Vec::new(), Vec::new());
        for piece in pieces {
            decompressor.add(piece);
            while decompressor.next(Endian::Little, &mut record)? {
                records.push(record.clone());
            }
        }
        decompressor.end()?;
        while decompressor.next(Endian::Little, &mut record)? {
            records.push(record.clone());
        }
        assert!(decompressor.is_empty());
        Ok(records)
    }

    #[test]
    fn records_come_out_as_they_were_however_the_stream_is_cut_into_pieces() {
        let records = records();
        let frames: Vec<Vec<u8>> = records
            .chunks(100)
            .map(|records| compress_to_vec(&*records.concat(), CompressionLevel::Fastest))
            .collect();
        assert_eq!(decompressed(frames.iter().map(Vec::as_slice)).as_ref(), Ok(&records));
        let one = compress_to_vec(&*records.concat(), CompressionLevel::Fastest);
        assert!(one.len() < records.concat().len() / 4);
        for len in [1, 7, 1000, one.len()] {
            assert_eq!(decompressed(one.chunks(len)).as_ref(), Ok(&records), "{len}");
        }
        // As perf leaves it: the frame is not ended. Its last block is made one that is not.
        let mut open = one.clone();
        let header = frame_header_len(open[4]);
        let mut at = header;
        loop {
            let word = u32::from_le_bytes([open[at], open[at + 1], open[at + 2], 0]);
            if word & 1 == 1 {
                open[at] &= !1;
                break;
            }
            at += 3 + if word >> 1 & 3 == 1 { 1 } else { usize::try_from(word >> 3).unwrap() };
        }
        let checksum = if open[4] & HAS_CHECKSUM != 0 { CHECKSUM } else { 0 };
        let open = &open[..open.len() - checksum];
        assert_eq!(decompressed([open]).as_ref(), Ok(&records));
    }

    #[test]
    fn stacks_of_a_deep_recursion_come_out() {
        let stack = |number: u64| {
            let words: Vec<u64> =
                [number, 2048].into_iter().chain([0x5555_5555_1234; 2048]).collect();
            let len = u16::try_from(8 + words.len() * 8).unwrap();
            let mut record = vec![22, 0, 0, 0, 0, 0];
            record.extend(len.to_le_bytes());
            record.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            record
        };
        let records: Vec<Vec<u8>> = (0..600).map(stack).collect();
        let pieces: Vec<Vec<u8>> = records
            .chunks(3)
            .map(|records| compress_to_vec(&*records.concat(), CompressionLevel::Fastest))
            .collect();
        assert_eq!(decompressed(pieces.iter().map(Vec::as_slice)).as_ref(), Ok(&records));
    }

    #[test]
    fn what_is_damaged_or_stands_for_too_much_is_refused() {
        assert_eq!(decompressed([&b"no frame of zstd"[..]]), Err(BadCompression));
        let frame = compress_to_vec(&*records().concat(), CompressionLevel::Fastest);
        assert_eq!(decompressed([&frame[..frame.len() / 2]]), Err(BadCompression));
        // Blocks of four bytes, each of which stands for 128 KiB of one value.
        let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x58];
        let block = u32::to_le_bytes(128 << 10 << 3 | 1 << 1);
        for _ in 0..10_000 {
            bomb.extend([block[0], block[1], block[2], 1]);
        }
        assert_eq!(decompressed([bomb.as_slice()]), Err(BadCompression));
    }
}

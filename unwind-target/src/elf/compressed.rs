//! Sections whose bytes are compressed: `SHF_COMPRESSED`, by zlib or zstd.

use std::io::Read;

use flate2::bufread::ZlibDecoder;
use object::elf::{self, CompressionHeader32, CompressionHeader64};
use object::read::elf::CompressionHeader;
use object::{Endianness, pod};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::elf::error::{ElfError, Part};
use crate::elf::image::COPY_LIMIT;

/// How many bytes a compressed byte may stand for, and how many bytes there may be
/// in any case. Debug sections come to 3 to 10 for one; both formats can say
/// "a gigabyte of zeroes" in a megabyte or less.
const MAX_EXPANSION: u64 = 64;
const ALWAYS_ALLOWED: u64 = 64 << 10;

/// How far back the bytes of a zstd frame may refer in any case: that is what the
/// format wants of all decoders, and what encoders say that do not know how much
/// will come.
const ZSTD_WINDOW: u64 = 8 << 20;

/// The bytes that `bytes`, a header and what follows, stand for.
///
/// # Errors
///
/// [`ElfError`] if they are more than the limits allow, or not what the header
/// says.
pub(super) fn decompress(
    part: Part,
    is_64: bool,
    endian: Endianness,
    bytes: &[u8],
) -> Result<Vec<u8>, ElfError> {
    if is_64 {
        by_header::<CompressionHeader64<Endianness>>(part, endian, bytes)
    } else {
        by_header::<CompressionHeader32<Endianness>>(part, endian, bytes)
    }
}

fn by_header<C>(part: Part, endian: Endianness, bytes: &[u8]) -> Result<Vec<u8>, ElfError>
where
    C: CompressionHeader<Endian = Endianness>,
{
    let damaged = ElfError::Compression { part };
    let (header, body) = pod::from_bytes::<C>(bytes).map_err(|()| damaged)?;
    let len: u64 = header.ch_size(endian).into();
    let compressed = u64::try_from(body.len()).unwrap_or(u64::MAX);
    let allowed = compressed.saturating_mul(MAX_EXPANSION).max(ALWAYS_ALLOWED);
    if len > allowed.min(COPY_LIMIT) {
        return Err(ElfError::Expansion { part, len, compressed });
    }
    let decoded = match header.ch_type(endian) {
        elf::ELFCOMPRESS_ZLIB => zlib(len, body),
        elf::ELFCOMPRESS_ZSTD => zstd(len, allowed.max(ZSTD_WINDOW), body),
        other => return Err(ElfError::UnknownCompression { part, kind: other.0 }),
    };
    decoded.filter(|decoded| u64::try_from(decoded.len()) == Ok(len)).ok_or(damaged)
}

/// Decodes a stream of zlib, up to one byte more than `len`.
fn zlib(len: u64, body: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    ZlibDecoder::new(body).take(len.checked_add(1)?).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Decodes frames of zstd one after another, as linkers write them that compress
/// on several CPUs, up to some more than `len` bytes.
fn zstd(len: u64, max_window: u64, body: &[u8]) -> Option<Vec<u8>> {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(max_window);
    let (mut bytes, mut rest) = (Vec::new(), body);
    let mut left = len.checked_add(1)?;
    while !rest.is_empty() {
        let frame = StreamingDecoder::new_with_decoder(&mut rest, &mut decoder).ok()?;
        let read = frame.take(left).read_to_end(&mut bytes).ok()?;
        left = left.checked_sub(u64::try_from(read).ok()?).filter(|&left| left != 0)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;

//! The kernel in a Linux image for x86 (`bzImage`, Debian's `vmlinuz`): an ELF file, compressed.
//!
//! The image begins with the header of Linux's boot protocol, which says where the compressed bytes are. After
//! them comes their length, unpacked, in four bytes.

use flate2::bufread::GzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::elf::kernel_image::limited::read;

#[cfg(feature = "kernel-images")]
mod compressions;
mod limited;
#[cfg(feature = "kernel-images")]
mod lzop;

/// How many bytes an image may have, and the file in it: kernels with all that can be switched on have a tenth.
pub const IMAGE_LIMIT: u64 = 256 << 20;
const FILE_LIMIT: usize = 1 << 30;

/// How far back the bytes of zstd may refer: what Linux's own tools ask for at most.
const WINDOW_LIMIT: u64 = 128 << 20;

/// Why an image cannot be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelImageError {
    /// It is no Linux image for x86, or of a time before they said where the kernel is.
    #[error("not a Linux image for x86 of boot protocol 2.08 or later")]
    NotImage,
    /// The compressed bytes are not all there.
    #[error("the image ends before the compressed kernel does")]
    Truncated,
    /// The kernel would be longer than any.
    #[error("the kernel would have {0} bytes, more than any has")]
    TooLong(u32),
    /// A compression that is not known, by the bytes that it begins with. Without the feature `kernel-images`
    /// only gzip and zstd are.
    #[error(
        "the kernel is compressed in a way that this program does not know: it begins with {0:02x?}"
    )]
    UnknownCompression([u8; 4]),
    /// The compressed bytes do not have that form, or unpack to another length.
    #[error("the kernel is damaged: it is no {0} of that length")]
    Damaged(&'static str),
}

/// Whether these are the first bytes of an image.
#[must_use]
pub fn is_kernel_image(bytes: &[u8]) -> bool {
    bytes.get(MAGIC_AT..MAGIC_AT.saturating_add(4)) == Some(b"HdrS")
}

const MAGIC_AT: usize = 0x202;

/// The ELF file in an image.
///
/// # Errors
///
/// [`KernelImageError`].
pub fn unpack(image: &[u8]) -> Result<Vec<u8>, KernelImageError> {
    let (packed, len) = payload(image)?;
    let damaged = KernelImageError::Damaged;
    let room = usize::try_from(len).ok().filter(|len| *len <= FILE_LIMIT);
    let room = room.ok_or(KernelImageError::TooLong(len))?;
    let unpacked = match packed {
        [0x1f, 0x8b, ..] => Some(("gzip", read(GzDecoder::new(packed), room))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(("zstd", zstd(packed, room))),
        _ => others(packed, room),
    };
    let unknown = || {
        let start = packed.first_chunk().copied().unwrap_or_default();
        KernelImageError::UnknownCompression(start)
    };
    let (name, unpacked) = unpacked.ok_or_else(unknown)?;
    unpacked.filter(|bytes| bytes.len() == room).ok_or(damaged(name))
}

/// The compressed bytes, and how many they stand for.
fn payload(image: &[u8]) -> Result<(&[u8], u32), KernelImageError> {
    let word = |at: usize| image.get(at..)?.first_chunk().copied().map(u32::from_le_bytes);
    let version = image.get(0x206..).and_then(|bytes| bytes.first_chunk());
    let is_known = version.is_some_and(|version| u16::from_le_bytes(*version) >= 0x208);
    if !is_kernel_image(image) || !is_known {
        return Err(KernelImageError::NotImage);
    }
    let find = || {
        // Sectors of real-mode code before it, of which one is not counted; zero stands for four.
        let sectors = match *image.get(0x1f1)? {
            0 => 4,
            sectors => u32::from(sectors),
        };
        let start = sectors.checked_add(1)?.checked_mul(512)?.checked_add(word(0x248)?)?;
        let bytes = image.get(usize::try_from(start).ok()?..)?;
        let bytes = bytes.get(..usize::try_from(word(0x24c)?).ok()?)?;
        let (packed, len) = bytes.split_last_chunk()?;
        let len = u32::from_le_bytes(*len);
        // That of gzip is a part of it.
        Some((if bytes.starts_with(&[0x1f, 0x8b]) { bytes } else { packed }, len))
    };
    find().ok_or(KernelImageError::Truncated)
}

fn zstd(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(WINDOW_LIMIT);
    read(StreamingDecoder::new_with_decoder(packed, decoder).ok()?, len)
}

#[cfg(feature = "kernel-images")]
use compressions::unpack as others;

#[cfg(not(feature = "kernel-images"))]
const fn others(_packed: &[u8], _room: usize) -> Option<(&'static str, Option<Vec<u8>>)> {
    None
}

#[cfg(test)]
mod tests;

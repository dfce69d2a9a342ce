//! The compressions that only Linux images have here.

use lzma_rust2::{LzmaReader, XzReader};

use crate::elf::kernel_image::limited::read;
use crate::elf::kernel_image::lzop;

/// What memory a dictionary may take: what Linux's own tools ask for at most.
const DICTIONARY_LIMIT_KIB: u32 = 192 << 10;

/// The name of the compression, and what it unpacks to. `None` if it is none of these.
pub(super) fn unpack(packed: &[u8], room: usize) -> Option<(&'static str, Option<Vec<u8>>)> {
    Some(match packed {
        [0xfd, b'7', b'z', b'X', ..] => {
            let xz = XzReader::new_mem_limit(packed, false, DICTIONARY_LIMIT_KIB);
            ("xz", read(xz, room))
        }
        [0x5d, 0, 0, ..] => {
            let lzma = LzmaReader::new_mem_limit(packed, DICTIONARY_LIMIT_KIB, None);
            ("lzma", lzma.ok().and_then(|lzma| read(lzma, room)))
        }
        [0x89, b'L', b'Z', b'O', ..] => ("lzop", lzop::unpack(packed, room)),
        [0x02, 0x21, 0x4c, 0x18, rest @ ..] => ("lz4", lz4(rest, room)),
        _ => return None,
    })
}

/// Blocks in the framing that lz4 had first: the length of each, compressed, and its bytes. All
/// but the last stand for 8 MiB.
fn lz4(mut packed: &[u8], len: usize) -> Option<Vec<u8>> {
    const BLOCK: usize = 8 << 20;
    let mut bytes = Vec::new();
    while let Some((size, rest)) = packed.split_first_chunk() {
        let (block, after) = rest.split_at_checked(u32::from_le_bytes(*size).try_into().ok()?)?;
        let left = len.checked_sub(bytes.len())?;
        bytes.extend(lz4_flex::block::decompress(block, BLOCK.min(left)).ok()?);
        packed = after;
    }
    Some(bytes)
}

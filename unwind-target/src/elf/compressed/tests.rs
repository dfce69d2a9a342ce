#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::*;

const PART: Part = Part::DebugFrame;

/// A section as `is_64` has it: kind, what it claims to be long, and its bytes.
fn section(is_64: bool, kind: u32, len: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    if is_64 {
        bytes.extend([0; 4]);
        bytes.extend(len.to_le_bytes());
        bytes.extend(1_u64.to_le_bytes());
    } else {
        bytes.extend(u32::try_from(len).unwrap().to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}

fn read(is_64: bool, kind: u32, len: u64, body: &[u8]) -> Result<Vec<u8>, ElfError> {
    decompress(PART, is_64, Endianness::Little, &section(is_64, kind, len, body))
}

fn zlib_of(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd_of(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// Some that can be compressed, but not to nothing.
fn text() -> Vec<u8> {
    (0..5000_u32).flat_map(|number| format!("row {}\n", number % 97).into_bytes()).collect()
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap()
}

#[test]
fn a4_both_kinds_of_compression_and_both_classes_of_files_are_read() {
    let text = text();
    for is_64 in [true, false] {
        for (kind, body) in [(1, zlib_of(&text)), (2, zstd_of(&text))] {
            assert!(body.len() < text.len() / 2);
            assert_eq!(read(is_64, kind, len(&text), &body), Ok(text.clone()), "{kind}");
        }
    }
}

#[test]
fn a4_frames_of_zstd_may_follow_each_other() {
    let text = text();
    let (first, second) = text.split_at(777);
    let both = [zstd_of(first), zstd_of(second)].concat();
    assert_eq!(read(true, 2, len(&text), &both), Ok(text));
}

#[test]
fn a4_what_is_not_as_long_as_it_claims_is_damaged() {
    let text = text();
    for (kind, body) in [(1, zlib_of(&text)), (2, zstd_of(&text))] {
        for claimed in [0, 1, len(&text) - 1, len(&text) + 1] {
            let read = read(true, kind, claimed, &body);
            assert_eq!(read, Err(ElfError::Compression { part: PART }), "{kind} {claimed}");
        }
        for cut in 0..body.len().min(300) {
            let read = read(true, kind, len(&text), &body[..cut]);
            assert!(read.is_err(), "{kind} {cut}");
        }
    }
    assert!(decompress(PART, true, Endianness::Little, &[1; 23]).is_err());
}

#[test]
fn a4_a_claim_of_more_than_the_limit_is_refused_before_anything_is_decoded() {
    let body = zlib_of(&vec![0; 1 << 20]);
    let refused = ElfError::Expansion { part: PART, len: 1 << 20, compressed: len(&body) };
    assert_eq!(read(true, 1, 1 << 20, &body), Err(refused));
    // What is small anyway may be small in the file.
    let body = zlib_of(&vec![0; 60_000]);
    assert_eq!(read(true, 1, 60_000, &body), Ok(vec![0; 60_000]));
    let error = read(true, 7, 10, b"0123456789").unwrap_err();
    assert_eq!(error.to_string(), ".debug_frame is compressed in an unknown way (7)");
}

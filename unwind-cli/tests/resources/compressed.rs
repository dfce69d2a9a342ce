//! Files with compressed sections that stand for as much as they may, or for more.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use testdata::{CfiBuilder, Cie, ElfBuilder, ElfSection, ElfSegment};

use crate::elf::size_of;
use crate::support::resources::{Bounds, Run, input_file, stays_linear};

const SHT_PROGBITS: u32 = 1;
const SHT_STRTAB: u32 = 3;
const SHF_COMPRESSED: u64 = 1 << 11;

const ZLIB: u32 = 1;
const ZSTD: u32 = 2;

/// A byte of a compressed section stands for 64 at most, and to copy those takes three
/// times as much for a moment. A table made of them has some more.
const COMPRESSED: Bounds = Bounds { time: Duration::from_secs(240), memory: 64 * 5, output: 64 };

/// Random bytes, which cannot be compressed.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// A section of this kind that says how long it is.
fn section(kind: u32, len: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(len.to_le_bytes());
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend(body);
    bytes
}

fn compress(kind: u32, bytes: &[u8]) -> Vec<u8> {
    if kind == ZSTD {
        return compress_to_vec(bytes, CompressionLevel::Fastest);
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A program of `code` bytes of code with this compressed section.
fn program(name: &str, compressed: &[u8], code: u64) -> Vec<u8> {
    let mut elf = ElfBuilder::new(ElfBuilder::EXECUTABLE);
    let names = [b"\0.shstrtab\0", name.as_bytes(), b"\0"].concat();
    let (kind, addr, memory_size) = (1, 0x40_0000, code);
    elf.segments.push(ElfSegment { kind, flags: 5, addr, memory_size, ..ElfSegment::default() });
    let (offset, size) = (elf.put(compressed), size_of(compressed));
    let (kind, flags) = (SHT_PROGBITS, SHF_COMPRESSED);
    elf.section(ElfSection { name: 11, kind, flags, offset, size, ..ElfSection::default() });
    let (offset, size) = (elf.put(&names), size_of(&names));
    let kind = SHT_STRTAB;
    elf.names = elf.section(ElfSection { name: 1, kind, offset, size, ..ElfSection::default() });
    elf.finish()
}

const BUILT: &[&str] = &["sframe", "check", "--built", "v3", "FILE"];

fn built(path: &Path, file: &[u8]) -> Run {
    Run::of_file(path, file, BUILT)
}

#[test]
fn a4_call_frame_information_that_is_compressed_costs_what_it_stands_for() {
    let path = input_file("a4_compressed");
    for (kind, name) in [(ZLIB, "entries by zlib"), (ZSTD, "entries by zstd")] {
        stays_linear("sframe check --built", name, COMPRESSED, |times| {
            let functions = 20_000 * u64::try_from(times).unwrap();
            let mut cfi = CfiBuilder::debug_frame();
            let cie = cfi.cie(&Cie::amd64());
            for index in 0..functions {
                cfi.fde(cie, 0x40_0000 + 32 * index, 32, &[0x41, 0x0e, 16]);
            }
            let plain = cfi.build();
            let body = compress(kind, plain);
            assert!(plain.len() > 4 * body.len() && plain.len() < 60 * body.len(), "{name}");
            built(
                &path,
                &program(".debug_frame", &section(kind, size_of(plain), &body), 32 * functions),
            )
        });
    }
}

/// As much as a section may stand for: nearly all of it zeroes.
#[test]
fn a4_zeroes_that_are_compressed_as_far_as_is_allowed_cost_in_proportion() {
    let path = input_file("a4_zeroes");
    for (kind, name) in [(ZLIB, "zeroes by zlib"), (ZSTD, "zeroes by zstd")] {
        for section_name in [".debug_frame", ".sframe"] {
            let construction = format!("{name} in {section_name}");
            stays_linear("sframe check", &construction, COMPRESSED, |times| {
                let noise = noise((100 << 10) * times);
                let mut plain = noise.clone();
                plain.resize(noise.len() * 63, 0);
                let body = compress(kind, &plain);
                let bytes = section(kind, size_of(&plain), &body);
                let file = program(section_name, &bytes, 64);
                Run::of_file(&path, &file, &["sframe", "check", "FILE"])
            });
        }
    }
}

/// More than it says, or says more than is allowed: a few bytes for a gigabyte.
#[test]
fn a4_sections_that_say_too_much_or_too_little_cost_nothing_more() {
    let path = input_file("a4_too_much");
    let zeroes = vec![0; 16 << 20];
    for (kind, name) in [(ZLIB, "zlib"), (ZSTD, "zstd")] {
        let body = compress(kind, &zeroes);
        for (what, len) in [("says 2^40", 1 << 40), ("says 2^64", u64::MAX), ("says 1,000", 1000)] {
            let construction = format!("{name} of 16 MiB {what}");
            let bounds = Bounds { memory: 16, ..Bounds::USUAL };
            stays_linear("sframe check --built", &construction, bounds, |times| {
                // The rest is read, and is not part of what it stands for.
                let padding = noise((1 << 20) * times);
                let bytes = section(kind, len, &[body.as_slice(), &padding].concat());
                built(&path, &program(".debug_frame", &bytes, 64))
            });
        }
    }
}

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::*;

/// An image with these compressed bytes, whose last four are the length.
fn image(payload: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 0x600];
    image[0x1f1] = 1;
    image[0x202..0x208].copy_from_slice(b"HdrS\x0f\x02");
    image[0x248..0x24c].copy_from_slice(&0x200_u32.to_le_bytes());
    image[0x24c..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
    image.extend(payload);
    image
}

/// What a program writes of its input.
fn by(program: &str, arguments: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    Some(output.stdout).filter(|_| output.status.success())
}

/// Something that compresses, with addresses of calls, which a filter of xz is about.
fn kernel() -> Vec<u8> {
    let words = (0..20_000_u32).flat_map(|n| [0xe8, 0, 0, 0].into_iter().chain(n.to_le_bytes()));
    b"\x7fELF".iter().copied().chain(words).collect()
}

/// The programs as Linux calls them, and whether they write the length themselves.
const COMPRESSIONS: [(&str, &[&str]); 6] = [
    ("gzip", &["-n", "-f", "-9"]),
    ("xz", &["--check=crc32", "--x86", "--lzma2=dict=32MiB"]),
    ("lzma", &["-9"]),
    ("lzop", &["-9"]),
    ("lz4", &["-l", "-9"]),
    ("zstd", &["-22", "--ultra"]),
];

#[test]
fn each_compression_of_linux_is_unpacked() {
    let kernel = kernel();
    let len = u32::try_from(kernel.len()).unwrap().to_le_bytes();
    for (program, arguments) in COMPRESSIONS {
        let Some(mut packed) = by(program, arguments, &kernel) else {
            test_support::skip(&format!("there is no {program}"));
            continue;
        };
        if program != "gzip" {
            packed.extend(len);
        }
        let unpacked = unpack(&image(&packed)).map_err(|error| format!("{program}: {error}"));
        assert!(unpacked.unwrap() == kernel, "{program}");
        // Cut or damaged anywhere it is refused, or at most as long as it says.
        for at in (0..packed.len()).step_by(packed.len() / 8 + 1) {
            assert!(unpack(&image(&packed[..at])).is_err(), "{program} {at}");
            let mut damaged = packed.clone();
            damaged[at] ^= 0x55;
            if let Ok(bytes) = unpack(&image(&damaged)) {
                assert_eq!(bytes.len(), kernel.len(), "{program} {at}");
            }
        }
        let mut longer = packed;
        let end = longer.len();
        longer[end - 4..].copy_from_slice(&(1_u32 << 31).to_le_bytes());
        assert_eq!(unpack(&image(&longer)), Err(KernelImageError::TooLong(1 << 31)), "{program}");
    }
}

#[test]
fn what_is_no_image_is_refused() {
    assert_eq!(unpack(&[]), Err(KernelImageError::NotImage));
    assert_eq!(unpack(&vec![0; 0x1000]), Err(KernelImageError::NotImage));
    let mut old = image(&[0; 16]);
    old[0x206] = 0x05;
    assert_eq!(unpack(&old), Err(KernelImageError::NotImage));
    let mut cut = image(&[0; 16]);
    cut.truncate(0x608);
    assert_eq!(unpack(&cut), Err(KernelImageError::Truncated));
    let unknown = image(b"BZh9\x31\x41\x59\x26\0\0\0\0");
    assert_eq!(unpack(&unknown), Err(KernelImageError::UnknownCompression(*b"BZh9")));
}

//! The program in the kernel that these tests run on.
#![cfg(test)]

use unwind_bpf::{FileKey, Limits, LoadError, Record, Segment, Table, TableError, Walker};

/// The program; `None` where the kernel does not load it.
fn walker() -> Option<Walker> {
    match Walker::load(Limits { ring_bytes: 1 << 16, ..Limits::default() }) {
        Ok(walker) => Some(walker),
        Err(LoadError::Refused { step, error }) if !is_able() || is_right_missing(&error) => {
            println!("skipped: the kernel does not {step}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn is_right_missing(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::PermissionDenied
}

/// Whether the kernel is one that loads the program for who may.
fn is_able() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 12) && std::fs::exists("/sys/kernel/btf/vmlinux").unwrap_or(false)
}

#[test]
fn the_program_takes_few_of_the_instructions_that_a_verifier_looks_at() {
    let Some(walker) = walker() else { return };
    let verified = walker.verified_instructions().unwrap();
    assert!((1_000..20_000).contains(&verified), "{verified}");
}

#[test]
fn a_program_without_events_has_nothing_to_tell() {
    let Some(mut walker) = walker() else { return };
    let mut records = 0;
    assert_eq!(walker.drain(|_| records += 1), 0);
    assert_eq!((records, walker.counts()), (0, Default::default()));
}

/// A file of no machine.
fn file() -> FileKey {
    let words = [4_u64, 0, 0, 7, 9, 5, 11 << 32 | 13, 0x1000, 0x2000, 0];
    let mut bytes: Vec<u8> = [4_u32, 1, 1, 0].iter().flat_map(|it| it.to_ne_bytes()).collect();
    bytes.extend([0; 24]);
    bytes.extend(words[3..].iter().flat_map(|it| it.to_ne_bytes()));
    match Record::parse(&bytes) {
        Some(Record::Wanted(wanted)) => wanted.file,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tables_are_taken_and_what_is_none_is_refused() {
    let Some(walker) = walker() else { return };
    let tables = walker.tables().unwrap();
    let segments = [Segment { from: 0, to: 0x1000, address: 0x1000 }];
    let none =
        tables.install(file(), Table { image: &[1, 2, 3], segments: &segments, interpreter: None });
    assert!(matches!(none, Err(TableError::NoImage(3))), "{none:?}");
    for words in [5_usize, 512, 100_000] {
        let image = vec![0; words * 8];
        tables
            .install(file(), Table { image: &image, segments: &segments, interpreter: None })
            .unwrap();
    }
    tables.refuse(file()).unwrap();
    tables.forget(file()).unwrap();
    let again = tables.forget(file()).map_err(|error| error.kind());
    assert_eq!(again, Err(std::io::ErrorKind::NotFound));
}

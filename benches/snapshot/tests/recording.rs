//! What is written is read back, and nothing that a file holds does harm.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use unwind_snapshot::{Cfi, Error, Image, Mapping, Recording, Snapshot, Space, Writer};

const STACK: &[u8] = &[1, 2, 3, 4, 5, 6, 7, 8];

fn snapshot(space: u32) -> Snapshot<'static> {
    let gpr = core::array::from_fn(|number| u64::try_from(number).unwrap());
    Snapshot {
        space,
        process: 10,
        thread: 11,
        time: 12,
        rip: 0x1010,
        gpr,
        is_whole: true,
        stack_start: 0x7000,
        stack: STACK,
    }
}

fn mapping(start: u64, end: u64) -> Mapping {
    Mapping { range: start..end, bias: 0x1000, image: 0 }
}

fn file(mappings: &[Mapping], snapshot: &Snapshot<'_>) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    assert_eq!(writer.image(&Image { build_id: &[0xab, 0xcd], path: b"/bin/x" }).unwrap(), 0);
    assert_eq!(writer.space(&Space { mappings: mappings.to_vec() }).unwrap(), 0);
    writer.snapshot(snapshot).unwrap();
    writer.cfi(&Cfi { image: 0, addr: 0x2000, eh_frame: &[0; 4] }).unwrap();
    writer.finish().unwrap()
}

#[test]
fn what_is_written_is_read_back() {
    let mappings = [mapping(0x1000, 0x2000), mapping(0x2000, 0x3000)];
    let bytes = file(&mappings, &snapshot(0));
    let recording = Recording::parse(&bytes).unwrap();
    assert_eq!(recording.images, [Image { build_id: &[0xab, 0xcd], path: b"/bin/x" }]);
    assert_eq!(recording.spaces, [Space { mappings: mappings.to_vec() }]);
    assert_eq!(recording.snapshots, [snapshot(0)]);
    assert_eq!(recording.cfi, [Cfi { image: 0, addr: 0x2000, eh_frame: &[0; 4] }]);
    assert_eq!((recording.snapshots[0].rsp(), recording.snapshots[0].rbp()), (7, 6));
    assert_eq!(recording.space_of(&recording.snapshots[0]), Some(&recording.spaces[0]));
}

#[test]
fn the_layout_of_a_snapshot_is_the_documented_one() {
    let mut bytes = Writer::new(Vec::new()).unwrap();
    bytes.space(&Space::default()).unwrap();
    bytes.snapshot(&snapshot(0)).unwrap();
    let bytes = bytes.finish().unwrap();
    let mut expected = b"unwsnaps\x01\0\0\0".to_vec();
    expected.extend([2, 0, 0, 0, 0, 0, 0, 0]); // a space without code
    expected.extend([3, 0, 0, 0, 176, 0, 0, 0]); // a snapshot
    expected.extend([0, 0, 0, 0, 10, 0, 0, 0, 11, 0, 0, 0, 1, 0, 0, 0]); // space to flags
    expected.extend(12_u64.to_le_bytes()); // time
    expected.extend(0x1010_u64.to_le_bytes()); // rip
    expected.extend((0..16_u64).flat_map(u64::to_le_bytes)); // registers
    expected.extend(0x7000_u64.to_le_bytes()); // start of the stack
    expected.extend(STACK);
    assert_eq!(bytes, expected);
}

#[test]
fn a_record_refers_to_earlier_ones_only() {
    let bytes = file(&[mapping(1, 2)], &snapshot(1));
    assert!(matches!(Recording::parse(&bytes), Err(Error::NoSpace { index: 1, .. })));
    let bytes = file(&[Mapping { image: 1, ..mapping(1, 2) }], &snapshot(0));
    assert!(matches!(Recording::parse(&bytes), Err(Error::NoImage { index: 1, .. })));
}

#[test]
fn ranges_ascend_and_do_not_overlap() {
    for ranges in [[(1, 2), (1, 2)], [(3, 4), (1, 2)], [(1, 1), (2, 3)], [(2, 1), (3, 4)]] {
        let mappings = ranges.map(|(start, end)| mapping(start, end));
        let bytes = file(&mappings, &snapshot(0));
        assert!(matches!(Recording::parse(&bytes), Err(Error::BadRange { .. })), "{ranges:?}");
    }
}

#[test]
fn records_of_other_kinds_are_skipped() {
    let mut bytes = file(&[mapping(1, 2)], &snapshot(0));
    bytes.extend([99, 0, 0, 0, 2, 0, 0, 0, 7, 7]);
    assert_eq!(Recording::parse(&bytes).unwrap().snapshots.len(), 1);
}

#[test]
fn other_files_and_other_versions_are_refused() {
    let bytes = file(&[], &snapshot(0));
    assert_eq!(Recording::parse(&bytes[1..]), Err(Error::NotSnapshots));
    assert_eq!(Recording::parse(b""), Err(Error::NotSnapshots));
    let mut other = bytes.clone();
    other[8] = 2;
    assert_eq!(Recording::parse(&other), Err(Error::Version(2)));
}

#[test]
fn every_prefix_is_whole_records_or_an_error() {
    let bytes = file(&[mapping(1, 2)], &snapshot(0));
    let mut whole = 0;
    for len in 0..=bytes.len() {
        whole += usize::from(Recording::parse(&bytes[..len]).is_ok());
    }
    // After the version, and after each of the four records.
    assert_eq!(whole, 5);
}

#[test]
fn any_changed_byte_is_an_error_or_bounded() {
    let bytes = file(&[mapping(1, 2), mapping(3, 4)], &snapshot(0));
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = value;
            if let Ok(recording) = Recording::parse(&changed) {
                let held: usize = recording.snapshots.iter().map(|s| s.stack.len()).sum();
                assert!(held <= bytes.len() && recording.spaces.len() <= bytes.len());
            }
        }
    }
}

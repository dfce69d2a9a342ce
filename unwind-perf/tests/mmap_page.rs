//! The first page of a ring, by the offsets of Linux's `struct perf_event_mmap_page`.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::sync::atomic::{AtomicU64, Ordering};

use unwind_perf::ring::{MmapPage, RingError};

/// A page in which each byte from the first to the last field is its own offset.
fn page() -> Vec<AtomicU64> {
    let bytes: Vec<u8> = (0..4096_usize).map(|at| at.to_le_bytes()[0]).collect();
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    words.map(AtomicU64::new).collect()
}

fn put(words: &[AtomicU64], at: usize, bytes: &[u8]) {
    let mut word = words[at / 8].load(Ordering::Relaxed).to_ne_bytes();
    word[at % 8..at % 8 + bytes.len()].copy_from_slice(bytes);
    words[at / 8].store(u64::from_ne_bytes(word), Ordering::Relaxed);
}

/// The number of `N` bytes whose first has this value.
fn at<const N: usize>(offset: usize) -> u64 {
    let mut number = [0; 8];
    for (index, byte) in number.iter_mut().take(N).enumerate() {
        *byte = (offset + index).to_le_bytes()[0];
    }
    u64::from_le_bytes(number)
}

#[test]
#[cfg(target_endian = "little")]
fn each_field_is_where_linux_has_it() {
    let words = page();
    let page = MmapPage::new(&words).unwrap();
    let found = [
        u64::from(page.version()),
        u64::from(page.compat_version()),
        page.time_enabled(),
        page.time_running(),
        u64::from(page.size()),
        page.data_offset(),
        page.data_size(),
        page.aux_place().0,
        page.aux_place().1,
    ];
    let expected = [
        at::<4>(0),
        at::<4>(4),
        at::<8>(24),
        at::<8>(32),
        at::<4>(72),
        at::<8>(1040),
        at::<8>(1048),
        at::<8>(1072),
        at::<8>(1080),
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_fields_of_the_clock_are_read_together_or_not_at_all() {
    let words = page();
    let page = MmapPage::new(&words).unwrap();
    put(&words, 8, &4_u32.to_ne_bytes());
    // Conversion to times of the event and of records.
    put(&words, 40, &(1_u64 << 3 | 1 << 4).to_ne_bytes());
    put(&words, 50, &10_u16.to_ne_bytes());
    put(&words, 52, &512_u32.to_ne_bytes());
    put(&words, 64, &1_000_u64.to_ne_bytes());
    let clock = page.clock().unwrap();
    assert_eq!((clock.shift, clock.mult, clock.zero), (10, 512, 1_000));
    assert_eq!(clock.time(4_096), Some(1_000 + 2_048));
    // The kernel is writing them.
    put(&words, 8, &5_u32.to_ne_bytes());
    assert_eq!(page.clock(), None);
    put(&words, 8, &6_u32.to_ne_bytes());
    assert_eq!(page.clock(), Some(clock));
    // It does not relate the two.
    put(&words, 40, &0_u64.to_ne_bytes());
    assert_eq!(page.clock(), None);
}

#[test]
fn a_page_that_is_made_says_what_its_reader_needs() {
    let words: Vec<AtomicU64> = (0..512).map(|_| AtomicU64::new(0)).collect();
    let page = MmapPage::new(&words).unwrap();
    page.init(4096, 1 << 16);
    assert_eq!((page.version(), page.compat_version()), (0, 0));
    assert_eq!((page.data_offset(), page.data_size()), (4096, 1 << 16));
    page.ask_for_aux(1 << 20, 1 << 16);
    assert_eq!(page.aux_place(), (1 << 20, 1 << 16));
    for short in [0, 1, MmapPage::WORDS - 1] {
        let error = MmapPage::new(&words[..short]).unwrap_err();
        assert_eq!(error, RingError::ShortPage { words: short });
    }
    assert!(MmapPage::new(&words[..MmapPage::WORDS]).is_ok());
}

//! What profilers and hypervisors add: merging of streams, and page walks.

#![allow(
    missing_docs,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    reason = "criterion makes the functions"
)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use unwind_benches::merging::merge;
use unwind_core::{Memory as _, VirtAddr};
use unwind_x86::paging::{AddressSpace, FlatMemory, PagedMemory, PagingMode};

fn streams(c: &mut Criterion) {
    let mut group = c.benchmark_group("merge by samples");
    for samples in [256, 4096, 65_536] {
        assert_eq!(merge(samples), samples, "each has its stack");
        group.throughput(Throughput::Elements(samples));
        group.bench_function(BenchmarkId::from_parameter(samples), |b| {
            b.iter(|| merge(black_box(samples)));
        });
    }
    group.finish();
}

/// Physical memory in which four levels of tables map one page at `0x1000` to
/// that at `0x5000`, where word `n` has the value `n`.
fn guest() -> Vec<u8> {
    const PRESENT_USER: u64 = 7;
    let mut ram = vec![0; 0x6000];
    let mut put = |at: usize, word: u64| {
        ram.get_mut(at..at + 8).unwrap().copy_from_slice(&word.to_le_bytes());
    };
    put(0x1000, 0x2000 | PRESENT_USER);
    put(0x2000, 0x3000 | PRESENT_USER);
    put(0x3000, 0x4000 | PRESENT_USER);
    put(0x4008, 0x5000 | PRESENT_USER);
    for word in 0..512 {
        put(0x5000 + word * 8, word.try_into().unwrap());
    }
    ram
}

fn pages(c: &mut Criterion) {
    let ram = guest();
    let space = AddressSpace::new(PagingMode::FourLevel, 0x1000);
    let word = |memory: &mut PagedMemory<FlatMemory<'_>>, number: u64| {
        let word = memory.read_u64(VirtAddr::new(0x1000 + 8 * number)).unwrap();
        assert_eq!(word, number);
    };
    let mut group = c.benchmark_group("page walk");
    group.bench_function("first word of a page", |b| {
        b.iter(|| word(&mut PagedMemory::new(FlatMemory::new(black_box(&ram)), space), 7));
    });
    group.bench_function("512 words of a page", |b| {
        b.iter(|| {
            let mut memory = PagedMemory::new(FlatMemory::new(black_box(&ram)), space);
            (0..512).for_each(|number| word(&mut memory, number));
        });
    });
    group.finish();
}

criterion_group!(benches, streams, pages);
criterion_main!(benches);

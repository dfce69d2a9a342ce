//! Walks by SFrame tables that lie in the target's memory.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::num::NonZero;

use sframe::{RemoteError, TableOffset};
use test_support::SparseMemory;
use testdata::{Function, Row as Fre, TableBuilder};
use unwind_core::{
    Empty, End, Module, Origin, ReadError, RowCache, RowKey, RowSource, RowStore, SharedModuleMap,
    StepError, TableError, TableLocation, Unchecked, VirtAddr, Walker,
};
use unwind_x86::{
    FramePointers, Ia32, Ia32Regs, RemoteSframe, RemoteSframeError, SframeScratch, X86_64,
    X86_64Regs,
};

const STACK: u64 = 0x7000;
const TABLE: u64 = 0x40_0000;

/// Two functions, at 0x1000 and 0x1100 above the table.
fn library(version: u8) -> Vec<u8> {
    TableBuilder::amd64(version)
        .function(Function::new(0x1000, 0x80, vec![Fre::sp(0, &[8]), Fre::sp(4, &[24])]))
        .function(Function::new(0x1100, 0x80, vec![Fre::sp(0, &[16])]))
        .build()
}

fn module(len: usize) -> Module<TableLocation> {
    let len = u64::try_from(len).unwrap();
    let table = TableLocation { addr: VirtAddr::new(TABLE), len, id: NonZero::new(7) };
    Module { text: VirtAddr::new(0x40_1000)..VirtAddr::new(0x40_2000), table }
}

fn walk<S>(source: S, target: &mut SparseMemory) -> (Vec<u64>, End<RemoteSframeError>)
where
    S: RowSource<X86_64, Error = RemoteSframeError>,
{
    walk_by(Walker::new(X86_64::FOUR_LEVEL, source), target)
}

fn walk_by<S, C>(
    walker: Walker<X86_64, S, Empty, Unchecked, C>,
    target: &mut SparseMemory,
) -> (Vec<u64>, End<RemoteSframeError>)
where
    S: RowSource<X86_64, Error = RemoteSframeError>,
    C: RowStore,
{
    let mut walker = walker.fallback(FramePointers);
    let mut frames = walker.frames(X86_64Regs::new(0x40_1010, STACK, 0), target);
    let pcs = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
    (pcs, frames.end().unwrap())
}

/// After its 16 bytes of locals, then from the second function.
const FRAMES: [u64; 5] = [0, 0, 0x40_1110, 0, 0];

#[test]
fn tables_are_read_where_they_are_and_the_header_once_a_walk() {
    for version in [1, 2, 3] {
        let bytes = library(version);
        let modules = SharedModuleMap::<4>::new();
        modules.add(&module(bytes.len())).unwrap();
        let mut target = SparseMemory::default().put(TABLE, &bytes).words(STACK, &FRAMES);
        let (pcs, end) = walk(RemoteSframe::new(&modules, &mut SframeScratch::new()), &mut target);
        assert_eq!((pcs, end), (vec![0x40_1010, 0x40_1110], End::ZeroReturnAddress), "V{version}");
        let header_reads = target.reads.iter().filter(|&&addr| addr == TABLE);
        assert_eq!(header_reads.count(), 1, "V{version}");
    }
}

#[test]
fn an_absent_table_ends_the_walk_until_it_is_there_and_is_no_reason_to_fall_back() {
    let bytes = library(3);
    let modules = SharedModuleMap::<4>::new();
    modules.add(&module(bytes.len())).unwrap();
    let mut target = SparseMemory::default().put(TABLE, &bytes).words(STACK, &FRAMES);
    target.absent.insert(TABLE >> 12);
    let (pcs, end) = walk(RemoteSframe::new(&modules, &mut SframeScratch::new()), &mut target);
    let (at, error) = (TableOffset(0), ReadError::NotResident);
    let absent = RemoteSframeError::Table(RemoteError::Unreadable { at, error });
    assert_eq!((pcs, end), (vec![0x40_1010], End::Table(absent)));
    assert!(end.is_retryable());
    assert!(RemoteSframeError::Contended.is_not_resident());

    target.absent.clear();
    let (pcs, end) = walk(RemoteSframe::new(&modules, &mut SframeScratch::new()), &mut target);
    assert_eq!((pcs.len(), end), (2, End::ZeroReturnAddress));
}

#[test]
fn a_table_that_is_malformed_or_of_another_cpu_leaves_the_walk_to_the_fallback() {
    let modules = SharedModuleMap::<4>::new();
    modules.add(&module(4096)).unwrap();
    let mut zeroes = SparseMemory::default().put(TABLE, &[0; 64]).words(STACK, &FRAMES);
    let (pcs, end) = walk(RemoteSframe::new(&modules, &mut SframeScratch::new()), &mut zeroes);
    assert_eq!(pcs, [0x40_1010]);
    let End::Table(error @ RemoteSframeError::Table(RemoteError::Table(_))) = end else {
        panic!("{end}")
    };
    assert!(!error.is_not_resident());

    let function = Function::new(0x1000, 0x80, vec![Fre::sp(0, &[16])]);
    let foreign = TableBuilder::aarch64(3, false).function(function).build();
    let mut target = SparseMemory::default().put(TABLE, &foreign).words(STACK, &FRAMES);
    let (_, end) = walk(RemoteSframe::new(&modules, &mut SframeScratch::new()), &mut target);
    assert_eq!(end, End::Step(StepError::ZeroFramePointer), "by the frame pointer, which is none");
}

#[test]
fn rows_of_a_cache_do_not_outlive_their_module() {
    let bytes = library(3);
    let modules = SharedModuleMap::<4>::new();
    modules.add(&module(bytes.len())).unwrap();
    let mut target = SparseMemory::default().put(TABLE, &bytes).words(STACK, &FRAMES);
    let mut rows = RowCache::<16>::new();
    for _ in 0..2 {
        let mut scratch = SframeScratch::new();
        let source = RemoteSframe::new(&modules, &mut scratch);
        let walker = Walker::new(X86_64::FOUR_LEVEL, source).cache(&mut rows);
        assert_eq!(walk_by(walker, &mut target).0.len(), 2);
    }
    assert!(rows.stats().hits > 0);
    modules.remove_table(VirtAddr::new(TABLE)).unwrap();
    let mut scratch = SframeScratch::new();
    let source = RemoteSframe::new(&modules, &mut scratch);
    let walker = Walker::new(X86_64::FOUR_LEVEL, source).cache(&mut rows);
    let (pcs, _) = walk_by(walker, &mut target);
    assert_eq!(pcs, [0x40_1010], "nothing but the frame pointer is left");
}

#[test]
fn code_of_32_bits_has_no_rows() {
    let modules = SharedModuleMap::<4>::new();
    modules.add(&module(64)).unwrap();
    let mut target = SparseMemory::default();
    let mut scratch = SframeScratch::new();
    let mut walker = Walker::new(Ia32::FLAT, RemoteSframe::new(&modules, &mut scratch));
    let mut frames = walker.frames(Ia32Regs::new(0x40_1010, 0x7000, 0x7000), &mut target);
    assert_eq!((frames.by_ref().count(), frames.end()), (1, Some(End::NoRow)));
    // A process may start there, so the stack is looked at; no table is.
    assert_eq!(target.reads, [STACK]);
}

#[test]
fn rows_say_that_they_come_from_a_table() {
    let bytes = library(2);
    let modules = SharedModuleMap::<4>::new();
    modules.add(&module(bytes.len())).unwrap();
    let mut target = SparseMemory::default().put(TABLE, &bytes).words(STACK, &FRAMES);
    let mut scratch = SframeScratch::new();
    let source = RemoteSframe::new(&modules, &mut scratch);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, source);
    let frames = walker.frames(X86_64Regs::new(0x40_1010, STACK, 0), &mut target);
    let origins: Vec<_> = frames.map(|frame| frame.provenance.origin()).collect();
    assert_eq!(origins, [Origin::Registers, Origin::Table]);
}

#[test]
fn a1_a_table_in_memory_leads_past_the_pop_of_a_frame_pointer_too() {
    // The first function at its `ret`: the slot that the row names is below the stack
    // pointer, where nothing was captured.
    let bytes = TableBuilder::amd64(2)
        .function(Function::new(0x1000, 0x80, vec![Fre::sp(0, &[8, -16])]))
        .function(Function::new(0x1100, 0x80, vec![Fre::sp(0, &[16])]))
        .build();
    let modules = SharedModuleMap::<4>::new();
    modules.add(&module(bytes.len())).unwrap();
    let mut target = SparseMemory::default().put(TABLE, &bytes).words(STACK, &[0x40_1110, 0, 0]);
    let mut scratch = SframeScratch::new();
    let source = RemoteSframe::new(&modules, &mut scratch);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, source).fallback(FramePointers);
    let mut frames = walker.frames(X86_64Regs::new(0x40_1010, STACK, 0), &mut target);
    let found: Vec<_> = frames.by_ref().collect();
    assert_eq!((found.len(), frames.end()), (2, Some(End::ZeroReturnAddress)));
    assert!(found[1].provenance.is_fp_assumed() && frames.is_complete());
}

#[test]
fn a_row_has_the_key_of_its_table_if_that_has_a_number() {
    let key = |module: Module<TableLocation>, addr| {
        let modules = SharedModuleMap::<4>::new();
        modules.add(&module).unwrap();
        let mut scratch = SframeScratch::new();
        let rows = RemoteSframe::new(&modules, &mut scratch);
        RowSource::<X86_64>::row_key(&rows, VirtAddr::new(addr))
    };
    let numbered = module(0x400);
    assert_eq!(key(numbered.clone(), 0x40_1010), Some(RowKey { table: 7, offset: 0x1010 }));
    assert_eq!(key(numbered.clone(), 0x40_3000), None);
    let table = TableLocation { id: None, ..numbered.table };
    assert_eq!(key(Module { table, ..numbered }, 0x40_1010), None);
}

//! Memory that fails at one read after another: whatever fails, a stack that
//! was cut short does not count as complete, and the same walk works later.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use sframe::{RemoteError, RemoteTable};
use test_support::SparseMemory;
use testdata::{Function, Row as Fre, TableBuilder};
use unwind_core::{
    End, Memory, Module, PackedFrame, ReadError, RowSource, SharedModuleMap, TableError as _,
    TableLocation, Trace, VirtAddr, Walker,
};
use unwind_x86::paging::{
    Access, AddressSpace, FlatMemory, PagedMemory, PagingMode, PhysAddr, PhysicalMemory,
};
use unwind_x86::{
    FramePointers, Ia32, Ia32Regs, InstructionAnalysis, RemoteSframe, SframeScratch,
    SignalTrampolines, X86_64, X86_64Regs,
};

const TABLE: u64 = 0x40_0000;
const STACK: u64 = 0x7000;

/// The code of functions with a table, that of functions without, and a signal
/// trampoline.
const WITH: u64 = 0x40_1000;
const WITHOUT: u64 = 0x50_0000;
const TRAMPOLINE: u64 = 0x60_0000;

/// A handler with tables, called from one that keeps frame pointers; the signal
/// interrupted code with tables, and that was called by `_start`.
fn target() -> (X86_64Regs, SparseMemory) {
    let mut outermost = Function::new(0x1200, 0x100, vec![Fre::sp(0, &[])]);
    outermost.rows[0].info = 0;
    let table = TableBuilder::amd64(3)
        .function(Function::new(0x1000, 0x80, vec![Fre::sp(0, &[8]), Fre::sp(4, &[24])]))
        .function(Function::new(0x1100, 0x80, vec![Fre::sp(0, &[16])]))
        .function(outermost)
        .build();
    // r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip.
    let gregs = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 0x9010, 3, 1, 0, 2, 0x9000, WITH + 0x104];
    let target = SparseMemory::default()
        .put(TABLE, &table)
        .put(WITHOUT, &[0xf4; 64])
        .put(TRAMPOLINE - 64, &[0xf4; 64])
        .put(TRAMPOLINE, &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05])
        // Locals, then a return into code that keeps a frame pointer.
        .words(STACK, &[0, 0, WITHOUT + 32])
        // That returns to the trampoline.
        .words(STACK + 0x40, &[0, TRAMPOLINE])
        .words(STACK + 0x50 + 40, &gregs)
        .words(0x9000, &[0, WITH + 0x210]);
    (X86_64Regs::new(WITH + 0x10, STACK, STACK + 0x40), target)
}

fn modules() -> SharedModuleMap<4> {
    let modules = SharedModuleMap::new();
    let table = TableLocation { addr: VirtAddr::new(TABLE), len: 0x400, id: None };
    let text = VirtAddr::new(WITH)..VirtAddr::new(WITH + 0x1000);
    modules.add(&Module { text, table }).unwrap();
    modules
}

fn walk(target: &mut SparseMemory, regs: X86_64Regs) -> Trace<[PackedFrame; 16]> {
    let modules = modules();
    let mut scratch = SframeScratch::new();
    let tables = RemoteSframe::new(&modules, &mut scratch);
    let rows = RowSource::<X86_64>::or(tables, SignalTrampolines);
    let rows = RowSource::<X86_64>::or(rows, InstructionAnalysis);
    let mut trace = Trace::<[_; 16]>::new();
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, rows).fallback(FramePointers);
    walker.trace(regs, target, &mut trace);
    trace
}

fn pcs(trace: &Trace) -> Vec<u64> {
    trace.pcs().map(VirtAddr::get).collect()
}

#[test]
fn each_read_of_a_walk_may_fail_and_no_part_of_a_stack_is_taken_for_the_whole() {
    let (regs, whole) = target();
    let mut target = whole.clone();
    let trace = walk(&mut target, regs);
    let frames = [WITH + 0x10, WITHOUT + 32, TRAMPOLINE, WITH + 0x104, WITH + 0x210];
    assert_eq!((pcs(&trace), trace.end()), (frames.to_vec(), Some(End::Outermost)));
    let reads = target.reads.len();
    assert!(reads > 15, "{reads} reads");
    let mut shorter = 0;
    for read in 1..=reads {
        for error in [ReadError::NotResident, ReadError::Invalid] {
            let mut failing = whole.failing(read, error);
            let trace = walk(&mut failing, regs);
            let found = pcs(&trace);
            assert_eq!(found[0], frames[0], "read {read}, {error}");
            // A frame pointer in the place of a table may miss a caller, and then the
            // stack is not complete.
            let guessed = trace.frames().any(|frame| frame.provenance.is_after_failure());
            assert!(
                !trace.is_complete() || found == frames && !guessed,
                "read {read}, {error}: {found:x?} is said to be complete"
            );
            assert!(error == ReadError::Invalid || !guessed, "read {read}");
            if found != frames {
                shorter += 1;
            }
            // What is absent is not gone past by a guess.
            if error == ReadError::NotResident && trace.end().unwrap().is_retryable() {
                assert_eq!(found, frames[..found.len()], "read {read}");
            }
            // The memory is there again.
            failing.fails = None;
            assert_eq!(pcs(&walk(&mut failing, regs)), frames);
        }
    }
    assert!(shorter > 10, "{shorter} walks were cut short");
}

#[test]
fn each_read_of_a_32_bit_walk_may_fail() {
    // At the entry of a function; then two frames, then start-up code.
    let whole = SparseMemory::default()
        .put(0x804_8000, &[0xf4; 64])
        .put(0x804_8020, &[0x55, 0x89, 0xe5])
        .words_32(0x7000, &[0x804_9010])
        .words_32(0x7010, &[0x7020, 0x804_a010])
        .words_32(0x7020, &[0, 0]);
    let walk = |target: &mut SparseMemory| {
        let rows = RowSource::<Ia32>::or(SignalTrampolines, InstructionAnalysis);
        let mut walker = Walker::new(Ia32::FLAT, rows).fallback(FramePointers);
        let mut trace = Trace::<[_; 16]>::new();
        walker.trace(Ia32Regs::new(0x804_8020, 0x7000, 0x7010), target, &mut trace);
        assert!(!trace.is_complete(), "a zero that a frame pointer led to proves nothing");
        trace.pcs().map(VirtAddr::get).collect::<Vec<_>>()
    };
    let mut target = whole.clone();
    let frames = walk(&mut target);
    assert_eq!(frames, [0x804_8020, 0x804_9010, 0x804_a010]);
    for read in 1..=target.reads.len() {
        for error in [ReadError::NotResident, ReadError::Invalid] {
            let found = walk(&mut whole.failing(read, error));
            assert_eq!(found[0], frames[0]);
            assert!(found.iter().all(|pc| frames.contains(pc)), "read {read}: {found:x?}");
        }
    }
}

#[test]
fn each_read_of_a_lookup_may_fail_and_is_named() {
    let mut table = TableBuilder::amd64(2);
    for i in 0..40 {
        let rows = (0..60).map(|row| Fre::sp(row, &[8, -16])).collect();
        table = table.function(Function::new(0x1000 + i * 0x100, 60, rows));
    }
    let bytes = table.build();
    let len = u64::try_from(bytes.len()).unwrap();
    let whole = SparseMemory::default().put(TABLE, &bytes);
    let find = |target: &mut SparseMemory| {
        RemoteTable::open(target, TABLE, len)?.find(target, TABLE + 0x1000 + 39 * 0x100 + 59)
    };
    let mut target = whole.clone();
    let found = find(&mut target).unwrap().unwrap();
    assert_eq!(found.fde.index, 39);
    assert!(target.reads.len() > 4);
    for read in 1..=target.reads.len() {
        for error in [ReadError::NotResident, ReadError::Invalid] {
            let mut failing = whole.failing(read, error);
            let failure = find(&mut failing).unwrap_err();
            let RemoteError::Unreadable { at, error: reason } = failure else {
                panic!("{failure}")
            };
            assert_eq!(reason, error);
            assert!(at.0 < len);
            assert_eq!(failure.is_not_resident(), error == ReadError::NotResident);
            assert_eq!(failing.reads.len(), read, "nothing is read after a failure");
        }
    }
}

/// Physical memory of which one read fails.
struct Physical<'a> {
    ram: FlatMemory<'a>,
    reads: u32,
    fails: Option<u32>,
}

impl PhysicalMemory for Physical<'_> {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads += 1;
        if self.fails == Some(self.reads) {
            return Err(ReadError::NotResident);
        }
        self.ram.read(addr, buf)
    }
}

#[test]
fn each_read_of_a_page_walk_may_fail_and_nothing_of_it_is_remembered() {
    let mut ram = vec![0; 0x7000];
    // Four tables in the pages from 0x1000 on, then two pages of data.
    let mut put = |at: usize, word: u64| ram[at..at + 8].copy_from_slice(&word.to_le_bytes());
    for (table, next) in [(0x1000, 0x2000), (0x2000, 0x3000), (0x3000, 0x4000_u64)] {
        put(table, next | 7);
    }
    put(0x4000, 0x5000 | 7);
    put(0x4008, 0x6000 | 7);
    ram[0x5ff0..0x6010].copy_from_slice(&[0xab; 32]);
    let space = AddressSpace::new(PagingMode::FourLevel, 0x1000).access(Access::User);
    let physical = |fails| Physical { ram: FlatMemory::new(&ram), reads: 0, fails };
    let read = |memory: &mut PagedMemory<Physical<'_>, 4>| {
        let mut buf = [0; 32];
        memory.read(VirtAddr::new(0xff0), &mut buf).map(|()| buf)
    };
    let mut memory = PagedMemory::with_tlb(physical(None), space);
    assert_eq!(read(&mut memory), Ok([0xab; 32]));
    let reads = memory.physical().reads;
    assert_eq!(reads, 4 + 1 + 4 + 1);
    for fails in 1..=reads {
        let mut memory = PagedMemory::with_tlb(physical(Some(fails)), space);
        assert_eq!(read(&mut memory), Err(ReadError::NotResident), "read {fails}");
        assert_eq!(read(&mut memory), Ok([0xab; 32]), "after read {fails} failed");
    }
}

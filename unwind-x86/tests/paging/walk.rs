//! Walks of stacks that are reached through page tables.

use unwind_core::{End, ReadError, StepError, VirtAddr, Walker};
use unwind_x86::paging::{AddressSpace, PagedMemory, PagingMode};
use unwind_x86::{FramePointers, Ia32, Ia32Regs, X86_64, X86_64Regs};

use PagingMode::{FourLevel, TwoLevel};

use crate::tables::*;

/// Puts words one after another.
fn words(ram: &mut Ram, at: u64, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    ram.put(at, &bytes);
}

#[test]
fn a_walk_through_page_tables_ends_at_an_absent_page_and_continues_when_it_is_there() {
    let mut ram = mapped(&[0x9000 | TABLE, 0x6000]);
    words(&mut ram, 0x9ff0, &[0x10_1010, 0x40_1234]);
    words(&mut ram, 0x6010, &[0, 0]);
    let mut memory = PagedMemory::new(ram, AddressSpace::new(FourLevel, CR3));
    let regs = X86_64Regs::new(0x40_1000, 0x10_0f00, 0x10_0ff0);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, FramePointers);
    let mut walk = |memory: &mut PagedMemory<Ram>| {
        let mut frames = walker.frames(regs, memory);
        let pcs: Vec<u64> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
        (pcs, frames.end().unwrap())
    };
    let addr = VirtAddr::new(0x10_1018);
    let absent = End::Step(StepError::Unreadable { addr, error: ReadError::NotResident });
    assert_eq!(walk(&mut memory), (vec![0x40_1000, 0x40_1234], absent));
    assert!(absent.is_retryable());

    memory.physical().put(0x4808, &(0x6000 | TABLE).to_le_bytes());
    let root = End::Step(StepError::ZeroReturnAddress { cfa: 0x10_1020 });
    assert_eq!(walk(&mut memory), (vec![0x40_1000, 0x40_1234], root));
}

#[test]
fn a_32_bit_guest_is_walked_through_its_own_tables() {
    let mut ram = Ram::new(8).entries(
        TwoLevel,
        &[(0x1000 + 4 * 0x300, 0x2000 | TABLE), (0x2000, 0x3000 | TABLE), (0x2004, 0x5000 | TABLE)],
    );
    // ebp = 0xc0000ffc: the saved ebp is on one page, the return address on
    // the next.
    ram.put(0x3ffc, &0xc000_1010_u32.to_le_bytes());
    ram.put(0x5000, &0x0804_8123_u32.to_le_bytes());
    ram.put(0x5010, &[0; 8]);
    let mut memory = PagedMemory::new(ram, AddressSpace::new(TwoLevel, CR3));
    let root = End::Step(StepError::ZeroReturnAddress { cfa: 0xc000_1018 });
    let mut walker = Walker::new(Ia32::FLAT, FramePointers);
    let mut frames =
        walker.frames(Ia32Regs::new(0x0804_8000, 0xc000_0f00, 0xc000_0ffc), &mut memory);
    let pcs: Vec<u64> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
    assert_eq!((pcs, frames.end()), (vec![0x0804_8000, 0x0804_8123], Some(root)));
}

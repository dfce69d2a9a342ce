//! A walk by call frame information in place, which a stack of this program's own shows.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use unwind::cfi::{CfiAbi, CfiSection, CfiTable};
use unwind::{End, ModuleError, Origin, SliceMemory, Trace, Unwinder, VirtAddr, X86_64Regs};

const EH_FRAME: [u8; 68] = [
    0x14, 0, 0, 0, 0, 0, 0, 0, // CIE of 20 bytes
    1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, // code 1, data -8, RA 16, pc-relative
    0x0c, 7, 8, 0x90, 1, 0, 0, // CFA = rsp+8, RA at CFA-8
    0x10, 0, 0, 0, 0x1c, 0, 0, 0, // at 24: FDE of 16 bytes, CIE 28 bytes back
    0xe0, 0x0f, 0, 0, 0x20, 0, 0, 0, // from 0x1000 on, 32 bytes
    0, 0x44, 0x0e, 16, // 4 bytes on: CFA = rsp+16
    0x14, 0, 0, 0, 0x30, 0, 0, 0, // at 44: FDE of 20 bytes, CIE 48 bytes back
    0xcc, 0x1f, 0, 0, 0x20, 0, 0, 0, // from 0x2000 on, 32 bytes
    0, 0x07, 16, 0, 0, 0, 0, 0, // the return address is undefined: no caller
];

const EH_FRAME_HDR: [u8; 28] = [
    1, 0x1b, 3, 0x3b, // version, encodings
    0xfc, 0xfe, 0xff, 0xff, // .eh_frame is 0x104 bytes before this
    2, 0, 0, 0, // entries, relative to 0x100
    0x00, 0x0f, 0, 0, 0x18, 0xff, 0xff, 0xff, // code at 0x1000, FDE at 24
    0x00, 0x1f, 0, 0, 0x2c, 0xff, 0xff, 0xff, // code at 0x2000, FDE at 44
];

fn table(abi: CfiAbi) -> CfiTable<'static> {
    let section = CfiSection::eh_frame(&EH_FRAME, 0);
    CfiTable::with_search_table(section, abi, &EH_FRAME_HDR, 0x100).unwrap().unwrap()
}

#[test]
fn an_object_with_call_frame_information_alone_is_walked_to_the_outermost_frame() {
    let bias = 0x5555_0000_0000_u64;
    let code = bias + 0x1000..bias + 0x3000;
    let mut unwinder = Unwinder::<4>::new();
    unwinder.add_call_frames(code.clone(), table(CfiAbi::X86_64).bias(bias)).unwrap();

    let stack: Vec<u8> = [7, bias + 0x2010].iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut memory = SliceMemory::new(VirtAddr::new(0x7ff0), &stack);
    let regs = X86_64Regs::new(bias + 0x1008, 0x7ff0, 0);
    let mut trace = Trace::<[_; 16]>::new();
    // The second walk has the rows of the first one.
    for _ in 0..2 {
        unwinder.walk(regs, &mut memory, &mut trace);
        let pcs: Vec<u64> = trace.pcs().map(VirtAddr::get).collect();
        assert_eq!(pcs, [bias + 0x1008, bias + 0x2010]);
        assert_eq!(trace.end(), Some(End::Outermost));
        assert!(trace.is_complete());
        let caller = trace.frames().nth(1).unwrap();
        assert_eq!(caller.provenance.origin(), Origin::CallFrames);
    }
    assert!(unwinder.cache_stats().hits > 0);

    assert!(unwinder.remove_module(code.start));
    assert!(!unwinder.remove_module(code.start));
    unwinder.walk(regs, &mut memory, &mut trace);
    assert!(!trace.is_complete());
}

#[test]
fn call_frame_information_of_other_code_is_refused() {
    let mut unwinder = Unwinder::<4>::new();
    let refused = unwinder.add_call_frames(0x1000..0x3000, table(CfiAbi::Ia32));
    assert_eq!(refused, Err(ModuleError::NoTable));
}

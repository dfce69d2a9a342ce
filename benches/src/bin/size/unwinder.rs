//! The library as its README sets it up, with SFrame tables.

use core::hint::black_box;

use unwind::{SliceMemory, Trace, Unwinder, VirtAddr, X86_64Regs};

fn main() {
    let [start, end, addr, pc, sp, fp] = black_box([0; 6]);
    let (section, stack): (&[u8], &[u8]) = black_box((&[], &[]));
    let mut unwinder: Box<Unwinder<'_, 64>> = Box::default();
    let _ = black_box(unwinder.add_module(start..end, section, addr));
    let mut trace = Trace::<[_; 510]>::new();
    let regs = X86_64Regs::new(pc, sp, fp);
    unwinder.walk(regs, &mut SliceMemory::new(VirtAddr::new(sp), stack), &mut trace);
    black_box(&trace);
}

//! The same by framehop: tables `.eh_frame` and `.eh_frame_hdr`, its cache, and
//! what it does without a table.

use core::hint::black_box;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, MustNotAllocateDuringUnwind, Unwinder as _};

fn main() {
    let [start, end, bias, addr, pc, sp, fp] = black_box([0_u64; 7]);
    let (eh_frame, header): (&[u8], &[u8]) = black_box((&[], &[]));
    let mut unwinder = UnwinderX86_64::<&[u8], MustNotAllocateDuringUnwind>::new();
    let sections = ExplicitModuleSectionInfo {
        eh_frame_svma: Some(addr..end),
        eh_frame: Some(eh_frame),
        eh_frame_hdr_svma: Some(addr..end),
        eh_frame_hdr: Some(header),
        ..Default::default()
    };
    unwinder.add_module(Module::new(String::new(), start..end, bias, sections));
    let mut cache = CacheX86_64::<MustNotAllocateDuringUnwind>::new_in();
    let mut read = |addr| black_box(Ok(addr));
    let regs = UnwindRegsX86_64::new(pc, sp, fp);
    let mut frames = unwinder.iter_frames(pc, regs, &mut cache, &mut read);
    while let Ok(Some(frame)) = frames.next() {
        black_box(frame);
    }
}

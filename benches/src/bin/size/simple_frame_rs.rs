//! simple-frame-rs, which has no walk: the row of an address.

use core::hint::black_box;

use simple_frame_rs::SFrameSection;

fn main() {
    let (bytes, addr, pc): (&[u8], u64, u64) = black_box((&[], 0, 0));
    let Ok(section) = SFrameSection::from(bytes, addr) else { return };
    if let Ok(Some(function)) = section.find_fde(pc) {
        let _ = black_box(function.find_fre(&section, pc));
    }
}

//! Walks the stack of a vCPU that stands with 12 frames of the kernel and 20 of user code, as often as is asked for.
//!
//! ```text
//! for walks in 0 1 1001; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/walks $walks 2>&1 | grep Collected
//! done
//! ```
//!
//! The difference of the first two counts is the first walk, that of the others a thousand later ones.

use std::env;
use std::hint::black_box;
use std::sync::Arc;

use demo_vmm::{GuestImage, GuestRam, GuestTables, MadeUpVcpu, ResidentMemory, Vcpu as _};
use unwind_core::Trace;
use unwind_guest::{GuestRows, GuestStack};

fn main() {
    let walks = env::args().nth(1).and_then(|walks| walks.parse().ok());
    let walks: u32 = walks.expect("usage: walks NUMBER");
    let image = Arc::new(GuestImage::new());
    let ram = Arc::new(GuestRam::new(&image, 1));
    let mut vcpu = MadeUpVcpu::new(Arc::clone(&image), Arc::clone(&ram), 0);
    vcpu.go_to(0x1234_5678, 19, Some(10));
    let tables = GuestTables::new(&image);
    let (mut rows, mut stack) = (GuestRows::new(), GuestStack::<126>::new());
    let mut walker = tables.walker(&mut rows);
    let registers = vcpu.registers();
    for _ in 0..walks {
        walker.walk_by_key(black_box(&registers), ResidentMemory(&ram), &tables, &mut stack);
        let frames = [stack.kernel(), stack.user()].map(|part| part.map_or(0, Trace::len));
        assert!(frames == [12, 20] && stack.is_complete(), "{stack:?}");
    }
}

//! Nothing: what the others are compared with.
#![no_std]
#![no_main]

use demo_sizes::{Outside, unknown};
use unwind_core::{Memory, VirtAddr};

#[unsafe(no_mangle)]
extern "C" fn start() -> ! {
    // The host's own code is part of every program.
    let _ = Outside.read(VirtAddr::new(unknown()), &mut [0; 8]);
    loop {
        core::hint::spin_loop();
    }
}

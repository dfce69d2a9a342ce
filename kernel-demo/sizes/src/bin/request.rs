//! A request and a return to user mode.
#![no_std]
#![no_main]

use demo_sizes::{Outside, UNWIND, unknown};
use unwind_core::{ClientId, Memory, TaskState, VirtAddr};

#[unsafe(no_mangle)]
extern "C" fn start() -> ! {
    static TASK: TaskState = TaskState::new();
    let client = ClientId::from_bits(unknown());
    let _ = Outside.read(VirtAddr::new(unknown()), &mut [0; 8]);
    let _ = core::hint::black_box(UNWIND.request(&TASK, client));
    let _ = core::hint::black_box(UNWIND.user_return(&TASK));
    loop {
        core::hint::spin_loop();
    }
}

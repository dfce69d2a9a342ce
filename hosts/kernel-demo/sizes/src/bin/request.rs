//! A request and a return to user mode.
#![no_std]
#![no_main]

#[unsafe(no_mangle)]
extern "C" fn start() -> ! {
    demo_sizes::request();
    demo_sizes::stop()
}

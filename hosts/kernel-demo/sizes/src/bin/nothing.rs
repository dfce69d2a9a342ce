//! Nothing: what the others are compared with.
#![no_std]
#![no_main]

#[unsafe(no_mangle)]
extern "C" fn start() -> ! {
    demo_sizes::host();
    demo_sizes::stop()
}

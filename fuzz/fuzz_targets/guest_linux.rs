#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_libraries::guest_linux(data));

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_files::v8_frames(data));

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_files::python_frames(data));

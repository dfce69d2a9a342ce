//! Any bytes as a recording of perf: the command's reader with its text, its JSON and its
//! merge writes no more than the recording is worth.

/// Bytes of output for each byte of input, and for any input.
const PER_BYTE: usize = 80;
const FIXED: usize = 2 << 20;

pub(crate) fn run(data: &[u8]) {
    let Some(written) = unwind_cli::read_perf_data(data) else { return };
    for len in written {
        assert!(len <= PER_BYTE * data.len() + FIXED, "{written:?} of {}", data.len());
    }
}

//! The length of a core file, the core file, and the file that all its mappings
//! name: stacks as text and as JSON, with memory and output in proportion.

use test_support::CountingAllocator;

use crate::entry_points;

/// What a walk has whatever the input: a map of modules, and room for names.
const OWN_MEMORY: u64 = 4 << 20;
const OWN_OUTPUT: u64 = 2 << 20;

pub(crate) fn run(data: &[u8]) {
    let Some((&[low, high], rest)) = data.split_first_chunk() else { return };
    let split = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    let (core, file) = rest.split_at(split);
    let len = u64::try_from(rest.len()).unwrap();
    let (written, peak) = CountingAllocator::peak_of(|| entry_points::read_core(core, file));
    assert!(peak <= 256 * len + OWN_MEMORY, "{peak} bytes of memory for {len}");
    let written = u64::try_from(written.unwrap_or(0)).unwrap();
    assert!(written <= 256 * len + OWN_OUTPUT, "{written} bytes of output for {len}");
}

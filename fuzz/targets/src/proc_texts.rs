//! The texts of `maps`, `status`, `stat` and `syscall` of a process, with a zero after each.

use test_support::CountingAllocator;

pub(crate) fn run(data: &[u8]) {
    let mut texts = data.split(|&byte| byte == 0);
    let mut next = || texts.next().unwrap_or_default();
    let (maps, status, stat, syscall) = (next(), next(), next(), next());
    let len = u64::try_from(data.len()).unwrap();
    let (names, peak) =
        CountingAllocator::peak_of(|| unwind_cli::read_proc(maps, status, stat, syscall));
    assert!(peak <= 64 * len + (64 << 10), "{peak} bytes of memory for {len}");
    // Each line has its name once; an address may be in the last of several.
    assert!(u64::try_from(names).unwrap() <= len * len + 16, "{names} bytes of names of {len}");
}

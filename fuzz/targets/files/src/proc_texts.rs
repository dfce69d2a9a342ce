//! The texts of `maps`, `status`, `stat` and `syscall` of a process, with a zero after each.

use test_support::CountingAllocator;
use unwind_target::loaded::module::{Modules, Opening};
use unwind_target::loaded::module_error::ModuleError;
use unwind_target::target::status::has_status;
use unwind_target::target::{maps, sleeping};

pub(crate) fn run(data: &[u8]) {
    let mut texts = data.split(|&byte| byte == 0);
    let texts = [(); 4].map(|()| texts.next().unwrap_or_default());
    let len = u64::try_from(data.len()).unwrap();
    let (names, peak) = CountingAllocator::peak_of(|| names_len(texts));
    assert!(peak <= 64 * len + (64 << 10), "{peak} bytes of memory for {len}");
    // Each line has its name once; an address may be in the last of several.
    assert!(u64::try_from(names).unwrap() <= len * len + 16, "{names} bytes of names of {len}");
}

/// How many bytes of names of modules there are.
fn names_len([mappings, status, stat, syscall]: [&[u8]; 4]) -> usize {
    let _ = has_status(status, stat);
    let _ = sleeping::is_place(syscall);
    let mappings = maps::parse(mappings);
    let modules = Modules::load(&mappings, |_| Some(Opening::Now(Err(ModuleError::Memory))));
    let found = mappings.iter().filter_map(|mapping| modules.find(mapping.range.start));
    found.map(|module| module.path.as_os_str().len()).sum()
}

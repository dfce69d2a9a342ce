//! Programs and libraries of user code, found by their headers.

use std::collections::{BTreeMap, BTreeSet};

use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};
use unwind_core::{Memory as _, SliceMemory, VirtAddr};
use unwind_guest::linux::{PROGRAM_PAGES, Program, ProgramSearch};

const AT: u64 = 0x7f00_0000_0000;

/// A file as it is loaded, at `AT`.
fn load(bytes: &[u8]) -> (Vec<u8>, u64) {
    let file = ElfFile64::<object::Endianness>::parse(bytes).unwrap();
    let endian = file.endian();
    let mut memory = Vec::new();
    let mut text = 0;
    for header in file.elf_program_headers() {
        if header.p_type(endian) == object::elf::PT_LOAD {
            let at = usize::try_from(header.p_vaddr(endian)).unwrap();
            let data = header.data(endian, bytes).unwrap();
            memory.resize(memory.len().max(at + data.len()), 0);
            memory[at..at + data.len()].copy_from_slice(data);
            if header.p_flags(endian).0 & 1 != 0 {
                text = AT + header.p_vaddr(endian);
            }
        }
    }
    (memory, text)
}

#[test]
fn the_c_library_is_found_by_its_header_and_named_by_its_symbols() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let Some(path) = maps.split_whitespace().find(|word| word.contains("/libc.so")) else {
        eprintln!("skipped: this test is linked without a C library of its own");
        return;
    };
    let bytes = std::fs::read(path).unwrap();
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let (image, text) = load(&bytes);
    let mut memory = SliceMemory::new(VirtAddr::new(AT), &image);
    let found = Program::find(VirtAddr::new(text + 0x1234), &mut memory).unwrap().unwrap();
    assert_eq!((found.start().get(), found.bias(), found.is_wide()), (AT, AT, true));
    assert_eq!(found.build_id().unwrap().as_bytes(), file.build_id().unwrap().unwrap());
    assert_eq!(found.name(&mut memory).unwrap().as_bytes(), b"libc.so.6");
    let mut header = [0; 1];
    memory.read(VirtAddr::new(found.eh_frame_header().unwrap()), &mut header).unwrap();
    assert_eq!(header, [1], "the version");
    let functions = file.dynamic_symbols().filter(|symbol| {
        symbol.kind() == SymbolKind::Text && !symbol.is_undefined() && symbol.size() > 0
    });
    let mut named = 0;
    for symbol in functions.step_by(7) {
        let at = found.find_at(VirtAddr::new(AT + symbol.address()), &mut memory).unwrap();
        // Others may have the same address.
        assert_eq!(at.start.get(), AT + symbol.address());
        named += 1;
    }
    assert!(named > 100, "{named}");
    // Code right above it, as of a JIT compiler: the pages between have neither a header nor code of it.
    let end = (AT + u64::try_from(image.len()).unwrap()).next_multiple_of(0x1000);
    let above = VirtAddr::new(end + 0x20_1234);
    match Program::search(above, VirtAddr::new(0), &mut memory).unwrap() {
        // Past what is in the file there may be memory of it.
        ProgramSearch::NothingFrom(from) => {
            assert!((end..end + 0x2_0000).contains(&from.get()), "{from}");
        }
        found => panic!("{found:?}"),
    }
}

#[test]
fn symbols_end_where_another_table_begins() {
    let exe = std::fs::read("/proc/self/exe").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = maps.split_whitespace().find(|word| word.contains("/libc.so"));
    let bytes = library.map_or(exe, |path| std::fs::read(path).unwrap());
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let (mut image, text) = load(&bytes);
    let section = |name: &str| file.section_by_name(name).map(|section| section.address());
    let Some((symbols, dynamic)) = section(".dynsym").zip(section(".dynamic")) else {
        eprintln!("skipped: this test is linked without a C library of its own");
        return;
    };
    let functions = file.dynamic_symbols().filter(|symbol| {
        symbol.kind() == SymbolKind::Text && !symbol.is_undefined() && symbol.size() > 0
    });
    let addresses: BTreeMap<_, _> =
        functions.map(|symbol| (symbol.index().0, symbol.address())).collect();
    let kept = *addresses.keys().nth(20).unwrap();
    // As lld has it: versions after the symbols.
    let dynamic = usize::try_from(dynamic).unwrap();
    let versions = 0x6fff_fff0_u64.to_le_bytes();
    let entry = image[dynamic..].chunks_exact_mut(16).find(|entry| entry[..8] == versions);
    let end = symbols + 24 * u64::try_from(kept).unwrap() + 24;
    entry.unwrap()[8..].copy_from_slice(&end.to_le_bytes());
    let mut memory = SliceMemory::new(VirtAddr::new(AT), &image);
    let found = Program::find(VirtAddr::new(text + 0x1234), &mut memory).unwrap().unwrap();
    let first: BTreeSet<_> = addresses.range(..=kept).map(|(_, addr)| *addr).collect();
    for addr in addresses.values() {
        let named = found.find_at(VirtAddr::new(AT + addr), &mut memory);
        let is_it = named.is_some_and(|symbol| symbol.start.get() == AT + addr);
        assert_eq!(is_it, first.contains(addr), "{addr:#x}");
    }
}

#[test]
fn what_is_cut_or_lies_is_no_program_and_no_panic() {
    let exe = std::fs::read("/proc/self/exe").unwrap();
    let (image, text) = load(&exe);
    let pc = VirtAddr::new(text);
    for cut in [4, 64, 100, 0x1000, image.len() / 2] {
        let mut memory = SliceMemory::new(VirtAddr::new(AT), &image[..cut.min(image.len())]);
        let _ = Program::find(pc, &mut memory);
    }
    for at in 0..0x400 {
        let mut changed = image.clone();
        changed.truncate(0x10_0000);
        changed[at] ^= 0xff;
        let mut memory = SliceMemory::new(VirtAddr::new(AT), &changed);
        if let Ok(Some(found)) = Program::find(pc, &mut memory) {
            let _ = (found.name(&mut memory), found.find_at(pc, &mut memory));
        }
    }
}

#[test]
fn the_header_is_looked_for_in_a_bounded_number_of_pages() {
    struct Zeroes(u64);
    impl unwind_core::Memory for Zeroes {
        fn read(&mut self, _: VirtAddr, buf: &mut [u8]) -> Result<(), unwind_core::ReadError> {
            self.0 += 1;
            buf.fill(0);
            Ok(())
        }
    }
    let mut memory = Zeroes(0);
    assert_eq!(Program::find(VirtAddr::new(AT), &mut memory), Ok(None));
    assert_eq!(memory.0, PROGRAM_PAGES);
    // What is known to have none is not looked at again.
    let lowest = AT - (PROGRAM_PAGES - 1) * 0x1000;
    for (floor, from, reads) in [(0, lowest, PROGRAM_PAGES), (AT - 0x2000, AT - 0x2000, 3)] {
        let mut memory = Zeroes(0);
        let found = Program::search(VirtAddr::new(AT), VirtAddr::new(floor), &mut memory);
        assert_eq!(found, Ok(ProgramSearch::NothingFrom(VirtAddr::new(from))));
        assert_eq!(memory.0, reads);
    }
}

//! What is found in the memory of a Linux guest, of images that are laid out here.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod kernel;
#[path = "linux/programs.rs"]
mod programs;
#[path = "linux/unnamed.rs"]
mod unnamed;

use unwind_core::{Memory as _, ReadError, Registers as _, VirtAddr};
use unwind_guest::linux::{GuestLinux, LinuxError, Program, TaskFiles, TaskMemory, cpu_number};
use unwind_guest::paging::{
    Access, AddressSpace, FlatMemory, PagedMemory, PagingMode, PhysAddr, PhysicalMemory,
};
use unwind_guest::{Segment, VcpuRegisters};

use kernel::{
    DATA, END, GDT, Image, LAYOUTS, MAPPED, MODULE_CODE, PAGE_ARRAY, START, STEP, SYMBOLS, symbol,
};

#[test]
fn symbols_of_each_layout_have_their_names_and_addresses() {
    for layout in LAYOUTS {
        let mut image = Image::new(layout);
        let linux = GuestLinux::find(&mut image).unwrap();
        assert_eq!(linux.symbols().len(), SYMBOLS, "{layout:?}");
        for index in 0..SYMBOLS {
            let found = linux.symbols().get(index, &mut image).unwrap().unwrap();
            let (name, addr) = symbol(index, layout);
            assert_eq!(
                (found.name.as_bytes(), found.start.get()),
                (name.as_bytes(), addr),
                "{layout:?} {index}"
            );
            assert_eq!(found.kind, if index == 24 { b't' } else { b'T' });
        }
        assert_eq!(*linux.image(), START..END, "{layout:?}");
        assert_eq!(linux.symbols().get(SYMBOLS, &mut image), Ok(None));
    }
}

#[test]
fn an_address_has_the_first_of_the_last_symbols_before_it() {
    for layout in LAYOUTS {
        let mut image = Image::new(layout);
        let linux = GuestLinux::find(&mut image).unwrap();
        let mut name = |addr: u64| {
            let found = linux.find_at(VirtAddr::new(addr), &mut image).unwrap();
            found.map(|symbol| (symbol.name.as_bytes().to_vec(), symbol.start.get() - START))
        };
        let is = |name: &str, at: u64| Some((name.as_bytes().to_vec(), at));
        assert_eq!(name(START + 7 * STEP), is("function_7", 7 * STEP));
        assert_eq!(name(START + 9 * STEP - 1), is("function_7", 7 * STEP));
        assert_eq!(name(START + 700 * STEP + 3), is("function_700", 700 * STEP));
        assert_eq!(name(START - 1), None);
        assert_eq!(name(MODULE_CODE), None);
    }
}

#[test]
fn the_task_of_a_cpu_and_the_modules_are_found_by_types() {
    for layout in LAYOUTS {
        let mut image = Image::new(layout);
        let linux = GuestLinux::find(&mut image).unwrap();
        let cpu = cpu_number(GDT, &mut image).unwrap();
        assert_eq!(cpu, 1);
        let task = linux.task(cpu, &mut image).unwrap().unwrap();
        assert_eq!((task.comm(), task.tid, task.pid), (&b"worker/1"[..], 42, 43), "{layout:?}");
        let mut modules = linux.modules().unwrap();
        let module = modules.next(&mut image).unwrap().unwrap();
        assert_eq!(module.name(), b"dummy");
        assert_eq!(*module.text(), MODULE_CODE..MODULE_CODE + 0x2000);
        assert!(modules.next(&mut image).unwrap().is_none());
        for (offset, name) in [(0, "up"), (0xff, "up"), (0x100, "go"), (0x1ff, "go")] {
            let addr = VirtAddr::new(MODULE_CODE + offset);
            let found = module.find_at(addr, &mut image).unwrap().unwrap();
            assert_eq!(found.name.as_bytes(), name.as_bytes());
        }
    }
}

#[test]
fn a_page_of_a_file_is_where_the_kernel_keeps_it() {
    for layout in LAYOUTS {
        let mut image = Image::new(layout);
        let linux = GuestLinux::find(&mut image).unwrap();
        let task = linux.task(1, &mut image).unwrap().unwrap();
        let mut page = |number: u64| {
            let addr = VirtAddr::new(MAPPED.wrapping_add(number * 0x1000 + 0x123));
            linux.file_page(&task, addr, &mut image).unwrap().map(|page| page.get() >> 12)
        };
        let is = [(0, 0x42), (66, 0x100), (67, 0x101), (69, 0x103), (70, 0x77)];
        assert_eq!(is.map(|(number, _)| page(number)), is.map(|(_, at)| Some(at)), "{layout:?}");
        // Not in memory, or not yet; not of the mapping; of none.
        assert_eq!([1, 65, 71, 72, 80, u64::MAX >> 12].map(page), [None; 6], "{layout:?}");
        // Pages of another size.
        image.write(kernel::MAPPING + 0x48, &[1 << 22]);
        let addr = VirtAddr::new(MAPPED);
        assert_eq!(linux.file_page(&task, addr, &mut image).unwrap(), None, "{layout:?}");
    }
}

/// A table of pages of the task, at the address that its kernel has for it, that which user code has under KPTI, and one
/// of another task.
const ROOT: u64 = kernel::PAGE_TABLE & 0xffff_ffff;
const OF_USER: u64 = ROOT | 0x1000;
const OTHER: u64 = ROOT + 0x2000;
const IMAGE_AT: u64 = 0x40_0000;

/// The image, and page tables that have it, all of physical memory, and of user code none of the mapping's pages. Under
/// KPTI the second table of the task has user code alone.
fn physical(image: &Image, kpti: bool) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(OTHER + 0x1000).unwrap()];
    let mut put = |at: u64, what: &[u8]| {
        let at = usize::try_from(at).unwrap();
        bytes[at..at + what.len()].copy_from_slice(what);
    };
    let slot = |addr: u64, level: u32| (addr >> (12 + 9 * level) & 0x1ff) * 8;
    // Present, writable, for user code; and large pages.
    let (inner, large) = (7, 0x87);
    let direct = kernel::PAGE_TABLE - ROOT;
    for root in [ROOT, OF_USER, OTHER] {
        let skip = if kpti && root == OF_USER { 3 } else { 0 };
        let tables =
            [(direct, 0x1000_u64), (START, 0x2000), (PAGE_ARRAY, 0x7000), (MAPPED, 0x4000)];
        for (addr, table) in tables.into_iter().skip(skip) {
            put(root + slot(addr, 3), &(table | inner).to_le_bytes());
        }
    }
    for (entry, value) in [
        (0x1000 + slot(direct, 2), large),
        (0x2000 + slot(START, 2), 0x3000 | inner),
        (0x3000 + slot(START, 1), IMAGE_AT | large),
        (0x4000 + slot(MAPPED, 2), 0x5000 | inner),
        (0x5000 + slot(MAPPED, 1), 0x6000 | inner),
        (0x7000, 0x8000 | inner),
        (0x8000, 0x9000 | inner),
        (0x9008, 0xa000 | inner),
    ] {
        put(entry, &value.to_le_bytes());
    }
    put(IMAGE_AT, &image.bytes);
    // The first page of the mapping, and what the kernel keeps of it.
    put(0x4_2123, b"a file");
    put(0xa000 + 0x42 * 64 % 0x1000, &[1 << 3]);
    bytes
}

#[test]
fn pages_of_files_are_those_of_the_task_whose_address_space_it_is() {
    let mut image = Image::new(LAYOUTS[2]);
    let linux = GuestLinux::find(&mut image).unwrap();
    let task = linux.task(1, &mut image).unwrap().unwrap();
    let space = |root: u64| AddressSpace::new(PagingMode::FourLevel, root);
    let read = |root: u64, kpti: bool| {
        let bytes = physical(&image, kpti);
        // What the kernel itself has, as in a thread of its own.
        let of_kernel = space(OTHER).access(Access::Supervisor);
        let files = TaskFiles { kernel: &linux, space: of_kernel, task };
        let paged = PagedMemory::<_, 4>::with_tlb(FlatMemory::new(&bytes), space(root));
        let mut found = [0; 6];
        let addr = VirtAddr::new(MAPPED + 0x123);
        TaskMemory::new(paged, Some(files)).read(addr, &mut found).map(|()| found)
    };
    for kpti in [false, true] {
        assert_eq!(read(ROOT, kpti), Ok(*b"a file"));
        assert_eq!(read(OTHER, kpti), Err(ReadError::NotResident), "between two tasks");
    }
    assert_eq!(read(OF_USER, true), Ok(*b"a file"), "user code's table");
    assert_eq!(read(OF_USER, false), Err(ReadError::NotResident), "that of another task");
}

#[test]
fn a_stack_is_read_by_the_page_tables_of_its_own_task() {
    let mut image = Image::new(LAYOUTS[2]);
    let linux = GuestLinux::find(&mut image).unwrap();
    let task = linux.task(1, &mut image).unwrap().unwrap();
    // As the CPU saves them: rip, cs, rflags, rsp, ss.
    image.write(kernel::STACK_END - 5 * 8, &[0x40_1000, 0x33, 0x202, 0x7fff_0000, 0x2b]);
    let bytes = physical(&image, false);
    let of_kernel = AddressSpace::new(PagingMode::FourLevel, OTHER).access(Access::Supervisor);
    let registers = |bytes: &[u8], cr3: u64, sp: u64, dpl: u8| {
        let ss = Segment { dpl, ..Segment::default() };
        let mut vcpu = VcpuRegisters {
            cr0: 1 << 31 | 1,
            cr3,
            cr4: 1 << 5,
            efer: 0x500,
            ss,
            ..VcpuRegisters::default()
        };
        vcpu.general[7] = sp;
        let mut memory = PagedMemory::<_, 4>::with_tlb(FlatMemory::new(bytes), of_kernel);
        let own = linux.registers_for_stack(&task, &vcpu, &mut memory).unwrap();
        assert_eq!(VcpuRegisters { cr3, ..own }, vcpu);
        own.cr3
    };
    let root = |cr3, sp, dpl| registers(&bytes, cr3, sp, dpl);
    let below = kernel::STACK + 0x1000;
    assert_eq!(root(OTHER, below, 0), ROOT, "the stack is still the former task's");
    assert_eq!(root(OTHER, kernel::STACK - 8, 0), OTHER, "it is the next one's");
    assert_eq!(root(ROOT | 0x18, below, 0), ROOT | 0x18);
    assert_eq!(root(OTHER, below, 3), OTHER, "user code");
    // A task that ends has none, and any page tables.
    image.write(kernel::TASK + 0x38, &[0]);
    let bytes = physical(&image, false);
    let at = IMAGE_AT + (kernel::OWN_PAGE_TABLE - START);
    assert_eq!(registers(&bytes, OTHER, below, 0), at);
    assert_eq!(registers(&bytes, OTHER, kernel::STACK - 8, 0), OTHER);
}

#[test]
fn the_root_of_a_tasks_page_tables_is_that_of_its_address_space() {
    for layout in LAYOUTS {
        let mut image = Image::new(layout);
        let linux = GuestLinux::find(&mut image).unwrap();
        let task = linux.task(1, &mut image).unwrap().unwrap();
        let root = linux.page_table_of(&task, &mut image).unwrap();
        assert_eq!(root, Some(VirtAddr::new(kernel::PAGE_TABLE)), "{layout:?}");
        // A thread of the kernel has none.
        image.write(kernel::TASK + 0x38, &[0]);
        assert_eq!(linux.page_table_of(&task, &mut image).unwrap(), None, "{layout:?}");
    }
}

#[test]
fn the_registers_of_user_code_are_at_the_end_of_the_stack_that_is_in_use() {
    let mut image = Image::new(LAYOUTS[0]);
    let linux = GuestLinux::find(&mut image).unwrap();
    let task = linux.task(1, &mut image).unwrap().unwrap();
    let find = |image: &mut Image, sp: u64| {
        let saved = linux.user_registers(&task, VirtAddr::new(sp), image).unwrap();
        saved.map(|saved| (saved.addr().get(), saved.read(image).unwrap().x86_64.pc()))
    };
    let below = kernel::STACK + 0x1000;
    assert_eq!(find(&mut image, below), None, "there are none");
    // As the CPU saves them: rip, cs, rflags, rsp, ss.
    for padding in [0, 16] {
        let saved = kernel::STACK_END - padding - 21 * 8;
        image.write(saved, &[0; 23]);
        image.write(saved + 16 * 8, &[0x40_1000, 0x33, 0x202, 0x7fff_0000, 0x2b]);
        assert_eq!(find(&mut image, below), Some((saved, 0x40_1000)), "{padding}");
        assert_eq!(find(&mut image, saved - 8), Some((saved, 0x40_1000)));
        // On another stack, as at an entry that has not come to this one, they may be those of an earlier entry.
        assert_eq!([saved, kernel::STACK - 8, 0].map(|sp| find(&mut image, sp)), [None; 3]);
        for (word, value) in [(17, 0x10), (17, 0x3b), (18, 0), (20, 0x18)] {
            let mut bytes = [[0; 8]; 1];
            image.read(VirtAddr::new(saved + word * 8), bytes.as_flattened_mut()).unwrap();
            image.write(saved + word * 8, &[value]);
            assert_eq!(find(&mut image, below), None, "{word}");
            image.write(saved + word * 8, &bytes.map(u64::from_le_bytes));
        }
        image.write(saved, &[0; 21]);
    }
    let is_stack = |image: &mut Image, sp| linux.is_stack_of(&task, VirtAddr::new(sp), image);
    assert_eq!(is_stack(&mut image, below), Ok(false));
    // A thread of the kernel has none.
    image.write(kernel::STACK_END - 5 * 8, &[0x40_1000, 0x33, 0x202, 0x7fff_0000, 0x2b]);
    assert!(find(&mut image, below).is_some());
    image.write(kernel::TASK + 0x38, &[0]);
    assert_eq!(find(&mut image, below), None);
    // But a task that ends, which has no memory any more, has its stack.
    assert_eq!(is_stack(&mut image, below), Ok(true));
    assert_eq!(is_stack(&mut image, kernel::STACK - 8), Ok(false));
}

#[test]
fn a_list_of_modules_that_does_not_end_does() {
    let mut image = Image::new(LAYOUTS[0]);
    let linux = GuestLinux::find(&mut image).unwrap();
    let list = kernel::MODULE + 8;
    image.write(list, &[list]);
    let mut modules = linux.modules().unwrap();
    let mut count = 0;
    while modules.next(&mut image).unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, unwind_guest::linux::MODULES_LIMIT);
}

#[test]
fn a_module_that_cannot_be_read_leaves_the_others() {
    let mut image = Image::new(LAYOUTS[0]);
    let linux = GuestLinux::find(&mut image).unwrap();
    let told = |image: &mut Image| {
        let mut modules = linux.modules().unwrap();
        let (mut found, mut failed) = (0, 0);
        while found + failed < 2000 {
            match modules.next(image) {
                Ok(Some(_)) => found += 1,
                Ok(None) => break,
                Err(_) => failed += 1,
            }
        }
        (found, failed)
    };
    // A module before it whose symbols are nowhere: all else of it is zero.
    let (list, other) = (kernel::MODULE + 8, kernel::DATA + 0x1500);
    image.write(other, &[0; 24]);
    image.write(other + 8, &[list]);
    image.write(kernel::MODULES, &[other + 8]);
    assert_eq!(told(&mut image), (1, 1));
    // It leads nowhere.
    image.write(other + 8, &[0x10]);
    assert_eq!(told(&mut image), (0, 3));
}

#[test]
fn a_kernel_is_told_from_none_and_from_one_without_symbols() {
    let mut none = Image { bytes: Vec::new(), reads: 0 };
    assert_eq!(GuestLinux::find(&mut none).err(), Some(LinuxError::NoKernel));
    assert!(none.reads <= 512);
    let mut empty = Image { bytes: vec![0; 1 << 20], reads: 0 };
    assert_eq!(GuestLinux::find(&mut empty).err(), Some(LinuxError::NoSymbols));
}

/// How many reads a search may take of these images: each page once, and what is read around what has the shape of a
/// table, a few kilobytes at a time.
const READS: usize = 4_000_000;

#[test]
fn an_image_that_lies_ends_the_search_in_bounded_reads() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        usize::try_from(random >> 40).unwrap()
    };
    for round in 0..60 {
        let mut image = Image::new(LAYOUTS[round % LAYOUTS.len()]);
        let len = image.bytes.len();
        for _ in 0..1 << (round % 8) {
            let at = next() % len;
            image.bytes[at] = u8::try_from(next() & 0xff).unwrap();
        }
        if round % 3 == 0 {
            image.bytes.truncate(next() % len);
        }
        image.reads = 0;
        if let Ok(linux) = GuestLinux::find(&mut image) {
            for index in (0..linux.symbols().len()).step_by(97) {
                let _ = linux.symbols().get(index, &mut image);
            }
            let _ = linux.find_at(VirtAddr::new(DATA), &mut image);
            let _ = linux.task(1, &mut image);
        }
        assert!(image.reads < READS, "{}", image.reads);
    }
}

/// Physical memory that counts reads.
struct Counted<'m>(&'m [u8], usize);

impl PhysicalMemory for Counted<'_> {
    fn read(&mut self, addr: PhysAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.1 += 1;
        FlatMemory::new(self.0).read(addr, buf)
    }
}

#[test]
fn page_tables_that_map_themselves_end_the_search_in_bounded_reads() {
    // Each entry leads to the table that it is in, so each address has that page.
    let mut ram = vec![0; 0x1000];
    ram.extend(0x1007_u64.to_le_bytes().repeat(512));
    for mode in [PagingMode::FourLevel, PagingMode::FiveLevel] {
        let space = AddressSpace::new(mode, 0x1000);
        let mut memory = PagedMemory::<_, 16>::with_tlb(Counted(&ram, 0), space);
        assert_eq!(GuestLinux::find(&mut memory).err(), Some(LinuxError::NoSymbols), "{mode:?}");
        let reads = memory.physical().1;
        assert!((1 << 15..READS).contains(&reads), "{reads}");
        let found = Program::find(VirtAddr::new(0x7f00_0000_0000), &mut memory);
        assert_eq!(found, Ok(None), "{mode:?}");
        assert!(memory.physical().1 - reads < READS);
    }
}

#[test]
fn names_that_lie_about_their_length_are_no_symbols() {
    let mut image = Image::new(LAYOUTS[0]);
    let linux = GuestLinux::find(&mut image).unwrap();
    let name = b"T\x011000";
    let at = image.bytes.windows(name.len()).position(|part| part == name).unwrap();
    assert!(linux.symbols().get(1000, &mut image).unwrap().is_some());
    // Of two bytes, 600: no name of Linux is that long.
    image.bytes[at - 1..=at].copy_from_slice(&[600_u16.to_le_bytes()[0] & 0x7f | 0x80, 4]);
    assert_eq!(linux.symbols().get(1000, &mut image), Err(LinuxError::NoSymbols));
    // One that takes the place of five others of six bytes, so that the last would be after the end.
    image.bytes[at - 1..=at].copy_from_slice(&[6 + 5 * 7, b'T']);
    assert_eq!(GuestLinux::find(&mut image).err(), Some(LinuxError::NoSymbols));
}

#[test]
fn words_that_descend_everywhere_are_looked_at_in_bounded_reads() {
    let mut image = Image::new(LAYOUTS[0]);
    let tables = 0x2_0000;
    let zero = b"0\x001\x002\x003\x004\0";
    let tokens = image.bytes.windows(zero.len()).position(|part| part == zero).unwrap();
    // Chains of 1,000 words up to the table of tokens.
    for (number, word) in image.bytes[tables..tokens - 64].chunks_exact_mut(4).enumerate() {
        let number = u32::try_from(number).unwrap();
        word.copy_from_slice(&(number % 1000).to_le_bytes());
    }
    assert_eq!(GuestLinux::find(&mut image).err(), Some(LinuxError::NoSymbols));
    assert!(image.reads < READS, "{}", image.reads);
}

//! The image of a kernel that a test lays out, with symbols and types as Linux has them.

use unwind_core::{Memory, ReadError, SliceMemory, VirtAddr};

pub(crate) const START: u64 = 0xffff_ffff_8100_0000;
/// Where the tables and the data begin; what is before is code.
const TABLES: usize = 0x2_0000;
/// Each symbol has that many bytes of code.
pub(crate) const STEP: u64 = 16;
pub(crate) const SYMBOLS: u32 = 16 * 256 + 100;
/// The places of what symbols lead to.
pub(crate) const DATA: u64 = START + 0x6_0000;
pub(crate) const AREAS: u64 = DATA;
pub(crate) const AREA: u64 = DATA + 0x100;
pub(crate) const CURRENT: u64 = 0x40;
const PER_CPU: u64 = START + 4192 * STEP;
pub(crate) const TASK: u64 = DATA + 0x200;
pub(crate) const MODULES: u64 = DATA + 0x300;
pub(crate) const MODULE: u64 = DATA + 0x400;
pub(crate) const MODULE_SYMBOLS: u64 = DATA + 0x600;
pub(crate) const MODULE_CODE: u64 = 0xffff_ffff_c000_0000;
pub(crate) const GDT: u64 = DATA + 0x800;
/// The address space of the task, the tree of its mappings, a mapping, its file, and the file's pages.
const SPACE: u64 = DATA + 0x900;
/// Where the kernel has a table of its own.
pub(crate) const OWN_PAGE_TABLE: u64 = DATA + 0x1000;
pub(crate) const PAGE_TABLE: u64 = 0xffff_8880_0123_4000;
/// The stack that the kernel has for the task, of which the image has the end.
pub(crate) const STACK: u64 = STACK_END - 0x4000;
pub(crate) const STACK_END: u64 = DATA + 0x1f00;
/// The code of exceptions, of a system call, and of what tells the number of a page.
pub(crate) const EXCEPTIONS: u64 = START + 20 * STEP;
pub(crate) const GETPID: u64 = START + 22 * STEP;
pub(crate) const SWITCH: u64 = START + 32 * STEP;
pub(crate) const TO_PAGE: u64 = START + 30 * STEP;
const TREE: u64 = DATA + 0xa00;
pub(crate) const MAPPING: u64 = DATA + 0xb00;
const FILE: u64 = DATA + 0xb80;
const PAGES_OF_FILE: u64 = DATA + 0xba0;
const NODES: [u64; 2] = [DATA + 0xc00, DATA + 0x1000];
/// The variable that has where the array of pages begins, and that.
pub(crate) const PAGES: u64 = START + 4191 * STEP;
pub(crate) const PAGE_ARRAY: u64 = 0xffff_ea00_0000_0000;
/// A file from its third page on, 80 pages: there are pages 2, 68 to 71 in one piece, and 72.
pub(crate) const MAPPED: u64 = 0x7f00_0000_0000;
pub(crate) const END: u64 = DATA + 0x2000;

/// The header of the ORC tables of Linux 6.4.
pub(crate) const HEADER: [u8; 20] =
    *b"\xfe\x5d\x32\xbf\x58\x1b\xd6\x3b\x2c\xa9\xa5\xc6\x5b\xa5\xa6\x25\xea\xb3\xfe\x24";

/// The layouts of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Addresses before the names, with variables of each CPU as values.
    Before,
    /// The same with the order of names before the tokens.
    BeforeWithOrder,
    /// Addresses after the tokens.
    After,
    /// The same without values.
    AfterAboveBase,
    /// Addresses above their own place.
    Place,
}

pub(crate) const LAYOUTS: [Layout; 5] =
    [Layout::Before, Layout::BeforeWithOrder, Layout::After, Layout::AfterAboveBase, Layout::Place];

/// The name of a symbol, and its address.
pub(crate) fn symbol(index: u32, layout: Layout) -> (String, u64) {
    let has_values = !matches!(layout, Layout::AfterAboveBase | Layout::Place);
    let from_end = SYMBOLS - index;
    let (name, addr) = match (index, from_end) {
        (0, _) if has_values => ("current_task", CURRENT),
        (_, 1) => ("_end", END),
        (_, 2) => ("modules", MODULES),
        (_, 5) => ("vmemmap_base", PAGES),
        (_, 6) => ("init_top_pgt", OWN_PAGE_TABLE),
        (_, 3) => ("__per_cpu_offset", AREAS),
        (_, 4) if !has_values => ("current_task", PER_CPU),
        (1, _) => ("_text", START),
        (20, _) => ("error_entry", EXCEPTIONS),
        (22, _) => ("__x64_sys_getpid", GETPID),
        (30, _) => ("vmalloc_to_pfn", TO_PAGE),
        (32, _) => ("__schedule", SWITCH),
        // Of a file alone, as an assembler has labels.
        (24, _) => ("_end", START + 24 * STEP),
        // Two that begin at the same place.
        (7 | 8, _) => return (format!("function_{index}"), START + 7 * STEP),
        _ => return (format!("function_{index}"), START + u64::from(index) * STEP),
    };
    (name.into(), addr)
}

/// Memory that counts reads.
pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
    pub(crate) reads: usize,
}

impl Memory for Image {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads += 1;
        // What it keeps of pages of files: which these are.
        if let Some(offset) = addr.get().checked_sub(PAGE_ARRAY).filter(|offset| *offset < 1 << 20)
        {
            let (page, at) = (offset / 64, offset % 64);
            // The last one is being read from its disk.
            let there = 1 << 3;
            let known = [(0x42, 2, there), (0x100, 68, there), (0x77, 72, there), (0x88, 73, 0)];
            let known = known.into_iter().find(|(number, ..)| *number == page);
            let (_, index, flags) = known.ok_or(ReadError::NotResident)?;
            let word: u64 = match at {
                0 => flags,
                32 => index,
                _ => return Err(ReadError::NotResident),
            };
            buf.copy_from_slice(&word.to_le_bytes());
            return Ok(());
        }
        SliceMemory::new(VirtAddr::new(START), &self.bytes).read(addr, buf)
    }
}

impl Image {
    pub(crate) fn new(layout: Layout) -> Self {
        let mut image = Self { bytes: vec![0; TABLES], reads: 0 };
        image.add_symbols(layout);
        // Types of a program that the kernel brings: an integer.
        image.align(4);
        let strings = *b"\0int\0\0\0\0";
        for word in [0x0001_eb9f, 24, 0, 16, 16, 8, 1, 1 << 24, 4, 32_u32] {
            image.bytes.extend(word.to_le_bytes());
        }
        image.bytes.extend(strings);
        image.add_btf(layout);
        let data = usize::try_from(DATA - START).unwrap();
        assert!(image.bytes.len() < data);
        image.bytes.resize(data + 0x2000, 0);
        image.add_data(layout);
        image.add_file(layout);
        image
    }

    fn place(&self) -> u64 {
        START + u64::try_from(self.bytes.len()).unwrap()
    }

    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    fn add_symbols(&mut self, layout: Layout) {
        let alignment = if layout == Layout::Place { 4 } else { 8 };
        if matches!(layout, Layout::Before | Layout::BeforeWithOrder) {
            self.add_offsets(layout);
        }
        self.bytes.extend(SYMBOLS.to_le_bytes());
        self.align(alignment);
        let names = self.bytes.len();
        let mut markers = Vec::new();
        for index in 0..SYMBOLS {
            if index % 256 == 0 {
                markers.push(u32::try_from(self.bytes.len() - names).unwrap());
            }
            let (name, _) = symbol(index, layout);
            // The token 1 is a word of its own, the others are letters.
            let kind = if index == 24 { 't' } else { 'T' };
            let name = format!("{kind}{}", name.replace("function_", "\x01"));
            self.bytes.push(name.len().try_into().unwrap());
            self.bytes.extend(name.as_bytes());
        }
        self.align(alignment);
        self.bytes.extend(markers.iter().flat_map(|marker| marker.to_le_bytes()));
        self.align(alignment);
        if layout == Layout::BeforeWithOrder {
            self.bytes.extend((0..SYMBOLS).flat_map(|index| {
                let [a, b, c, _] = index.reverse_bits().rotate_left(13).to_le_bytes();
                [a | 1, b, c | 1]
            }));
            self.align(alignment);
        }
        let mut starts = Vec::new();
        let tokens = self.bytes.len();
        for token in 0..=255_u8 {
            starts.push(u16::try_from(self.bytes.len() - tokens).unwrap());
            match token {
                0 => self.bytes.extend(b"unused"),
                1 => self.bytes.extend(b"function_"),
                letter => self.bytes.push(letter),
            }
            self.bytes.push(0);
        }
        self.align(alignment);
        self.bytes.extend(starts.iter().flat_map(|start| start.to_le_bytes()));
        if !matches!(layout, Layout::Before | Layout::BeforeWithOrder) {
            self.add_offsets(layout);
        }
    }

    fn add_offsets(&mut self, layout: Layout) {
        self.align(if layout == Layout::Place { 4 } else { 8 });
        for index in 0..SYMBOLS {
            let (_, addr) = symbol(index, layout);
            let offset = match layout {
                Layout::Place => addr.wrapping_sub(self.place()),
                Layout::AfterAboveBase => addr - START,
                _ if addr < START => addr,
                _ => (START - 1).wrapping_sub(addr),
            };
            self.bytes.extend(&offset.to_le_bytes()[..4]);
        }
        if layout != Layout::Place {
            self.align(8);
            self.bytes.extend(START.to_le_bytes());
        }
    }

    fn add_btf(&mut self, layout: Layout) {
        let (tree, node) = match layout {
            Layout::Before => ("mm_rb", "vm_rb"),
            _ => ("mm_mt", "vm_next"),
        };
        let mut strings = vec![0];
        let mut types: Vec<u32> = Vec::new();
        let mut name = |text: &str| {
            if text.is_empty() {
                return 0;
            }
            let at = strings.len();
            strings.extend(text.as_bytes());
            strings.push(0);
            u32::try_from(at).unwrap()
        };
        // An integer, and a function with two parameters, which are passed over.
        types.extend([name("int"), 1 << 24, 4, 32]);
        types.extend([0, 13 << 24 | 2, 1, 0, 1, 0, 1]);
        types.extend([name("pageflags"), 6 << 24 | 2, 4]);
        types.extend([name("PG_locked"), 0, name("PG_uptodate"), 3]);
        // No member of a structure has the name of another one here.
        let of_bits = ("flags", 2 << 24 | 7);
        let structures: [(&str, &[(&str, u32)]); 13] = [
            (
                "task_struct",
                &[
                    of_bits,
                    ("comm", 0x20 * 8),
                    ("pid", 0x10 * 8),
                    ("tgid", 0x14 * 8),
                    ("mm", 0x38 * 8),
                    ("stack", 0x48 * 8),
                ],
            ),
            (
                "module",
                &[
                    ("list", 8 * 8),
                    ("name", 24 * 8),
                    ("mem", 0x60 * 8),
                    ("kallsyms", 0x80 * 8),
                    ("arch", 0x90 * 8),
                ],
            ),
            ("module_memory", &[("base", 0), ("size", 64)]),
            ("mod_kallsyms", &[("symtab", 0), ("num_symtab", 64), ("strtab", 128)]),
            ("mod_arch_specific", &[("num_orcs", 0), ("orc_unwind_ip", 64), ("orc_unwind", 128)]),
            // What has one member alone is a type of an entry.
            ("", &[("pgd", 0)]),
            ("", &[(tree, 0x40 * 8), ("pgd", 0x50 * 8)]),
            ("maple_tree", &[("ma_root", 8 * 8)]),
            (
                "vm_area_struct",
                &[
                    (node, 0x18 * 8),
                    ("vm_pgoff", 0x30 * 8),
                    ("vm_file", 0x38 * 8),
                    ("vm_page_prot", 0x40 * 8),
                ],
            ),
            ("file", &[("f_mapping", 0x10 * 8)]),
            ("address_space", &[("i_pages", 8 * 8)]),
            ("xarray", &[("xa_head", 8 * 8)]),
            ("xa_node", &[("shift", 0), ("slots", 0x28 * 8)]),
        ];
        for (structure, members) in structures {
            let count = u32::try_from(members.len()).unwrap();
            types.extend([name(structure), 1 << 31 | 4 << 24 | count, 64]);
            for (member, bits) in members {
                types.extend([name(member), 1, *bits]);
            }
        }
        let type_len = u32::try_from(types.len() * 4).unwrap();
        let string_len = u32::try_from(strings.len()).unwrap();
        for word in [0x0001_eb9f, 24, 0, type_len, type_len, string_len].iter().chain(&types) {
            self.bytes.extend(word.to_le_bytes());
        }
        self.bytes.extend(strings);
    }

    fn add_data(&mut self, layout: Layout) {
        self.write(AREAS, &[0, AREA]);
        let current = match layout {
            Layout::AfterAboveBase | Layout::Place => {
                // The variable has an address in the image, from which the areas are counted.
                self.write(AREAS, &[0, (AREA + CURRENT).wrapping_sub(PER_CPU)]);
                AREA + CURRENT
            }
            _ => AREA + CURRENT,
        };
        self.write(current, &[TASK]);
        self.write(TASK + 0x10, &[43 << 32 | 42, 0, u64::from_le_bytes(*b"worker/1"), 0]);
        // A segment whose limit is the number of the CPU.
        self.write(GDT + 15 * 8, &[0x00cf_f700_0000_f001]);
        let list = MODULE + 8;
        self.write(MODULES, &[list, list]);
        self.write(list, &[MODULES, MODULES, u64::from_le_bytes(*b"dummy\0\0\0")]);
        self.write(MODULE + 0x60, &[MODULE_CODE, 0x2000]);
        self.write(MODULE + 0x80, &[MODULE_SYMBOLS, 0, 3, MODULE_SYMBOLS, MODULE_SYMBOLS + 8]);
        // Their number, their table, their names; then three symbols: name, section, value, size.
        let table = MODULE_SYMBOLS + 0x40;
        let names = table + 0x80;
        self.write(MODULE_SYMBOLS, &[table, 4, names]);
        let symbol = |name: u64, section: u64, value: u64| [name | section << 48, value, 0];
        let symbols = [
            symbol(0, 0, 0),
            symbol(1, 1, MODULE_CODE),
            symbol(4, 1, MODULE_CODE + 0x100),
            symbol(7, 0, MODULE_CODE + 0x180),
        ];
        self.write(table, symbols.as_flattened());
        self.write(names, &[u64::from_le_bytes(*b"\0up\0go\0x")]);
    }

    fn add_file(&mut self, layout: Layout) {
        self.write(PAGES, &[PAGE_ARRAY]);
        self.write(TASK + 0x38, &[SPACE]);
        self.write(SPACE + 0x50, &[PAGE_TABLE]);
        self.write(TASK + 0x48, &[STACK]);
        let end = MAPPED + 80 * 0x1000;
        if layout == Layout::Before {
            // A mapping above it, whose left one has it on the right.
            self.write(SPACE + 0x40, &[TREE + 0x18]);
            self.write(TREE, &[end, end + 0x1000, 0, 1, 0, TREE + 0x58]);
            self.write(TREE + 0x40, &[0x1000, 0x2000, 0, 1, MAPPING + 0x18, 0]);
        } else {
            // A leaf of which the second of two ranges is the mapping.
            self.write(SPACE + 0x48, &[TREE | 1 << 3 | 2]);
            self.write(TREE, &[0, MAPPED - 1, end - 1, 0]);
            self.write(TREE + 16 * 8, &[0, MAPPING]);
        }
        self.write(MAPPING, &[MAPPED, end]);
        self.write(MAPPING + 0x30, &[2, FILE]);
        self.write(FILE + 0x10, &[PAGES_OF_FILE]);
        let [upper, lower] = NODES;
        self.write(PAGES_OF_FILE + 0x10, &[upper | 2]);
        let page = |number: u64| PAGE_ARRAY + number * 64;
        self.write(upper, &[6]);
        self.write(upper + 0x28, &[lower | 2, (lower + 0x400) | 2]);
        // Two nodes below, of which each has its first pages.
        self.write(lower + 0x28 + 2 * 8, &[page(0x42)]);
        if layout == Layout::Before {
            // The next page of a large one: that stands here, too.
            self.write(lower + 0x28 + 3 * 8, &[page(0x42)]);
        }
        let first = 4 << 2 | 2;
        self.write(
            lower + 0x428 + 4 * 8,
            &[page(0x100), first, first, first, page(0x77), page(0x88)],
        );
    }

    /// Adds an ORC table that no symbol names, of code every 8 bytes, with 1,200 entries: ordinary frames, and code that
    /// saves all registers.
    pub(crate) fn add_orc(&mut self, header: &[u8], [call, saves]: [[u8; 6]; 2]) {
        self.bytes.extend(header);
        let place = self.place();
        for index in 0..1200 {
            let offset = (START + index * 8).wrapping_sub(place + index * 4).cast_signed();
            self.bytes.extend(i32::try_from(offset).unwrap().to_le_bytes());
        }
        self.bytes.extend((0..1200).flat_map(|index| if index % 7 == 3 { saves } else { call }));
        // Memory is of pages.
        self.align(0x1000);
    }

    pub(crate) fn write(&mut self, addr: u64, words: &[u64]) {
        let at = usize::try_from(addr - START).unwrap();
        for (place, word) in self.bytes[at..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
}

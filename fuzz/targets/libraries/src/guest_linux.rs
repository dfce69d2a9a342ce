//! The image of a guest's kernel, of which any bytes are others, and a program of any bytes.

use std::sync::OnceLock;

use arbitrary::{Arbitrary, Unstructured};
use unwind_core::{SliceMemory, VirtAddr};
use unwind_guest::linux::{GuestLinux, MODULES_LIMIT, Program, cpu_number};

use crate::guest_kernel::{AREA, GDT, HEADER, Image, LAYOUTS, MAPPED, MODULE_CODE, START};

/// What is changed in an image.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    layout: u8,
    /// How many bytes of it there are not.
    cut: u32,
    /// Places in the tables, counted from their begin, and what is there instead.
    words: Vec<(u32, u32)>,
    places: [u32; 4],
    program: &'a [u8],
}

/// Where the tables of the image begin.
const TABLES: usize = 0x2_0000;
/// Reads of one search: of all pages, and around what has the shape of a table.
const READS: usize = 4_000_000;

/// Searches end, whatever is there, and what is found is in the image.
pub(crate) fn run(data: &[u8]) {
    static IMAGES: OnceLock<[Vec<u8>; 5]> = OnceLock::new();
    const ENTRIES: [[u8; 6]; 2] = [[8, 0, 0, 0, 5, 2], [0, 0, 0, 0, 5, 11]];
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let images = IMAGES.get_or_init(|| {
        LAYOUTS.map(|layout| {
            let mut image = Image::new(layout);
            image.add_orc(&HEADER, ENTRIES);
            image.bytes
        })
    });
    let mut bytes = images[usize::from(input.layout) % 5].clone();
    let len = bytes.len();
    for (place, word) in &input.words {
        let at = TABLES + usize::try_from(*place).unwrap() % (len - TABLES - 4);
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len - usize::try_from(input.cut).unwrap() % len);
    let mut image = Image { bytes, reads: 0 };
    if let Ok(linux) = GuestLinux::find(&mut image) {
        assert!(linux.image().start >= START);
        look_around(&linux, &input, &mut image);
    }
    assert!(image.reads < READS, "{}", image.reads);

    let mut program = SliceMemory::new(VirtAddr::new(0x40_0000), input.program);
    for place in input.places {
        let pc = VirtAddr::new(0x40_0000 + u64::from(place) % 0x1_0000);
        if let Ok(Some(found)) = Program::find(pc, &mut program) {
            assert!(found.text().contains(&pc.get()));
            let symbol = found.find_at(pc, &mut program);
            assert!(symbol.is_none_or(|symbol| !symbol.name.as_bytes().is_empty()));
            let _ = found.name(&mut program);
        }
    }
}

fn look_around(linux: &GuestLinux, input: &Input<'_>, image: &mut Image) {
    let symbols = linux.symbols();
    for place in input.places {
        let index = place % symbols.len().max(1);
        let _ = symbols.get(index, image);
        let addr = VirtAddr::new(START + u64::from(place) % 0x8_0000);
        if let Ok(Some(symbol)) = linux.find_at(addr, image) {
            // Addresses that do not ascend lead to another one.
            let _ = (symbol.name, symbol.kind);
        }
        let _ = linux.orc_table().map(|table| table.find(addr, image));
        let _ = (linux.rows(&[]), linux.is_switching_at(addr));
    }
    let cpu = cpu_number(GDT, image).unwrap_or(0);
    let task = linux.task(cpu, image);
    if let Ok(Some(task)) = task.or_else(|_| linux.task_of_area(VirtAddr::new(AREA), image)) {
        assert!(task.comm().len() <= 16);
        let _ = linux.file_page(&task, VirtAddr::new(MAPPED + u64::from(input.places[0])), image);
    }
    let Some(mut modules) = linux.modules() else { return };
    let mut count = 0;
    while let Ok(Some(module)) = modules.next(image) {
        count += 1;
        if count < 4 {
            let _ = module.find_at(VirtAddr::new(MODULE_CODE + 0x80), image);
        }
    }
    assert!(count <= MODULES_LIMIT);
}

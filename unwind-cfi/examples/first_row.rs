//! Finds the last row of the longest FDE of a file, from nothing: `first_row FILE`.
//!
//! ```text
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*first_row::find*' \
//!     target/release/examples/first_row FILE
//! ```
//!
//! counts the instructions of that alone: the search table is opened and searched, a CIE is read, and
//! all instructions of the FDE are run.
#![allow(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "no library")]

use object::{Architecture, Object as _, ObjectSection as _};
use unwind_cfi::{CfiAbi, CfiSection, CfiTable, Entries};
use unwind_core::Row;

fn main() {
    let path = std::env::args_os().nth(1).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let abi = match file.architecture() {
        Architecture::X86_64 => CfiAbi::X86_64,
        Architecture::I386 => CfiAbi::Ia32,
        _ => return,
    };
    let section = |name: &str| {
        let section = file.section_by_name(name).unwrap();
        (section.uncompressed_data().unwrap(), section.address())
    };
    let ((frame, frame_addr), (header, header_addr)) =
        (section(".eh_frame"), section(".eh_frame_hdr"));
    let cfi = CfiSection::eh_frame(&frame, frame_addr);
    let mut entries = Entries::new(cfi, abi);
    let (mut longest, mut pc) = (0, 0);
    while let Some(fde) = entries.next_fde().unwrap() {
        let len = entries.position() - fde.at;
        if len > longest {
            let body = entries.body(&fde, &entries.cie(fde.cie).unwrap()).unwrap();
            (longest, pc) = (len, body.start + body.len - 1);
        }
    }
    let row = find(cfi, abi, &header, header_addr, pc);
    println!("{}: {longest} bytes, at {pc:#x}: {row:x?}", path.display());
}

#[inline(never)]
fn find(cfi: CfiSection<'_>, abi: CfiAbi, header: &[u8], addr: u64, pc: u64) -> Option<Row> {
    let table = CfiTable::with_search_table(cfi, abi, header, addr).unwrap().unwrap();
    table.find_row(pc).unwrap()
}

//! Finds the last row of the longest FDE of a file, from nothing: `first_row FILE`.
//!
//! ```text
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*first_row::find*' \
//!     target/release/examples/first_row FILE
//! ```
//!
//! counts the instructions of that alone: the search table is opened and searched, a CIE is read, and
//! all instructions of the FDE are run.
#![allow(clippy::arithmetic_side_effects, reason = "no library")]

use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::{env, fs};

use object::{Architecture, Object as _, ObjectSection as _};
use unwind_cfi::{CfiAbi, CfiSection, CfiTable, Entries};
use unwind_core::Row;

fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", first_row(env::args_os().nth(1))?);
    Ok(())
}

pub(crate) fn first_row(path: Option<OsString>) -> Result<String, Box<dyn Error>> {
    let path = path.ok_or("which file? first_row FILE")?;
    let path = Path::new(&path);
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let file = object::File::parse(&*bytes)?;
    let abi = match file.architecture() {
        Architecture::X86_64 => CfiAbi::X86_64,
        Architecture::I386 => CfiAbi::Ia32,
        _ => return Err("only files for x86 have rows here".into()),
    };
    let section = |name: &str| -> Result<_, Box<dyn Error>> {
        let section = file.section_by_name(name).ok_or_else(|| format!("it has no {name}"))?;
        Ok((section.uncompressed_data()?, section.address()))
    };
    let ((frame, frame_addr), (header, header_addr)) =
        (section(".eh_frame")?, section(".eh_frame_hdr")?);
    let cfi = CfiSection::eh_frame(&frame, frame_addr);
    let mut entries = Entries::new(cfi, abi);
    let (mut longest, mut pc) = (0, 0);
    while let Some(fde) = entries.next_fde().map_err(|(_, error)| error)? {
        let len = entries.position() - fde.at;
        if len > longest {
            let body = entries.body(&fde, &entries.cie(fde.cie)?)?;
            (longest, pc) = (len, body.start + body.len - 1);
        }
    }
    let row = find(cfi, abi, &header, header_addr, pc)?;
    Ok(format!("{}: {longest} bytes, at {pc:#x}: {row:x?}", path.display()))
}

#[inline(never)]
fn find(
    cfi: CfiSection<'_>,
    abi: CfiAbi,
    header: &[u8],
    addr: u64,
    pc: u64,
) -> Result<Option<Row>, Box<dyn Error>> {
    let table = CfiTable::with_search_table(cfi, abi, header, addr)?;
    Ok(table.ok_or("its .eh_frame_hdr has no table")?.find_row(pc)?)
}

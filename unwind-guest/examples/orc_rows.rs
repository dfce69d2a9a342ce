//! Prints the ORC entries of a `vmlinux`, a line each: the address, the kind, and the rules of the stack and frame pointer.
//! For comparison with other readers, see `benches/figures/orc_by_drgn.py`.
//!
//! ```text
//! cargo run --release --package unwind-guest --example orc_rows VMLINUX
//! ```

use std::error::Error;
use std::io::{self, BufWriter, Write as _};
use std::{env, fs};

use object::{Object as _, ObjectSection as _};
use unwind_core::{SliceMemory, VirtAddr};
use unwind_guest::orc::{OrcBase, OrcEntry, OrcKind, OrcLayout, OrcTable};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args_os().nth(1).ok_or("usage: orc_rows VMLINUX")?;
    let file = fs::read(path)?;
    let file = object::File::parse(&*file)?;
    let section = |name| file.section_by_name(name).ok_or("no ORC tables");
    let (ips, entries) = (section(".orc_unwind_ip")?, section(".orc_unwind")?);
    let entries_of = |bytes: &[u8]| {
        let entries = bytes.chunks_exact(OrcLayout::ENTRY_SIZE);
        OrcLayout::detect(entries.filter_map(|entry| entry.first_chunk().copied()))
    };
    let layout = match file.section_by_name(".orc_header") {
        Some(header) => header.data()?.first_chunk().and_then(OrcLayout::of_header),
        None => entries_of(entries.data()?),
    };
    let layout = layout.ok_or("an unknown layout")?;
    eprintln!("{layout:?}, by the entries: {:?}", entries_of(entries.data()?));
    let ips_at = VirtAddr::new(ips.address());
    let table = OrcTable::from_sections(layout, (ips.data()?, ips_at), entries.data()?)?;
    let mut none = SliceMemory::new(VirtAddr::new(0), &[]);
    let mut out = BufWriter::new(io::stdout().lock());
    for index in 0..table.len() {
        let Some((start, entry)) = table.get(index, &mut none)? else { break };
        let OrcEntry { kind, sp, sp_offset, bp, bp_offset, is_signal } = entry;
        let kind = match kind {
            OrcKind::Undefined => "undefined",
            OrcKind::EndOfStack => "end",
            OrcKind::Call => "call",
            OrcKind::Registers => "registers",
            OrcKind::PartialRegisters => "partial",
            OrcKind::Unknown(_) => "unknown",
        };
        let (sp, bp) = (word(sp), word(bp));
        writeln!(out, "{start} {kind} {sp} {sp_offset} {bp} {bp_offset} {is_signal}")?;
    }
    Ok(out.flush()?)
}

const fn word(base: OrcBase) -> &'static str {
    match base {
        OrcBase::Undefined => "-",
        OrcBase::PreviousSp => "cfa",
        OrcBase::Ax => "ax",
        OrcBase::Dx => "dx",
        OrcBase::Di => "di",
        OrcBase::Bp => "bp",
        OrcBase::Sp => "sp",
        OrcBase::R10 => "r10",
        OrcBase::R13 => "r13",
        OrcBase::BpIndirect => "[bp]",
        OrcBase::SpIndirect => "[sp]",
        OrcBase::Unknown(_) => "?",
    }
}

//! SFrame tables: in memory, with an index, in the target's memory.

use core::fmt::Write as _;
use core::ops::ControlFlow;

use sframe::{CompactTable, Error, Lookup, RemoteBuffer, RemoteTable, Section, Table};

use crate::{Target, Text, seen};

fn found(found: Result<Option<Lookup>, Error>) -> usize {
    match found {
        Ok(Some(found)) => {
            seen((found.row(), found.fde.pauth_key(), found.fde.is_mask(), found.fde.abi()))
        }
        Ok(None) => 0,
        Err(error) => seen(error.at()),
    }
}

/// Lookups, and all that can be asked of a table.
#[unsafe(no_mangle)]
pub fn table(bytes: &[u8; 4096], len: usize, addr: u64, pc: u64) -> usize {
    let Some(bytes) = bytes.get(..len) else { return 0 };
    found(Section::new(bytes).at(addr).find(pc));
    let table = match Table::parse(bytes) {
        Ok(table) => table.at(addr),
        Err(error) => return seen(error),
    };
    found(table.find(pc));
    seen(table.find_row(pc));
    let header = table.header();
    seen((header.len(), header.fdes_at(), header.fres_at(), header.version.number()));
    for fde in table.fdes() {
        let Ok(fde) = fde else { continue };
        seen((fde.fre_type(), fde.pc_type(), fde.fde_type(), fde.pc_offset(pc)));
        let Ok(rows) = table.fres(&fde) else { continue };
        for row in rows {
            let Ok(row) = row else { break };
            seen((fde.row(&row), row.flex(), row.word(2), row.words().len()));
        }
    }
    seen((table.range(0), table.fde(1), table.addr(), table.bytes().len()))
}

/// A compact table.
#[unsafe(no_mangle)]
pub fn compact_table(bytes: &[u8; 4096], len: usize, addr: u64) -> usize {
    let table = match CompactTable::parse(bytes.get(..len).unwrap_or_default()) {
        Ok(table) => table,
        Err(error) => return seen(write!(Text(0), "{error}")),
    };
    table.rows().for_each(|row| _ = seen(row));
    seen((table.row(addr), table.num_pages(), table.num_rows(), table.num_rules()))
}

/// An index in memory that is lent.
#[unsafe(no_mangle)]
pub fn index(bytes: &[u8; 4096], memory: &mut [u32; 512], words: usize, pc: u64) {
    let Ok(table) = Table::parse(bytes) else { return };
    seen(table.index_len());
    seen(table.max_rows());
    let indexed = table.index(memory.get_mut(..words).unwrap_or_default());
    found(indexed.find(pc));
    seen((indexed.find_row(pc), indexed.is_indexed()));
}

/// Validation.
#[unsafe(no_mangle)]
pub fn validate(bytes: &[u8; 4096], memory: &mut [u32; 512], words: usize) {
    let Ok(table) = Table::parse(bytes) else { return };
    let buffer = memory.get_mut(..words).unwrap_or_default();
    let summary = table.validate(buffer, |finding| {
        seen((finding.fault.severity(), finding.fault.at()));
        let _ = write!(Text(0), "{finding}");
        ControlFlow::<()>::Continue(())
    });
    seen((summary, table.check()));
}

/// A table in the target's memory.
#[unsafe(no_mangle)]
pub fn remote(addr: u64, len: u64, pc: u64, reads: u32) -> usize {
    let table = match RemoteTable::open(&mut Target, addr, len) {
        Ok(table) => table.with_max_reads(reads),
        Err(error) => return seen(write!(Text(0), "{error}")),
    };
    seen(table.find_row(&mut Target, pc, &mut RemoteBuffer::new()));
    match table.find(&mut Target, pc) {
        Ok(Some(found)) => seen(found.row()),
        Ok(None) => 0,
        Err(error) => seen(write!(Text(0), "{error}")),
    }
}

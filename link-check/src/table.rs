//! SFrame tables: at hand, with an index, in the target's memory.

use core::fmt::Write as _;
use core::ops::ControlFlow;

use sframe::{Error, Found, RemoteSection, RemoteWindow, Section, Sections};

use crate::{Target, Text, seen};

fn found(found: Result<Option<Found>, Error>) -> usize {
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
    found(Sections::new(bytes).at(addr).find(pc));
    let section = match Section::parse(bytes) {
        Ok(section) => section.at(addr),
        Err(error) => return seen(error),
    };
    found(section.find(pc));
    seen(section.find_row(pc));
    let header = section.header();
    seen((header.len(), header.fdes_at(), header.fres_at(), header.version.number()));
    for fde in section.fdes() {
        let Ok(fde) = fde else { continue };
        seen((fde.fre_type(), fde.pc_kind(), fde.kind(), fde.pc_offset(pc)));
        let Ok(rows) = section.fres(&fde) else { continue };
        for row in rows {
            let Ok(row) = row else { break };
            seen((fde.row(&row), row.flex(), row.word(2), row.words().len()));
        }
    }
    seen((section.range(0), section.fde(1), section.addr(), section.bytes().len()))
}

/// An index in memory that is lent.
#[unsafe(no_mangle)]
pub fn index(bytes: &[u8; 4096], memory: &mut [u32; 512], words: usize, pc: u64) {
    let Ok(section) = Section::parse(bytes) else { return };
    seen(section.index_len());
    seen(section.max_rows());
    let indexed = section.index(memory.get_mut(..words).unwrap_or_default());
    found(indexed.find(pc));
    seen((indexed.find_row(pc), indexed.is_indexed()));
}

/// Validation.
#[unsafe(no_mangle)]
pub fn validate(bytes: &[u8; 4096], memory: &mut [u32; 512], words: usize) {
    let Ok(section) = Section::parse(bytes) else { return };
    let buffer = memory.get_mut(..words).unwrap_or_default();
    let summary = section.validate(buffer, |finding| {
        seen((finding.fault.severity(), finding.fault.at()));
        let _ = write!(Text(0), "{finding}");
        ControlFlow::<()>::Continue(())
    });
    seen((summary, section.check()));
}

/// A table in the target's memory.
#[unsafe(no_mangle)]
pub fn remote(addr: u64, len: u64, pc: u64, reads: u32) -> usize {
    let section = match RemoteSection::open(&mut Target, addr, len) {
        Ok(section) => section.with_max_reads(reads),
        Err(error) => return seen(write!(Text(0), "{error}")),
    };
    seen(section.find_row(&mut Target, pc, &mut RemoteWindow::new()));
    match section.find(&mut Target, pc) {
        Ok(Some(found)) => seen(found.row()),
        Ok(None) => 0,
        Err(error) => seen(write!(Text(0), "{error}")),
    }
}

//! A table copied into another one, of any version, finds the same rows, or
//! says what it lost; and a copy of the copy is the same.

use sframe::{Builder, Format, Omission, Table, Version, WriteError};
use unwind_core::Row;

use crate::{input::Input, plain_table::pcs};

const FORMATS: [Format; 3] = [Format::V2, Format::V2Pcrel, Format::V3];

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (format, addr) = (FORMATS[input.below(3)], 0x10_0000);
    let Ok(table) = Table::parse(input.rest()) else { return };
    let table = table.at(addr);
    let Ok((bytes, lost)) = copy(&table, format) else { return };
    let copied = Table::parse(&bytes).expect("what is written is valid").at(addr);
    copied.check().expect("what is written is valid");
    for pc in pcs(&table).into_iter().chain(pcs(&copied)) {
        let rows = rows_at(&table, pc);
        let found = copied.find(pc).expect("what is written is valid");
        match found {
            Some(found) => {
                let row = found.row().expect("what is written is valid");
                assert!(rows.contains(&row), "at {pc:#x}: {row:?} is none of {rows:?}");
            }
            None => {
                let is_lost = lost.iter().any(|lost| pc.wrapping_sub(lost.start) < lost.size);
                assert!(rows.is_empty() || is_lost, "at {pc:#x}: {rows:?} of {format:?}");
            }
        }
    }
    let (again, lost) = copy(&copied, format).expect("a good table is written again");
    assert_eq!((again, lost), (bytes, Vec::new()));
}

fn copy(table: &Table<'_>, format: Format) -> Result<(Vec<u8>, Vec<Omission>), WriteError> {
    let mut builder = Builder::new(format, table.header().abi)?;
    let mut lost = Vec::new();
    builder.add_table(table, |fde| Some(fde.range.start), |range| lost.push(range))?;
    let bytes = builder.finish(table.addr(), |range| lost.push(range))?;
    Ok((bytes, lost))
}

/// The rows that functions of a table have at a pc.
fn rows_at(table: &Table<'_>, pc: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    for fde in table.fdes().flatten().filter(|fde| fde.range.contains(pc)) {
        let Ok(Some(offset)) = fde.pc_offset(pc) else { continue };
        let Ok(fres) = table.fres(&fde) else { continue };
        if fde.num_fres == 0 && table.header().version == Version::V3 {
            rows.push(if fde.is_signal() { Row::signal_context() } else { Row::outermost() });
        }
        let mut before = None;
        for fre in fres.map_while(Result::ok).take_while(|fre| fre.start <= offset) {
            before = Some(fre);
        }
        rows.extend(before.and_then(|fre| fde.row(&fre).ok()));
    }
    rows
}

//! Tables from call frame information: each construct, and each way to be
//! malformed.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod abi;
mod dwarf;
mod eh_return;
mod entry;
mod function;
mod rule;

use sframe::{Abi, Builder, CfiOmission, CfiOmissionReason, CfiReport, CfiSection, Format, Table};
use testdata::{CfiBuilder, Cie};
use unwind_core::{BaseReg, CfaRule, DwarfReg, RegRule, Row};

const AMD64: Abi = Abi::Amd64Little;
const SAVED: RegRule = RegRule::Offset(-8);
/// Where the sections and the tables are.
const ADDR: u64 = 0x10_0000;

const fn sp(offset: i32) -> Row {
    Row::new(CfaRule::sp(offset), SAVED, RegRule::SameValue)
}

const fn reg(number: u8) -> BaseReg {
    BaseReg::Reg(DwarfReg(number))
}

/// A table from one FDE, which starts at 0x1000.
struct One {
    bytes: Vec<u8>,
    lost: Vec<CfiOmission>,
    report: CfiReport,
}

impl One {
    fn new(abi: Abi, format: Format, cie: &Cie, len: u64, instructions: &[u8]) -> Self {
        let mut cfi = CfiBuilder::eh_frame(ADDR);
        cfi.big = matches!(abi, Abi::S390xBig | Abi::Aarch64Big);
        let cie = cfi.cie(cie);
        cfi.fde(cie, 0x1000, len, instructions);
        Self::of(abi, format, CfiSection::eh_frame(cfi.build(), ADDR))
    }

    fn amd64(len: u64, instructions: &[u8]) -> Self {
        Self::new(AMD64, Format::V3, &Cie::amd64(), len, instructions)
    }

    fn of(abi: Abi, format: Format, section: CfiSection<'_>) -> Self {
        let mut builder = Builder::new(format, abi).unwrap();
        let mut lost = Vec::new();
        let report = builder.add_cfi(section, |range| lost.push(range)).unwrap();
        let bytes = builder.finish(ADDR, |lost| panic!("{lost}")).unwrap();
        Self { bytes, lost, report }
    }

    fn section(&self) -> Table<'_> {
        Table::parse(&self.bytes).unwrap().at(ADDR)
    }

    fn row(&self, pc: u64) -> Option<Row> {
        self.section().find(pc).unwrap().map(|found| found.row().unwrap())
    }

    /// The rows at each pc, with nothing lost.
    #[track_caller]
    fn expect(&self, rows: &[(u64, Row)]) {
        assert_eq!(self.lost, []);
        for &(pc, row) in rows {
            assert_eq!(self.row(pc), Some(row), "at {pc:#x}");
        }
    }

    /// The one range that is lost.
    #[track_caller]
    fn expect_lost(&self, start: u64, size: u64, reason: CfiOmissionReason) {
        let [lost] = self.lost[..] else { panic!("{:?}", self.lost) };
        assert_eq!((lost.start, lost.size, lost.reason), (start, size, reason));
        assert_eq!(self.report.lost_bytes, size);
        for pc in start..start + size {
            assert_eq!(self.row(pc), None, "at {pc:#x}");
        }
    }
}

//! A table that is valid has no lookup that fails, every row that it has is found
//! where it holds, and none has a rule that a walk refuses. Validation takes bounded work and says what it saw.

use core::{convert::Infallible, ops::ControlFlow};

use sframe::{Abi, Flags, PcType, Severity, Table};
use unwind_core::{
    BaseReg, DwarfReg, End, FrameContext, Memory, ReadError, RegRule, Row, RowSource, StepError,
    VirtAddr, Walker,
};
use unwind_x86::{X86_64, X86_64Regs};

use crate::plain_table::{PlainTable, pcs};

pub(crate) fn run(data: &[u8]) {
    let Ok(table) = Table::parse(data) else {
        return;
    };
    let count = usize::try_from(table.header().num_fdes).unwrap();
    let mut findings = [0_u64; 2];
    let summary = table
        .validate(&mut vec![0; count], |finding| {
            findings[usize::from(finding.fault.severity() == Severity::Error)] += 1;
            assert!(finding.fault.at().0 <= table.header().len(), "{finding}");
            ControlFlow::<()>::Continue(())
        })
        .continue_value()
        .unwrap();
    assert_eq!([summary.notes, summary.errors], findings);
    assert!(summary.overlaps_checked);
    let bound = 16 * u64::from(table.header().fre_len);
    assert!(summary.rows <= bound.max(0x1_0000), "{} rows", summary.rows);
    assert_eq!(summary.functions, table.header().num_fdes);
    // Without room it is the same, but for overlaps of unsorted tables.
    let check = table.check();
    if table.header().flags.contains(Flags::SORTED) {
        assert_eq!(check.is_ok(), summary.errors == 0, "{check:?}");
    }
    if summary.errors == 0 {
        holds(&table, data);
    }
}

/// Every lookup in a valid table works, and finds all there is.
fn holds(table: &Table<'_>, data: &[u8]) {
    assert!(PlainTable::new(data).unwrap().is_honest());
    assert!(!matches!(table.header().abi, Abi::Unknown(_)));
    for pc in pcs(table) {
        if let Some(found) = table.find(pc).expect("the table is valid") {
            let row = found.row().expect("the table is valid");
            can_be_right(table.header().abi, row);
        }
    }
    for fde in table.fdes() {
        let fde = fde.expect("the table is valid");
        let end = match fde.pc_type().expect("the table is valid") {
            PcType::Increment => fde.range.size,
            PcType::Mask(size) => fde.range.size.min(u32::from(size.get())),
        };
        for fre in table.fres(&fde).expect("the table is valid").take(64) {
            let fre = fre.expect("the table is valid");
            if fre.start < end {
                let pc = fde.range.start.wrapping_add(fre.start.into());
                let found = table.find(pc).unwrap().expect("the row holds here");
                assert_eq!((found.fde, found.fre), (fde, Some(fre)), "at {pc:#x}");
            }
        }
    }
}

/// A step by the row does not fail for what the row says.
fn can_be_right(abi: Abi, row: Row) {
    if row.is_outermost() {
        return;
    }
    assert!(
        !matches!(row.ra(), RegRule::Register(BaseReg::Sp, _) | RegRule::ValOffset(_)),
        "{row:?}"
    );
    if abi != Abi::Amd64Little {
        return;
    }
    let regs = X86_64Regs::new(0x40_1000, 0x7000, 0x7100);
    let regs = (0..17).map(DwarfReg).fold(regs, |regs, register| regs.with(register, 0x7200));
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, First(Some(row)));
    let mut memory = Full;
    let mut walk = walker.frames(regs, &mut memory);
    walk.by_ref().for_each(drop);
    assert_ne!(walk.end(), Some(End::Step(StepError::BadRule)), "{row:?}");
}

/// The row of the first frame, and no other.
struct First(Option<Row>);

impl RowSource<X86_64> for First {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(self.0.take())
    }
}

/// Memory that has something everywhere.
struct Full;

impl Memory for Full {
    fn read(&mut self, _: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        buf.fill(0x11);
        Ok(())
    }
}

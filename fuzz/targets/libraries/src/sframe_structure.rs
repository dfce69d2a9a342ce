//! A table whose header is valid and whose functions and rows are any.

use arbitrary::{Arbitrary, Unstructured};
use testdata::{Function, Row, TableBuilder};

use crate::sframe_section;

/// A table to be.
#[derive(Arbitrary, Debug)]
pub(crate) struct Table {
    form: u8,
    flags: u8,
    fixed_ra: i8,
    aux: u8,
    functions: Vec<Func>,
    addr: u16,
}

#[derive(Arbitrary, Debug)]
struct Func {
    /// From the end of the function before it.
    gap: i8,
    size: u16,
    info: u8,
    info2: u8,
    rep_size: u8,
    rows: Vec<(u8, u8, i32, i32, u16)>,
}

impl Table {
    /// The section's bytes.
    pub(crate) fn build(&self) -> Vec<u8> {
        let version = 1 + self.form % 3;
        let mut table = match self.form / 3 % 8 {
            0 => TableBuilder::aarch64(version, false),
            1 => TableBuilder::aarch64(version, true),
            2 => TableBuilder::s390x(version),
            3 => TableBuilder { abi: 0, ..TableBuilder::amd64(version) },
            _ => TableBuilder::amd64(version),
        };
        let known = [3, 7, 5][usize::from(version) - 1];
        table.flags = self.flags & known;
        if self.fixed_ra & 1 == 1 {
            table.fixed_ra = self.fixed_ra;
        }
        table.aux = vec![0xa5; usize::from(self.aux % 4)];
        let mut next = 0x1000_i64;
        for func in self.functions.iter().take(40) {
            let function = func.build(next + i64::from(func.gap));
            next = function.start + i64::from(function.size);
            table = table.function(function);
        }
        table.build()
    }

    /// Where the section is.
    pub(crate) fn addr(&self) -> u64 {
        u64::from(self.addr) << 8
    }
}

impl Func {
    fn build(&self, start: i64) -> Function {
        // Mostly a valid width of row starts.
        let fre_type = match self.info & 0xf {
            wrong @ 14..=15 => wrong,
            other => other % 3,
        };
        let mut function = Function::new(start, u32::from(self.size) % 600, Vec::new());
        function.info = self.info & 0xf0 | fre_type;
        function.info2 = if self.info2 > 0xf0 { self.info2 } else { self.info2 & 1 };
        function.rep_size = self.rep_size % 33;
        let mut next = 0_u32;
        for &(step, info, first, second, more) in self.rows.iter().take(60) {
            let limit = [0xff, 0xffff, u32::MAX][usize::from(fre_type % 3)];
            // Rarely they do not ascend.
            next = if step == 0xff { next.saturating_sub(1) } else { next + u32::from(step % 24) };
            let size = info >> 5 & 3;
            let narrow = |word: i32| match size {
                0 => i32::from(word as i8),
                1 => i32::from(word as i16),
                _ => word,
            };
            let count = usize::from(info >> 1 & 0xf);
            let given = [first, second, i32::from(more), first >> 8, second >> 8, 8];
            let words = given.into_iter().cycle().take(count).map(narrow).collect();
            function.rows.push(Row { start: next.min(limit), info, words });
        }
        function
    }
}

pub(crate) fn run(data: &[u8]) {
    let Ok(table) = Table::arbitrary_take_rest(Unstructured::new(data)) else { return };
    sframe_section::compare(&table.build(), table.addr());
}

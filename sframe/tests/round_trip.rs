//! What is written is read back as it was: random tables, and tables that
//! other tools wrote.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use core::num::NonZeroU8;

use proptest::{collection::vec, prelude::*, sample::select};
use sframe::{
    Abi, Builder, Fde, Flags, Format, Fre, Function, Omission, OmissionReason, PauthKey, Table,
    Version,
};
use testdata::{Fixture, sections};
use unwind_core::{BaseReg, CfaRule, DwarfReg, RegRule, Row};

const FORMATS: [Format; 3] = [Format::V2, Format::V2Pcrel, Format::V3];
const ABIS: [Abi; 4] = [Abi::Aarch64Big, Abi::Aarch64Little, Abi::Amd64Little, Abi::S390xBig];

/// A function with its own rows.
#[derive(Clone, Debug)]
struct Func {
    start: u64,
    size: u32,
    signal: bool,
    blocks: Option<NonZeroU8>,
    key_b: bool,
    rows: Vec<(u32, Row)>,
}

impl Func {
    fn function(&self) -> Function<'_> {
        let mut function = Function::new(self.start, self.size, &self.rows);
        function.signal = self.signal;
        function.block_size = self.blocks;
        function.pauth_key = if self.key_b { PauthKey::B } else { PauthKey::A };
        function
    }

    /// The row that holds at a pc inside, by the plainest search.
    fn row(&self, pc: u64) -> Option<Row> {
        let mut offset = u32::try_from(pc - self.start).unwrap();
        if let Some(size) = self.blocks {
            offset %= u32::from(size.get());
        }
        self.rows.iter().rfind(|(start, _)| *start <= offset).map(|&(_, row)| row)
    }
}

/// The registers that have neutral names: SP, FP, RA.
fn registers(abi: Abi) -> (u8, u8, u8) {
    match abi {
        Abi::Amd64Little => (7, 6, 16),
        Abi::S390xBig => (15, 11, 14),
        _ => (31, 29, 30),
    }
}

/// A register by its neutral name, if it has one.
fn neutral(abi: Abi, base: BaseReg) -> BaseReg {
    let (sp, fp, _) = registers(abi);
    match base {
        BaseReg::Reg(DwarfReg(number)) if number == sp => BaseReg::Sp,
        BaseReg::Reg(DwarfReg(number)) if number == fp => BaseReg::Fp,
        base => base,
    }
}

fn neutral_rule(abi: Abi, rule: RegRule) -> RegRule {
    match rule {
        RegRule::Register(base, offset) => RegRule::Register(neutral(abi, base), offset),
        RegRule::AtRegister(base, offset) => RegRule::AtRegister(neutral(abi, base), offset),
        other => other,
    }
}

/// What of a row a table keeps.
fn rules(abi: Abi, row: Row) -> (bool, CfaRule, RegRule, RegRule, bool) {
    if row.is_context_only() {
        return (true, CfaRule::sp(0), RegRule::Undefined, RegRule::Undefined, false);
    }
    if row.is_outermost() {
        return (false, CfaRule::sp(0), RegRule::Undefined, RegRule::Undefined, false);
    }
    let cfa = match row.cfa() {
        CfaRule::Register(base, offset) => CfaRule::Register(neutral(abi, base), offset),
        CfaRule::AtRegister(base, offset) => CfaRule::AtRegister(neutral(abi, base), offset),
        CfaRule::AtRegisterPlus(base, offset, plus) => {
            CfaRule::AtRegisterPlus(neutral(abi, base), offset, plus)
        }
    };
    let [ra, fp] = [row.ra(), row.fp()].map(|rule| neutral_rule(abi, rule));
    (false, cfa, ra, fp, row.is_ra_signed())
}

/// Whether the format has words for a row, straight from the format's
/// description.
fn is_expressible(format: Format, abi: Abi, row: Row, in_blocks: bool) -> bool {
    let v3 = format == Format::V3;
    if row.is_context_only() {
        return v3 && !in_blocks;
    }
    if row.is_outermost() {
        return true;
    }
    let (_, cfa, ra, fp, signed) = rules(abi, row);
    let (CfaRule::Register(_, cfa_offset) | CfaRule::AtRegister(_, cfa_offset)) = cfa else {
        return false;
    };
    let s390x = abi == Abi::S390xBig;
    let aarch64 = matches!(abi, Abi::Aarch64Big | Abi::Aarch64Little);
    let above = i64::from(cfa_offset) - 160;
    let scales = !s390x || above % 8 == 0 && i32::try_from(above).is_ok();
    // No call leaves a return address there.
    let is_no_ra = match ra {
        RegRule::ValOffset(_) | RegRule::Register(BaseReg::Sp, _) => true,
        RegRule::SameValue => abi == Abi::Amd64Little,
        _ => false,
    };
    if !scales || signed && !aarch64 || fp == RegRule::Undefined || is_no_ra {
        return false;
    }
    if v3 {
        return true;
    }
    let slot = |rule| match rule {
        RegRule::Offset(offset) => !s390x || offset % 2 == 0,
        RegRule::Register(_, 0) => s390x,
        _ => false,
    };
    let cfa_fits = matches!(cfa, CfaRule::Register(BaseReg::Sp | BaseReg::Fp, _));
    let ra_fits = match (abi, ra) {
        (Abi::Amd64Little, ra) => ra == RegRule::Offset(-8),
        (_, RegRule::SameValue) => fp == RegRule::SameValue || s390x,
        (_, RegRule::Offset(0)) => false,
        (_, ra) => slot(ra),
    };
    cfa_fits && ra_fits && (fp == RegRule::SameValue || slot(fp))
}

fn offset() -> impl Strategy<Value = i32> {
    prop_oneof![
        4 => (-16_i32..16).prop_map(|word| word * 8),
        1 => select(vec![127, 128, -128, -129, 32767, 32768, -32768, -32769, i32::MAX, i32::MIN]),
        1 => any::<i32>(),
    ]
}

fn base(abi: Abi) -> impl Strategy<Value = BaseReg> {
    let (sp, fp, ra) = registers(abi);
    prop_oneof![
        Just(BaseReg::Sp),
        Just(BaseReg::Fp),
        select(vec![0, 10, 31, 32, 0xfd, sp, fp, ra])
            .prop_map(|number| BaseReg::Reg(DwarfReg(number))),
    ]
}

fn cfa(abi: Abi) -> impl Strategy<Value = CfaRule> {
    let scaled = prop_oneof![
        3 => (0..0x1000).prop_map(|slots: i32| 160 + 8 * slots),
        1 => offset(),
    ];
    prop_oneof![
        6 => (select(vec![BaseReg::Sp, BaseReg::Fp]), scaled).prop_map(|(b, o)| CfaRule::Register(b, o)),
        1 => (base(abi), offset()).prop_map(|(b, o)| CfaRule::Register(b, o)),
        1 => (base(abi), offset()).prop_map(|(b, o)| CfaRule::AtRegister(b, o)),
    ]
}

fn rule(abi: Abi, usual: RegRule) -> impl Strategy<Value = RegRule> {
    prop_oneof![
        6 => Just(usual),
        3 => Just(RegRule::SameValue),
        2 => offset().prop_map(RegRule::Offset),
        1 => offset().prop_map(RegRule::ValOffset),
        1 => base(abi).prop_map(|b| RegRule::Register(b, 0)),
        1 => (base(abi), offset()).prop_map(|(b, o)| RegRule::Register(b, o)),
        1 => (base(abi), offset()).prop_map(|(b, o)| RegRule::AtRegister(b, o)),
    ]
}

fn row(abi: Abi) -> impl Strategy<Value = Row> {
    let rules = (cfa(abi), rule(abi, RegRule::Offset(-8)), rule(abi, RegRule::Offset(-16)));
    let plain = (rules, prop::bool::weighted(0.1)).prop_map(|((cfa, ra, fp), signed)| {
        let row = Row::new(cfa, ra, fp);
        if signed { row.with_signed_ra() } else { row }
    });
    prop_oneof![
        20 => plain,
        1 => Just(Row::outermost()),
        1 => Just(Row::signal_context()),
        1 => Just(Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::Undefined)),
    ]
}

fn func(abi: Abi) -> impl Strategy<Value = Func> {
    let step = prop_oneof![4 => 1_u32..9, 1 => 1_u32..0x200, 1 => 1_u32..0x2_0000];
    let rows = vec((step, row(abi)), 1..12);
    let gap = prop_oneof![3 => Just(0_u64), 1 => 0_u64..0x1000];
    let blocks = prop_oneof![6 => Just(None), 1 => any::<NonZeroU8>().prop_map(Some)];
    let tail = prop_oneof![4 => 1_u32..9, 1 => 1_u32..0x200];
    (gap, prop::bool::weighted(0.9), rows, tail, any::<(bool, bool)>(), blocks).prop_map(
        |(gap, at_start, rows, tail, (signal, key_b), blocks)| {
            let mut next = 0;
            let mut rows: Vec<_> = rows
                .into_iter()
                .map(|(step, row)| {
                    next += step;
                    (next, row)
                })
                .collect();
            let size = next + tail;
            if at_start {
                rows[0].0 = 0;
            }
            // `start` is the gap before the function until all are in a row.
            Func { start: gap, size, signal: signal && key_b, blocks, key_b, rows }
        },
    )
}

fn table() -> impl Strategy<Value = (Format, Abi, u64, Vec<Func>)> {
    let abi = select(ABIS.to_vec());
    (select(FORMATS.to_vec()), abi, any::<i32>(), 0_u64..0x4000_0000).prop_flat_map(
        |(format, abi, distance, base)| {
            let base = base + 0x4000_0000;
            let addr = base.wrapping_add_signed(i64::from(distance >> 1));
            vec(func(abi), 0..8).prop_map(move |mut functions| {
                let mut next = base;
                for function in &mut functions {
                    function.start += next;
                    next = function.start + u64::from(function.size);
                }
                (format, abi, addr, functions)
            })
        },
    )
}

/// Adds the functions, the last first.
fn write(format: Format, abi: Abi, addr: u64, functions: &[Func]) -> (Vec<u8>, Vec<Omission>) {
    let mut lost = Vec::new();
    let mut builder = Builder::new(format, abi).unwrap();
    for function in functions.iter().rev() {
        let before = lost.len();
        let check = builder.check(&function.function());
        builder.add(&function.function(), |range| lost.push(range)).unwrap();
        assert_eq!(check.is_err(), lost.len() > before, "{check:?}");
    }
    let bytes = builder.finish(addr, |range| lost.push(range)).unwrap();
    (bytes, lost)
}

/// Addresses where something may change, and some beside them.
fn interesting(function: &Func) -> Vec<u64> {
    let mut offsets: Vec<u64> = function.rows.iter().map(|&(offset, _)| offset.into()).collect();
    offsets.push(function.size.into());
    if let Some(size) = function.blocks {
        let size = u64::from(size.get());
        let blocks = offsets.clone().into_iter().map(|offset| offset % size);
        offsets.extend(blocks.flat_map(|at| [at, at + size, at + 2 * size]).collect::<Vec<_>>());
    }
    let around = offsets.iter().flat_map(|&at| [at, at + 1, at.saturating_sub(1)]);
    let mut offsets: Vec<u64> = around.filter(|&at| at < function.size.into()).collect();
    offsets.sort_unstable();
    offsets.dedup();
    offsets.into_iter().map(|at| function.start + at).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_address_is_found_as_it_was_given_or_is_lost((format, abi, addr, functions) in table()) {
        let (bytes, lost) = write(format, abi, addr, &functions);
        let table = Table::parse(&bytes).unwrap().at(addr);
        for function in &functions {
            let whole_is_lost = function.signal && format != Format::V3
                || function.blocks.is_some() && function.rows.iter().any(|&(offset, row)| {
                    let end = function.blocks.unwrap().get().into();
                    offset < end && offset < function.size
                        && !is_expressible(format, abi, row, true)
                });
            for pc in interesting(function) {
                let found = table.find(pc).unwrap();
                let is_lost = lost.iter().any(|lost| pc.wrapping_sub(lost.start) < lost.size);
                let expected = function.row(pc).filter(|&row| {
                    !whole_is_lost && is_expressible(format, abi, row, function.blocks.is_some())
                });
                prop_assert_eq!(
                    found.map(|found| rules(abi, found.row().unwrap())),
                    expected.map(|row| rules(abi, row)),
                    "at {:#x}", pc
                );
                if let Some(found) = found {
                    prop_assert!(!is_lost, "at {pc:#x}");
                    let context = found.fre.is_none();
                    prop_assert_eq!(found.fde.is_signal(), function.signal || context);
                    let key = if matches!(abi, Abi::Aarch64Big | Abi::Aarch64Little) {
                        Some(if function.key_b { PauthKey::B } else { PauthKey::A })
                    } else {
                        None
                    };
                    prop_assert_eq!(found.fde.pauth_key(), key);
                } else {
                    // No row may mean that there was none.
                    prop_assert!(is_lost || function.row(pc).is_none(), "at {pc:#x}");
                }
            }
        }
        for lost in &lost {
            prop_assert!(functions.iter().any(|function| function.start == lost.function));
        }
    }

    #[test]
    fn a_table_that_can_be_written_is_read_back_whole((format, abi, addr, mut functions) in table()) {
        for function in &mut functions {
            function.signal &= format == Format::V3;
            let end = function.blocks.map_or(function.size, |size| size.get().into());
            function.rows.retain(|&(offset, row)| {
                offset < end && is_expressible(format, abi, row, true) && !row.is_context_only()
            });
            function.rows.dedup_by_key(|&mut (_, row)| rules(abi, row));
        }
        functions.retain(|function| !function.rows.is_empty());
        let (bytes, lost) = write(format, abi, addr, &functions);
        prop_assert_eq!(lost, []);
        let table = Table::parse(&bytes).unwrap().at(addr);
        let header = table.header();
        prop_assert_eq!((header.version, header.abi), (format.version(), abi));
        prop_assert_eq!(header.flags.contains(Flags::SORTED) && header.flags.contains(Flags::PCREL) == format.is_pcrel(), true);
        prop_assert_eq!(header.len(), u64::try_from(bytes.len()).unwrap());
        prop_assert_eq!(table.fdes().count(), functions.len());
        let mut rows_in_all = 0;
        for (fde, function) in table.fdes().map(Result::unwrap).zip(&functions) {
            prop_assert_eq!((fde.range.start, fde.range.size), (function.start, function.size));
            prop_assert_eq!(fde.is_signal(), function.signal);
            let fres = table.fres(&fde).unwrap().map(Result::unwrap);
            let rows: Vec<_> =
                fres.map(|fre| (fre.start, rules(abi, fde.row(&fre).unwrap()))).collect();
            let expected: Vec<_> =
                function.rows.iter().map(|&(offset, row)| (offset, rules(abi, row))).collect();
            rows_in_all += rows.len();
            prop_assert_eq!(rows, expected);
        }
        prop_assert_eq!(usize::try_from(header.num_fres).unwrap(), rows_in_all);
        // And once more from what was read.
        let mut again = Builder::new(format, abi).unwrap();
        again.add_table(&table, |fde| Some(fde.range.start), |lost| panic!("{lost}")).unwrap();
        prop_assert_eq!(again.finish(addr, |lost| panic!("{lost}")).unwrap(), bytes);
    }
}

/// A copy of a table whose functions are laid out one after another with a
/// gap, which tells apart those of a relocatable object.
fn spread(fde: &Fde, next: &mut u64) -> u64 {
    let start = *next;
    *next += u64::from(fde.range.size) + 0x20;
    start
}

/// The rules at an offset in a function, by the plainest search of its rows.
fn row_at(table: &Table<'_>, fde: &Fde, fres: &[Fre], offset: u64) -> Option<Row> {
    let offset = fde.pc_offset(fde.range.start.wrapping_add(offset)).unwrap()?;
    if fres.is_empty() && table.header().version == Version::V3 {
        return Some(if fde.is_signal() { Row::signal_context() } else { Row::outermost() });
    }
    fres.iter().rfind(|fre| fre.start <= offset).map(|fre| fde.row(fre).unwrap())
}

fn check_copy(fixture: &Fixture, format: Format) -> (u64, u64) {
    let name = fixture.name();
    let table = Table::parse(&fixture.bytes).unwrap().at(fixture.addr);
    let abi = table.header().abi;
    let mut builder = Builder::new(format, abi).unwrap();
    let mut next = 0x10_0000;
    let mut places = Vec::new();
    let mut lost = Vec::new();
    let place = |fde: &Fde| {
        let start = spread(fde, &mut next);
        places.push((*fde, start));
        Some(start)
    };
    builder.add_table(&table, place, |range| lost.push(range)).unwrap();
    let addr = 0x8000;
    let bytes = builder.finish(addr, |range| lost.push(range)).unwrap();
    let copy = Table::parse(&bytes).unwrap().at(addr);
    let (mut same, mut gone) = (0, 0);
    for (fde, start) in places {
        let fres: Vec<Fre> = table.fres(&fde).unwrap().map(Result::unwrap).collect();
        for offset in 0..u64::from(fde.range.size) + 8 {
            let pc = start + offset;
            let expected = row_at(&table, &fde, &fres, offset);
            let found = copy.find(pc).unwrap().map(|found| found.row().unwrap());
            let is_lost = lost.iter().any(|range| {
                range.reason != OmissionReason::NoRows && pc.wrapping_sub(range.start) < range.size
            });
            if is_lost {
                assert!(format.version() < table.header().version, "{name}: {lost:?}");
                assert_eq!(found, None, "{name} at {pc:#x}");
                gone += 1;
                continue;
            }
            assert_eq!(found, expected, "{name} at {pc:#x} of {format:?}");
            same += 1;
        }
    }
    (same, gone)
}

#[test]
fn copies_of_all_tables_find_the_same_at_every_address() {
    let (mut same, mut gone) = (0, 0);
    for fixture in sections() {
        for format in FORMATS {
            let (a, b) = check_copy(&fixture, format);
            same += a;
            gone += b;
        }
    }
    println!("{same} addresses compared, {gone} that version 2 cannot say");
    assert!(same > 20_000, "only {same} addresses");
    // Flexible rows and signal frames are in the fixtures.
    assert!(gone > 100, "only {gone} addresses that version 2 cannot say");
}

#[test]
fn copies_in_place_find_the_same_at_every_address() {
    let mut compared = 0;
    for fixture in sections().into_iter().filter(|fixture| fixture.addr != 0) {
        let table = Table::parse(&fixture.bytes).unwrap().at(fixture.addr);
        let mut builder = Builder::new(Format::V3, table.header().abi).unwrap();
        let lost = |lost: Omission| assert_eq!(lost.reason, OmissionReason::Empty, "{lost}");
        builder.add_table(&table, |fde| Some(fde.range.start), lost).unwrap();
        let bytes = builder.finish(fixture.addr, |lost| panic!("{lost}")).unwrap();
        let copy = Table::parse(&bytes).unwrap().at(fixture.addr);
        let ranges = (0..table.header().num_fdes).filter_map(|index| table.range(index));
        for pc in testdata::addresses(ranges.map(|range| (range.start, range.size))) {
            let [before, after] = [&table, &copy]
                .map(|table| table.find(pc).unwrap().map(|found| found.row().unwrap()));
            assert_eq!(before, after, "{} at {pc:#x}", fixture.name());
            compared += 1;
        }
    }
    assert!(compared > 5000, "only {compared} addresses");
}

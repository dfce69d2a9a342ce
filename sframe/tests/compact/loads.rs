//! CFAs that are found by loads, as code that runs on several stacks has them: held against what the
//! expressions come to in frames.

use sframe::{
    CfiAbi, CfiSection, CompactBuilder, CompactError, CompactOmissionReason as Reason, CompactTable,
};
use testdata::{CfiBuilder, Cie};
use unwind_cfi::{CfiTable, Entries, IndexEntry, index};
use unwind_core::{
    BaseReg, CfaLoads, CfaRule, DwarfReg, FrameContext, FramePc, Memory, ReadError, RegRule,
    Registers, Row, VirtAddr,
};

use crate::SAVED;

const BREG: u8 = 0x70;
const DEREF: u8 = 0x06;
const PLUS: u8 = 0x23;
const RBP: u8 = BREG + 6;
const RSP: u8 = BREG + 7;
const SECTION: u64 = 0x10_0000;
const PC: u64 = 0x1000;

/// Memory whose words depend on their addresses.
struct Words;

fn word(addr: u64) -> u64 {
    addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 17 << 4
}

impl Memory for Words {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        buf.copy_from_slice(
            word(addr.get()).to_le_bytes().get(..buf.len()).ok_or(ReadError::Invalid)?,
        );
        Ok(())
    }
}

/// No other registers than the frame's.
#[derive(Clone, Copy, Debug)]
struct NoOthers;

impl Registers for NoOthers {
    fn pc(&self) -> u64 {
        PC
    }

    fn sp(&self) -> u64 {
        0
    }

    fn fp(&self) -> Option<u64> {
        None
    }

    fn get(&self, _: DwarfReg) -> Option<u64> {
        None
    }
}

/// An entry whose CFA is an expression, of code with the mark of a signal frame or without.
fn section(expression: &[u8], is_signal: bool) -> CfiBuilder {
    let mut cfi = CfiBuilder::eh_frame(SECTION);
    let augmentation: &[u8] = if is_signal { b"zRS" } else { b"zR" };
    let cie = cfi.cie(&Cie { augmentation, ..Cie::amd64() });
    let len = u8::try_from(expression.len()).unwrap();
    cfi.fde(cie, PC, 0x10, &[&[0x0f, len], expression].concat());
    cfi
}

/// What the table says of the entry, and which reason it has if none.
fn of_table(cfi: &mut CfiBuilder) -> (Option<(Row, CfaLoads)>, Option<Row>, Vec<Reason>) {
    let mut builder = CompactBuilder::new();
    builder.add_cfi(CfiSection::eh_frame(cfi.build(), SECTION), CfiAbi::X86_64).unwrap();
    let (image, omissions) = builder.finish().unwrap();
    let table = CompactTable::parse(&image).unwrap();
    (table.loads(PC), table.row(PC), omissions.iter().map(|(reason, _)| reason).collect())
}

/// The CFA by the expression in a frame, without the table.
fn by_expression(cfi: &mut CfiBuilder, sp: u64, fp: u64) -> u64 {
    let section = CfiSection::eh_frame(cfi.build(), SECTION);
    let mut slots = [IndexEntry::default(); 4];
    let index = index(Entries::new(section, CfiAbi::X86_64), &mut slots).unwrap();
    let table = CfiTable::with_index(section, CfiAbi::X86_64, index);
    let pc = FramePc::Exact(VirtAddr::new(PC));
    let frame = FrameContext::<NoOthers>::new(pc, sp, Some(fp), None);
    let rules = table.find_frame_rules(PC).unwrap().unwrap();
    let row = rules.row(&frame, &mut Words).unwrap();
    row.other_stack_cfa().unwrap_or_else(|| match row.cfa() {
        CfaRule::Register(BaseReg::Sp, offset) => sp.wrapping_add_signed(offset.into()),
        cfa => panic!("{cfa:?}"),
    })
}

#[test]
fn u3_loads_lead_where_the_expressions_do() {
    let cases: [(&[u8], CfaLoads); 5] = [
        // The start of OCaml's code, and a handler's.
        (
            &[RSP, 16, DEREF, PLUS, 0xd0, 0],
            CfaLoads { base: BaseReg::Sp, offset: 16, between: None, plus: 80 },
        ),
        (
            &[RSP, 56, DEREF, PLUS, 0, DEREF, PLUS, 8],
            CfaLoads { base: BaseReg::Sp, offset: 56, between: Some(0), plus: 8 },
        ),
        (
            &[RSP, 8, PLUS, 8, DEREF, PLUS, 16, DEREF],
            CfaLoads { base: BaseReg::Sp, offset: 16, between: Some(16), plus: 0 },
        ),
        (
            &[RBP, 0x70, DEREF, DEREF, PLUS, 8],
            CfaLoads { base: BaseReg::Fp, offset: -16, between: Some(0), plus: 8 },
        ),
        (
            &[RBP, 8, DEREF, PLUS, 0x80, 1],
            CfaLoads { base: BaseReg::Fp, offset: 8, between: None, plus: 128 },
        ),
    ];
    for (expression, expected) in cases {
        let mut cfi = section(expression, true);
        let (loads, row, lost) = of_table(&mut cfi);
        let (rest, loads) = loads.unwrap_or_else(|| panic!("{expression:x?}: {row:?} {lost:?}"));
        assert_eq!((loads, row, lost), (expected, None, vec![]), "{expression:x?}");
        assert_eq!((rest.ra(), rest.fp()), (SAVED, RegRule::SameValue));
        assert!(rest.is_signal() && !rest.is_context_only());
        for step in 0..100 {
            let (sp, fp) = (0x7f00_0000 + step * 0x1238, 0x7fff_0000 + step * 0x758);
            let base = if loads.base == BaseReg::Sp { sp } else { fp };
            let cfa = loads.cfa(base, |at| Some(word(at)));
            assert_eq!(cfa, Some(by_expression(&mut cfi, sp, fp)), "{expression:x?} at {sp:#x}");
        }
        assert_eq!(loads.cfa(0x7000, |_| None), None);
    }
}

#[test]
fn u3_what_is_more_than_two_loads_is_lost_and_named() {
    let other: [(&[u8], Reason); 4] = [
        (&[RSP, 8, DEREF, DEREF, DEREF], Reason::NoRow),
        (&[RSP, 8, DEREF, PLUS, 0x80, 0x80, 2, DEREF], Reason::NoRow),
        (&[BREG + 3, 8, DEREF, DEREF], Reason::CfaRegister),
        (&[RSP, 8, DEREF, 0x12, 0x22], Reason::NoRow),
    ];
    for (expression, reason) in other {
        let (loads, row, lost) = of_table(&mut section(expression, false));
        assert_eq!((loads, row, lost), (None, None, vec![reason]), "{expression:x?}");
    }
    // Of code with the mark the kernel may have saved all registers.
    let (loads, row, lost) = of_table(&mut section(other[0].0, true));
    assert_eq!((loads, lost), (None, vec![]));
    assert!(row.is_some_and(|row| row.is_context_only()));
}

#[test]
fn a_cfa_by_one_load_that_a_row_says_is_that_row_s() {
    let mut builder = CompactBuilder::new();
    let loads = |plus| CfaLoads { base: BaseReg::Fp, offset: -8, between: None, plus };
    let row = Row::new(CfaRule::sp(8), SAVED, RegRule::Undefined);
    builder.add_loads(0..8, &row, loads(0)).unwrap();
    builder.add_loads(8..16, &row, loads(62)).unwrap();
    builder.add_loads(16..24, &Row::outermost(), loads(62)).unwrap();
    let (image, omissions) = builder.finish().unwrap();
    assert!(omissions.is_empty());
    let table = CompactTable::parse(&image).unwrap();
    assert_eq!(table.row(0), Some(row.with_cfa(CfaRule::AtRegister(BaseReg::Fp, -8))));
    let found = table.loads(8).map(|(row, loads)| (row.ra(), row.fp(), loads));
    assert_eq!(found, Some((SAVED, RegRule::Undefined, loads(62))));
    assert_eq!((table.loads(0), table.row(8)), (None, None));
    assert_eq!(table.row(16), Some(Row::outermost()));
}

#[test]
fn a_rule_by_loads_has_nothing_that_it_does_not_say() {
    let mut builder = CompactBuilder::new();
    let row = Row::new(CfaRule::sp(8), SAVED, RegRule::SameValue);
    let loads = CfaLoads { base: BaseReg::Sp, offset: 16, between: None, plus: 80 };
    builder.add_loads(0..8, &row, loads).unwrap();
    let (image, _) = builder.finish().unwrap();
    let rule = image.len() - 24;
    for (at, byte, is_good) in [
        (1, 4, true),
        (1, 6, true),
        (1, 8, false),
        // Where rbx is.
        (4, 1, true),
        // Between loads of which there is one.
        (6, 8, false),
        // What a row says has no other rule.
        (12, 60, true),
        (16, 1, false),
    ] {
        let mut bytes = image.clone();
        bytes[rule + at] = byte;
        let table = CompactTable::parse(&bytes);
        assert_eq!(table.is_ok(), is_good, "{at}: {byte}");
        let expected = if is_good { None } else { Some(CompactError::Rule { rule: 1 }) };
        assert_eq!(table.err(), expected, "{at}: {byte}");
    }
}

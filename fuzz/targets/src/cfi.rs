//! Any call frame information becomes a valid table, and wherever gimli finds a
//! row that a table can say, the table has the same.

use gimli::{
    CfaRule as GimliCfa, CieOrFde, RegisterRule, RunTimeEndian, UnwindContextStorage,
    UnwindSection, UnwindTableRow,
};
use sframe::{Abi, Builder, CfiSection, Format, Section};
use unwind_core::{Base, CfaRule, DwarfReg, RegRule, Row};

use crate::input::Input;

const ADDR: u64 = 0x10_0000;
const ABIS: [Abi; 4] = [Abi::Amd64Little, Abi::Aarch64Little, Abi::Aarch64Big, Abi::S390xBig];

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let abi = ABIS[input.below(ABIS.len())];
    let bytes = input.rest();
    let mut builder = Builder::new(Format::V3, abi).unwrap();
    let mut lost = Vec::new();
    let report = builder
        .add_cfi(CfiSection::eh_frame(bytes, ADDR), |range| {
            assert!(range.entry <= bytes.len() as u64, "{range}");
            lost.push((range.start, range.size));
        })
        .expect("there is memory");
    assert!(report.unusable <= report.fdes && report.fdes <= bytes.len() as u64 / 4 + 1);
    let table = builder.finish(ADDR, |range| lost.push((range.start, range.size))).unwrap();
    let section = Section::parse(&table).expect("what is written is valid").at(ADDR);
    section.check().expect("what is written is valid");

    let fdes = gimli_fdes(abi, bytes);
    for fde in &fdes {
        let covering =
            |pc: u64| fdes.iter().filter(|fde| (fde.start..fde.end).contains(&pc)).count();
        for &(from, to, row) in &fde.rows {
            for pc in [from, from + (to - from) / 2, to - 1] {
                let found = section.find(pc).unwrap().map(|found| found.row().unwrap());
                let is_lost = lost.iter().any(|&(start, size)| pc.wrapping_sub(start) < size);
                // Of an entry that cannot be used the range is not known.
                let is_lost = is_lost || report.unusable != 0;
                match row {
                    // Two of them may be about the same code.
                    _ if covering(pc) != 1 => {}
                    Some(row) => assert!(
                        found == Some(row) || (found.is_none() && is_lost),
                        "at {pc:#x}: {found:?}, gimli {row:?}"
                    ),
                    None => assert!(found.is_some() || is_lost, "at {pc:#x}"),
                }
            }
        }
    }
}

/// Room for as many remembered states as are compared.
struct Deep;

impl<T: gimli::ReaderOffset> UnwindContextStorage<T> for Deep {
    type Rules = [(gimli::Register, RegisterRule<T>); 64];
    type Stack = Box<[UnwindTableRow<T, Self>; 16]>;
}

type Reader<'a> = gimli::EndianSlice<'a, RunTimeEndian>;
type GimliRow = UnwindTableRow<usize, Deep>;

/// An entry that gimli reads to its end.
struct Fde {
    start: u64,
    end: u64,
    /// From, to, and what a table can say.
    rows: Vec<(u64, u64, Option<Row>)>,
}

fn gimli_fdes(abi: Abi, bytes: &[u8]) -> Vec<Fde> {
    let endian = match abi.endian() {
        Some(sframe::Endian::Big) => RunTimeEndian::Big,
        _ => RunTimeEndian::Little,
    };
    let mut section = gimli::EhFrame::from(Reader::new(bytes, endian));
    section.set_address_size(8);
    if matches!(abi, Abi::Aarch64Big | Abi::Aarch64Little) {
        section.set_vendor(gimli::Vendor::AArch64);
    }
    let bases = gimli::BaseAddresses::default().set_eh_frame(ADDR);
    let mut context = gimli::UnwindContext::<usize, Deep>::new_in();
    let mut fdes = Vec::new();
    let mut entries = section.entries(&bases);
    // Of a section that gimli does not read to its end nothing is compared:
    // what is behind may be about the same code.
    loop {
        let partial = match entries.next() {
            Ok(Some(CieOrFde::Fde(partial))) => partial,
            Ok(Some(CieOrFde::Cie(_))) => continue,
            Ok(None) => return fdes,
            Err(_) => return Vec::new(),
        };
        let Ok(fde) = partial.parse(UnwindSection::cie_from_offset) else { return Vec::new() };
        let (start, Some(end)) =
            (fde.initial_address(), fde.initial_address().checked_add(fde.len()))
        else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        let mut whole = false;
        // In another column the return address is another register's.
        let column = fde.cie().return_address_register().0;
        if fde.len() <= u64::from(u32::MAX)
            && column == u16::from(registers(abi).2)
            && let Ok(mut table) = fde.rows(&section, &bases, &mut context)
        {
            while let Ok(row) = table.next_row() {
                let Some(row) = row else {
                    whole = true;
                    break;
                };
                let (from, to) = (row.start_address(), row.end_address().min(end));
                if (start..end).contains(&from) && from < to {
                    let is_signal = fde.is_signal_trampoline();
                    let marked = |row: Row| match is_signal && !row.is_outermost() {
                        true => row.with_signal(),
                        false => row,
                    };
                    rows.push((from, to, translate(abi, row).map(marked)));
                }
            }
        }
        if !whole {
            rows.clear();
        }
        fdes.push(Fde { start, end, rows });
    }
}

/// SP, FP, RA.
fn registers(abi: Abi) -> (u8, u8, u8) {
    match abi {
        Abi::Amd64Little => (7, 6, 16),
        Abi::S390xBig => (15, 11, 14),
        _ => (31, 29, 30),
    }
}

fn base(abi: Abi, register: gimli::Register) -> Option<Base> {
    let (sp, fp, _) = registers(abi);
    let number = u8::try_from(register.0).ok().filter(|&number| number < 0xfe)?;
    Some(match number {
        _ if number == sp => Base::Sp,
        _ if number == fp => Base::Fp,
        _ => Base::Reg(DwarfReg(number)),
    })
}

fn narrow(offset: i64) -> Option<i32> {
    i32::try_from(offset).ok()
}

fn rule(abi: Abi, rule: Option<RegisterRule<usize>>) -> Option<RegRule> {
    Some(match rule {
        None | Some(RegisterRule::SameValue) => RegRule::Same,
        Some(RegisterRule::Undefined) => RegRule::Undefined,
        Some(RegisterRule::Offset(offset)) => RegRule::AtCfa(narrow(offset)?),
        Some(RegisterRule::ValOffset(offset)) => RegRule::Cfa(narrow(offset)?),
        Some(RegisterRule::Register(register)) => RegRule::Reg(base(abi, register)?, 0),
        _ => return None,
    })
}

/// What a gimli row says, if a V3 table can say it.
fn translate(abi: Abi, row: &GimliRow) -> Option<Row> {
    let (sp, fp, ra) = registers(abi);
    let of = |number: u8| row.register(gimli::Register(number.into()));
    let ra = rule(abi, of(ra))?;
    if ra == RegRule::Undefined {
        return Some(Row::outermost());
    }
    let GimliCfa::RegisterAndOffset { register, offset } = *row.cfa() else { return None };
    let cfa = CfaRule::Offset(base(abi, register)?, narrow(offset)?);
    let fp = rule(abi, of(fp))?;
    let s390x = abi == Abi::S390xBig;
    let sp_is_cfa = match (of(sp), cfa) {
        (None, _) => true,
        (Some(RegisterRule::SameValue), _) => false,
        (Some(RegisterRule::Offset(_)), _) => s390x,
        (Some(RegisterRule::ValOffset(offset)), _) => offset == if s390x { -160 } else { 0 },
        (Some(RegisterRule::Register(register)), CfaRule::Offset(cfa, 0)) => {
            base(abi, register) == Some(cfa) && !s390x
        }
        _ => false,
    };
    let scaled = !s390x || (offset - 160) % 8 == 0 && narrow(offset - 160).is_some();
    let ra_fits = !matches!((ra, abi), (RegRule::Cfa(_), _) | (RegRule::Same, Abi::Amd64Little));
    if fp == RegRule::Undefined || !sp_is_cfa || !scaled || !ra_fits {
        return None;
    }
    let translated = Row::new(cfa, ra, fp);
    let aarch64 = matches!(abi, Abi::Aarch64Big | Abi::Aarch64Little);
    match row.register(gimli::AArch64::RA_SIGN_STATE).filter(|_| aarch64) {
        None | Some(RegisterRule::Constant(0)) => Some(translated),
        Some(RegisterRule::Constant(1)) => Some(translated.with_signed_ra()),
        Some(_) => None,
    }
}

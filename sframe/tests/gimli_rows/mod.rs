//! What gimli's rows say in the words of a table: the answer that tables made
//! of call frame information are held against.

use gimli::{CfaRule as GimliCfa, RegisterRule, UnwindContextStorage, UnwindTableRow};
use sframe::Abi;
use unwind_core::{BaseReg, CfaRule, DwarfReg, RegRule, Row};

/// SP, FP, RA.
pub(crate) fn registers(abi: Abi) -> (u8, u8, u8) {
    match abi {
        Abi::Amd64Little => (7, 6, 16),
        Abi::S390xBig => (15, 11, 14),
        _ => (31, 29, 30),
    }
}

fn base(abi: Abi, register: gimli::Register) -> Option<BaseReg> {
    let (sp, fp, _) = registers(abi);
    let number = u8::try_from(register.0).ok().filter(|&number| number < 0xfe)?;
    Some(match number {
        _ if number == sp => BaseReg::Sp,
        _ if number == fp => BaseReg::Fp,
        _ => BaseReg::Reg(DwarfReg(number)),
    })
}

fn narrow(offset: i64) -> Option<i32> {
    i32::try_from(offset).ok()
}

fn rule(abi: Abi, rule: Option<RegisterRule<usize>>) -> Option<RegRule> {
    Some(match rule {
        None | Some(RegisterRule::SameValue) => RegRule::SameValue,
        Some(RegisterRule::Undefined) => RegRule::Undefined,
        Some(RegisterRule::Offset(offset)) => RegRule::Offset(narrow(offset)?),
        Some(RegisterRule::ValOffset(offset)) => RegRule::ValOffset(narrow(offset)?),
        Some(RegisterRule::Register(register)) => RegRule::Register(base(abi, register)?, 0),
        _ => return None,
    })
}

/// What a gimli row says, if a V3 table can say it.
pub(crate) fn translate<S: UnwindContextStorage<usize>>(
    abi: Abi,
    row: &UnwindTableRow<usize, S>,
) -> Option<Row> {
    let (sp, fp, ra) = registers(abi);
    let of = |number: u8| row.register(gimli::Register(number.into()));
    let ra = rule(abi, of(ra))?;
    if ra == RegRule::Undefined {
        return Some(Row::outermost());
    }
    let GimliCfa::RegisterAndOffset { register, offset } = *row.cfa() else { return None };
    let cfa = CfaRule::Register(base(abi, register)?, narrow(offset)?);
    let fp = rule(abi, of(fp))?;
    let s390x = abi == Abi::S390xBig;
    let sp_is_cfa = match (of(sp), cfa) {
        (None, _) => true,
        (Some(RegisterRule::SameValue), _) => false,
        (Some(RegisterRule::Offset(offset)), _) => s390x && narrow(offset).is_some(),
        (Some(RegisterRule::ValOffset(offset)), _) => offset == if s390x { -160 } else { 0 },
        (Some(RegisterRule::Register(register)), CfaRule::Register(cfa, 0)) => {
            base(abi, register) == Some(cfa) && !s390x
        }
        _ => false,
    };
    let scaled = !s390x || (offset - 160) % 8 == 0 && narrow(offset - 160).is_some();
    let ra_fits = !matches!(
        (ra, abi),
        (RegRule::ValOffset(_) | RegRule::Register(BaseReg::Sp, _), _)
            | (RegRule::SameValue, Abi::Amd64Little)
    );
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

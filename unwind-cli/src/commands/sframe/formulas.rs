//! Rows as formulas, with the CPU's own names of registers.

use std::fmt;

use sframe::Abi;
use unwind_core::{BaseReg, CfaRule, DwarfReg, RegRule, Row};

/// A row with the ABI that names its registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) abi: Abi,
    pub(crate) row: Row,
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.row.is_context_only() {
            return f.write_str("a signal frame; its caller is not in the table");
        }
        if self.row.is_outermost() {
            return f.write_str("the outermost frame");
        }
        let link = Register(self.abi, link_register(self.abi));
        write!(f, "CFA={} ", Cfa(self.abi, self.row.cfa()))?;
        match self.row.ra() {
            RegRule::SameValue => write!(f, "RA={link}")?,
            rule => write!(f, "RA={}", Value(self.abi, rule))?,
        }
        let fp = Register(self.abi, BaseReg::Fp);
        match self.row.fp() {
            RegRule::SameValue => write!(f, " FP={fp}")?,
            rule => write!(f, " FP={}", Value(self.abi, rule))?,
        }
        if self.row.is_ra_signed() {
            f.write_str(", RA signed")?;
        }
        if self.row.is_signal() {
            f.write_str(", signal frame")?;
        }
        Ok(())
    }
}

struct Cfa(Abi, CfaRule);

impl fmt::Display for Cfa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            CfaRule::Register(base, offset) => write!(f, "{}{offset:+}", Register(self.0, base)),
            CfaRule::AtRegister(base, offset) => {
                write!(f, "*({}{offset:+})", Register(self.0, base))
            }
            CfaRule::AtRegisterPlus(base, offset, plus) => {
                write!(f, "*({}{offset:+}){:+}", Register(self.0, base), plus.bytes())
            }
        }
    }
}

struct Value(Abi, RegRule);

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            RegRule::SameValue => f.write_str("unchanged"),
            RegRule::Undefined => f.write_str("undefined"),
            RegRule::Offset(offset) => write!(f, "*(CFA{offset:+})"),
            RegRule::ValOffset(offset) => write!(f, "CFA{offset:+}"),
            RegRule::Register(base, 0) => write!(f, "{}", Register(self.0, base)),
            RegRule::Register(base, offset) => write!(f, "{}{offset:+}", Register(self.0, base)),
            RegRule::AtRegister(base, offset) => {
                write!(f, "*({}{offset:+})", Register(self.0, base))
            }
        }
    }
}

struct Register(Abi, BaseReg);

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const AMD64: [&str; 17] = [
            "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11",
            "r12", "r13", "r14", "r15", "rip",
        ];
        let Self(abi, base) = *self;
        match (abi, base) {
            (Abi::Amd64Little, BaseReg::Sp) => f.write_str("rsp"),
            (Abi::Amd64Little, BaseReg::Fp) => f.write_str("rbp"),
            (Abi::Amd64Little, BaseReg::Reg(DwarfReg(number))) => {
                match AMD64.get(usize::from(number)) {
                    Some(name) => f.write_str(name),
                    None => write!(f, "register {number}"),
                }
            }
            (Abi::Aarch64Big | Abi::Aarch64Little, BaseReg::Fp) => f.write_str("x29"),
            (Abi::Aarch64Big | Abi::Aarch64Little, BaseReg::Reg(DwarfReg(number @ 0..=30))) => {
                write!(f, "x{number}")
            }
            (Abi::S390xBig, BaseReg::Sp) => f.write_str("r15"),
            (Abi::S390xBig, BaseReg::Fp) => f.write_str("r11"),
            (Abi::S390xBig, BaseReg::Reg(DwarfReg(number @ 0..=15))) => write!(f, "r{number}"),
            (_, BaseReg::Sp) => f.write_str("sp"),
            (_, BaseReg::Fp) => f.write_str("fp"),
            (_, BaseReg::Reg(DwarfReg(number))) => write!(f, "register {number}"),
        }
    }
}

/// Where a return address is that was not saved.
fn link_register(abi: Abi) -> BaseReg {
    BaseReg::Reg(DwarfReg(match abi {
        Abi::Aarch64Big | Abi::Aarch64Little => 30,
        Abi::S390xBig => 14,
        _ => 16,
    }))
}

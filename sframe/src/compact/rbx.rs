//! Where the caller's rbx is. By it the CFA of code is found that runs others on another stack, as
//! OCaml's runs functions of C.

use unwind_core::RegRule;

/// The register's DWARF number, that of `ebx` in 32-bit code, too.
#[cfg(feature = "cfi")]
pub(crate) const REGISTER: u8 = 3;

/// A byte of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rbx(pub(crate) u8);

impl Rbx {
    pub(crate) const UNKNOWN: Self = Self(0);
    pub(crate) const SAME_VALUE: Self = Self(0xff);

    /// What says the same as a rule.
    #[cfg(feature = "cfi")]
    pub(crate) fn new(rule: RegRule) -> Self {
        let units = |offset: i32| {
            let below = offset.checked_neg().filter(|below| below % 4 == 0)?;
            u8::try_from(below / 4).ok().filter(|units| (1..0xff).contains(units))
        };
        match rule {
            RegRule::SameValue => Self::SAME_VALUE,
            RegRule::Offset(offset) => units(offset).map_or(Self::UNKNOWN, Self),
            _ => Self::UNKNOWN,
        }
    }

    /// The inverse; `None` if it is not known.
    pub(crate) fn rule(self) -> Option<RegRule> {
        match self {
            Self::UNKNOWN => None,
            Self::SAME_VALUE => Some(RegRule::SameValue),
            Self(units) => Some(RegRule::Offset(i32::from(units).saturating_mul(-4))),
        }
    }
}

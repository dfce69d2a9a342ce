//! How a caller has the registers of which a row says nothing.

use arrayvec::ArrayVec;

use crate::register::DwarfReg;
use crate::rule::RegRule;

/// How the registers that calls preserve are found in the caller, but for the stack and
/// frame pointer, of which a [`Row`](crate::Row) tells.
///
/// Made by [`RowSource::register_rules`](crate::RowSource::register_rules). A register
/// without a rule is [unchanged](RegRule::SameValue).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterRules(ArrayVec<(DwarfReg, RegRule), { Self::MOST }>);

impl RegisterRules {
    /// The most registers that can have a rule: as many as AArch64's calls preserve.
    pub const MOST: usize = 10;

    /// All registers are unchanged.
    #[must_use]
    pub const fn new() -> Self {
        Self(ArrayVec::new_const())
    }

    /// Adds the rule of a register that has none yet; `false` if there is no room. A
    /// [`RegRule::Offset`] counts from the frame's CFA, the others are those of the
    /// frame, too.
    pub fn add(&mut self, register: DwarfReg, rule: RegRule) -> bool {
        self.0.try_push((register, rule)).is_ok()
    }

    /// The rule of a register.
    #[must_use]
    pub fn get(&self, register: DwarfReg) -> RegRule {
        let found = self.0.iter().find(|(number, _)| *number == register);
        found.map_or(RegRule::SameValue, |(_, rule)| *rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_is_unchanged_unless_a_rule_says_otherwise() {
        let mut rules = RegisterRules::new();
        for number in 0..10 {
            assert!(rules.add(DwarfReg(number), RegRule::Offset(-8)));
        }
        assert!(!rules.add(DwarfReg(10), RegRule::Undefined));
        assert_eq!(rules.get(DwarfReg(9)), RegRule::Offset(-8));
        assert_eq!(rules.get(DwarfReg(10)), RegRule::SameValue);
    }
}

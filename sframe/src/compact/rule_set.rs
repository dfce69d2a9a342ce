//! The rules of an image that is being made, each once.

use alloc::vec::Vec;

use crate::{
    compact::{format::MAX_RULES, rule::Rule},
    write::{lost::WriteError, work_counter},
};

/// Rules by their numbers.
#[derive(Debug, Default)]
pub(super) struct RuleSet {
    /// All but number 0.
    rules: Vec<Rule>,
    /// Their places in `rules`, in the order of the rules. Numbers, so that one more moves few bytes.
    order: Vec<u16>,
}

impl RuleSet {
    /// The number of a rule, which is added if it is new; `None` if there is no room for it.
    pub(super) fn number(&mut self, rule: Rule) -> Result<Option<u16>, WriteError> {
        if rule == Rule::NONE {
            return Ok(Some(0));
        }
        let found = self.order.binary_search_by(|place| {
            work_counter::steps(1);
            self.rules.get(usize::from(*place)).cmp(&Some(&rule))
        });
        let place = match found {
            Ok(at) => self.order.get(at).copied(),
            Err(at) => self.add(rule, at)?,
        };
        // Number 0 has no place.
        Ok(place.and_then(|place| place.checked_add(1)))
    }

    /// Adds a rule, which is at `at` in the order. Returns its place.
    fn add(&mut self, rule: Rule, at: usize) -> Result<Option<u16>, WriteError> {
        let has_room = u64::try_from(self.rules.len()).is_ok_and(|len| len < MAX_RULES - 1);
        let place = u16::try_from(self.rules.len()).ok().filter(|_| has_room);
        if let Some(place) = place {
            self.rules.try_reserve(1)?;
            self.order.try_reserve(1)?;
            self.rules.push(rule);
            self.order.insert(at, place);
        }
        Ok(place)
    }

    /// All in the order of their numbers, but for number 0.
    pub(super) fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

//! What `DW_CFA_remember_state` keeps, in memory that the caller lends.

use crate::{rules::Rules, work_counter};

/// The states that an entry remembers, innermost last.
///
/// There is room for as many as slots are lent. Compilers nest few; an entry that needs
/// more than there are ends with
/// [`TooManyRemembered`](crate::CfiError::TooManyRemembered).
#[derive(Debug)]
pub struct States<'s> {
    slots: &'s mut [Rules],
    len: usize,
}

impl<'s> States<'s> {
    /// No states yet, and room for one in each of `slots`.
    #[must_use]
    pub const fn new(slots: &'s mut [Rules]) -> Self {
        Self { slots, len: 0 }
    }

    /// The states that are remembered.
    #[must_use]
    pub fn as_slice(&self) -> &[Rules] {
        self.slots.get(..self.len).unwrap_or_default()
    }

    /// Remembers only `states`, as many of them as there is room for.
    pub fn set(&mut self, states: &[Rules]) {
        work_counter::steps(states.len());
        self.len = self.slots.len().min(states.len());
        for (slot, state) in self.slots.iter_mut().zip(states) {
            *slot = *state;
        }
    }

    /// Whether one more can be remembered.
    pub(crate) const fn has_room(&self) -> bool {
        self.len < self.slots.len()
    }

    pub(crate) fn push(&mut self, rules: &Rules) -> Option<()> {
        *self.slots.get_mut(self.len)? = *rules;
        self.len = self.len.checked_add(1)?;
        Some(())
    }

    pub(crate) fn pop(&mut self) -> Option<&Rules> {
        self.len = self.len.checked_sub(1)?;
        self.slots.get(self.len)
    }
}

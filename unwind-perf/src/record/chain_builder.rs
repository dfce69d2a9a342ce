//! Building a call chain within the limits that a recorder sets.

use core::fmt;

use super::Context;

/// How long a call chain may become.
///
/// The defaults are those of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainLimits {
    /// Addresses (`perf_event_max_stack`, or the attr's `sample_max_stack`).
    pub max_stack: usize,
    /// Marks, and the cookie (`perf_event_max_contexts_per_stack`).
    pub max_contexts: usize,
}

impl Default for ChainLimits {
    fn default() -> Self {
        Self { max_stack: 127, max_contexts: 8 }
    }
}

/// A word was left out of a call chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChainFull {
    /// All context slots are taken.
    Contexts,
    /// All address slots are taken.
    Stack,
    /// The buffer is full.
    Buffer,
    /// The part that the address belongs to was left out, or the chain ends
    /// in a cookie.
    Closed,
}

impl fmt::Display for ChainFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Contexts => "no context slot is left in the call chain",
            Self::Stack => "no address slot is left in the call chain",
            Self::Buffer => "the buffer of the call chain is full",
            Self::Closed => "the call chain takes no more addresses",
        })
    }
}

impl core::error::Error for ChainFull {}

/// Collects the words of one call chain in a caller's buffer.
///
/// Linux stores the mark and the cookie of a deferred user part one by one and
/// drops silently what finds no context slot, so that a sample can be left
/// with a mark and no cookie, which nothing can match. Here the two go in
/// together or not at all, the caller is told, and
/// [`can_defer`](Self::can_defer) answers before a stack is requested in vain.
#[derive(Debug)]
pub struct ChainBuilder<'b> {
    words: &'b mut [u64],
    len: usize,
    /// Slots left.
    limits: ChainLimits,
    closed: bool,
    dropped: u64,
}

impl<'b> ChainBuilder<'b> {
    /// An empty chain in `words`.
    #[must_use]
    pub const fn new(words: &'b mut [u64], limits: ChainLimits) -> Self {
        Self { words, len: 0, limits, closed: false, dropped: 0 }
    }

    /// Starts a part of the chain.
    ///
    /// # Errors
    ///
    /// [`ChainFull`] if there is no slot. The chain then takes no further
    /// addresses: they would seem to belong to the part before.
    pub fn context(&mut self, context: Context) -> Result<(), ChainFull> {
        self.contexts([context.word()])
    }

    /// Adds an address to the part that was started last.
    ///
    /// # Errors
    ///
    /// [`ChainFull`] if the address was left out, which
    /// [`dropped`](Self::dropped) counts.
    pub fn ip(&mut self, ip: u64) -> Result<(), ChainFull> {
        let stored = if self.closed {
            Err(ChainFull::Closed)
        } else {
            take(self.limits.max_stack, 1)
                .ok_or(ChainFull::Stack)
                .and_then(|left| self.store([ip]).map(|()| self.limits.max_stack = left))
        };
        stored.inspect_err(|_| self.dropped = self.dropped.saturating_add(1))
    }

    /// Returns whether [`defer`](Self::defer) has the slots it needs.
    #[must_use]
    pub fn can_defer(&self) -> bool {
        let room = self.words.len().saturating_sub(self.len);
        !self.closed && self.limits.max_contexts >= 2 && room >= 2
    }

    /// Ends the chain with the promise of a user part under `cookie`.
    ///
    /// # Errors
    ///
    /// [`ChainFull`] if there are no slots for both the mark and the cookie;
    /// neither is then stored.
    pub fn defer(&mut self, cookie: u64) -> Result<(), ChainFull> {
        self.contexts([Context::UserDeferred.word(), cookie])?;
        self.closed = true;
        Ok(())
    }

    /// The words so far.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        self.words.get(..self.len).unwrap_or_default()
    }

    /// How many words found no slot.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    fn contexts<const N: usize>(&mut self, words: [u64; N]) -> Result<(), ChainFull> {
        let stored = if self.closed {
            Err(ChainFull::Closed)
        } else {
            take(self.limits.max_contexts, N)
                .ok_or(ChainFull::Contexts)
                .and_then(|left| self.store(words).map(|()| self.limits.max_contexts = left))
        };
        stored.inspect_err(|_| {
            self.closed = true;
            self.dropped = self.dropped.saturating_add(u64::try_from(N).unwrap_or(u64::MAX));
        })
    }

    fn store<const N: usize>(&mut self, words: [u64; N]) -> Result<(), ChainFull> {
        let end = self.len.checked_add(N).ok_or(ChainFull::Buffer)?;
        self.words.get_mut(self.len..end).ok_or(ChainFull::Buffer)?.copy_from_slice(&words);
        self.len = end;
        Ok(())
    }
}

/// Returns what is left of `slots` after `count` of them.
fn take(slots: usize, count: usize) -> Option<usize> {
    slots.checked_sub(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ChainLimits = ChainLimits { max_stack: 3, max_contexts: 3 };

    #[test]
    fn h12_the_mark_and_the_cookie_are_stored_together_or_not_at_all() {
        for max_contexts in 0..=4 {
            let mut words = [0; 8];
            let mut chain = ChainBuilder::new(&mut words, ChainLimits { max_contexts, ..LIMITS });
            let kernel = chain.context(Context::Kernel);
            assert_eq!(kernel.is_ok(), max_contexts >= 1);
            let possible = chain.can_defer();
            let deferred = chain.defer(0x3_0000_0001);
            assert_eq!(deferred.is_ok(), possible, "can_defer tells what defer does");
            match max_contexts {
                0 => assert_eq!((deferred, chain.words()), (Err(ChainFull::Closed), &[][..])),
                1 | 2 => {
                    let kernel_only = [Context::Kernel.word()];
                    assert_eq!(
                        (deferred, chain.words()),
                        (Err(ChainFull::Contexts), &kernel_only[..])
                    );
                }
                _ => assert_eq!(
                    (deferred, chain.words()),
                    (
                        Ok(()),
                        &[Context::Kernel.word(), Context::UserDeferred.word(), 0x3_0000_0001][..]
                    )
                ),
            }
        }
    }

    #[test]
    fn h12_every_word_left_out_is_counted() {
        let mut words = [0; 8];
        let mut chain =
            ChainBuilder::new(&mut words, ChainLimits { max_stack: 2, max_contexts: 2 });
        assert_eq!(chain.context(Context::Kernel), Ok(()));
        assert_eq!(
            [chain.ip(1), chain.ip(2), chain.ip(3)],
            [Ok(()), Ok(()), Err(ChainFull::Stack)]
        );
        assert_eq!(chain.defer(5), Err(ChainFull::Contexts));
        assert_eq!(chain.dropped(), 3);
        assert_eq!(chain.words(), [Context::Kernel.word(), 1, 2]);
    }

    #[test]
    fn an_address_does_not_join_the_part_before_a_refused_one() {
        let mut words = [0; 8];
        let mut chain = ChainBuilder::new(&mut words, ChainLimits { max_contexts: 1, ..LIMITS });
        assert_eq!(chain.context(Context::Kernel), Ok(()));
        assert_eq!(chain.context(Context::User), Err(ChainFull::Contexts));
        assert_eq!(chain.ip(0x40_1000), Err(ChainFull::Closed));
        assert_eq!(chain.words(), [Context::Kernel.word()]);
    }

    #[test]
    fn nothing_follows_a_cookie() {
        let mut words = [0; 8];
        let mut chain = ChainBuilder::new(&mut words, LIMITS);
        assert_eq!(chain.defer(7), Ok(()));
        assert_eq!(chain.ip(1), Err(ChainFull::Closed));
        assert_eq!(chain.context(Context::User), Err(ChainFull::Closed));
        assert_eq!(chain.words(), [Context::UserDeferred.word(), 7]);
    }

    #[test]
    fn a_short_buffer_is_told_apart_from_short_limits() {
        let mut words = [0; 2];
        let mut chain = ChainBuilder::new(&mut words, LIMITS);
        assert_eq!(chain.context(Context::Kernel), Ok(()));
        assert!(!chain.can_defer());
        assert_eq!(chain.defer(7), Err(ChainFull::Buffer));
        assert_eq!(chain.ip(1), Err(ChainFull::Closed));
    }
}

//! Call chains: addresses, and the marks between their parts.

use super::Words;

/// A mark in a call chain: the addresses after it belong to this part
/// (`PERF_CONTEXT_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Context {
    /// A hypervisor.
    Hv,
    /// The kernel.
    Kernel,
    /// User space.
    User,
    /// User space, to come in a later record; the cookie follows.
    UserDeferred,
    /// A guest, mode unknown.
    Guest,
    /// A guest's kernel.
    GuestKernel,
    /// A guest's user space.
    GuestUser,
}

impl Context {
    /// The smallest word that is a mark: no address is that high.
    pub const FIRST_WORD: u64 = 4095_u64.wrapping_neg();

    /// Returns the word that stands for the mark.
    #[must_use]
    pub const fn word(self) -> u64 {
        let distance: u64 = match self {
            Self::Hv => 32,
            Self::Kernel => 128,
            Self::User => 512,
            Self::UserDeferred => 640,
            Self::Guest => 2048,
            Self::GuestKernel => 2176,
            Self::GuestUser => 2560,
        };
        distance.wrapping_neg()
    }

    /// Returns the mark that `word` stands for.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        Some(match word.wrapping_neg() {
            32 => Self::Hv,
            128 => Self::Kernel,
            512 => Self::User,
            640 => Self::UserDeferred,
            2048 => Self::Guest,
            2176 => Self::GuestKernel,
            2560 => Self::GuestUser,
            _ => return None,
        })
    }
}

/// One word of a call chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// A mark.
    Context(Context),
    /// The cookie of a user part that comes later: the last word, right after
    /// [`Context::UserDeferred`].
    Cookie(u64),
    /// A word in the range of marks that is not a known mark.
    UnknownContext(u64),
    /// A code address.
    Ip(u64),
}

impl Entry {
    /// Classifies a word that is not a cookie.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        match Context::from_word(word) {
            Some(context) => Self::Context(context),
            None if word >= Context::FIRST_WORD => Self::UnknownContext(word),
            None => Self::Ip(word),
        }
    }
}

/// What a call chain says of its user part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UserPart {
    /// It is in the chain, or there is none.
    Inline,
    /// It comes in a later record with this cookie.
    Deferred(u64),
    /// It was deferred, but the chain had no room for the cookie, so no record
    /// can be identified as its own.
    ///
    /// Linux leaves the cookie out when the marks and the cookie need more
    /// context slots than `perf_event_max_contexts_per_stack` grants.
    CookieLost,
}

/// The call chain of a sample, in place.
#[derive(Clone, Copy, Debug)]
pub struct Callchain<'a> {
    words: Words<'a>,
}

impl<'a> Callchain<'a> {
    /// A chain of these words.
    #[must_use]
    pub const fn new(words: Words<'a>) -> Self {
        Self { words }
    }

    /// All words as recorded, marks and cookie included.
    #[must_use]
    pub const fn words(self) -> Words<'a> {
        self.words
    }

    /// Returns how the chain's user part is recorded.
    #[must_use]
    pub fn user_part(self) -> UserPart {
        let deferred = Some(Context::UserDeferred.word());
        let mut words = self.words;
        let last = words.next_back();
        match (words.next_back(), last) {
            (mark, Some(cookie)) if mark == deferred => UserPart::Deferred(cookie),
            (_, last) if last == deferred => UserPart::CookieLost,
            _ => UserPart::Inline,
        }
    }

    /// Returns the words without what only announces the later record: the
    /// cookie. The mark in front of it stays.
    #[must_use]
    pub fn without_cookie(self) -> Words<'a> {
        match self.user_part() {
            UserPart::Deferred(_) => self.words.without_last(),
            UserPart::Inline | UserPart::CookieLost => self.words,
        }
    }

    /// Returns the entries, innermost first.
    pub fn entries(self) -> impl Iterator<Item = Entry> + Clone + 'a {
        let cookie = match self.user_part() {
            UserPart::Deferred(cookie) => Some(Entry::Cookie(cookie)),
            UserPart::Inline | UserPart::CookieLost => None,
        };
        self.without_cookie().map(Entry::from_word).chain(cookie)
    }
}

/// The words, marks and cookie included.
impl<'a> IntoIterator for Callchain<'a> {
    type Item = u64;
    type IntoIter = Words<'a>;

    fn into_iter(self) -> Words<'a> {
        self.words
    }
}

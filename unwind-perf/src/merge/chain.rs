//! The chain that a merge makes.

use crate::record::{Callchain, Context, Entry};

/// Returns the words of `chain` with its deferred user part filled in: the
/// mark [`Context::User`] and `stack` take the place of the deferred mark and
/// the cookie.
///
/// The deferred mark must not stay: in front of a stack of one address, a
/// reader would take the address for a cookie. A chain whose user part was
/// not deferred stays as it is.
///
/// A stack that begins with the mark of a guest is that of what a vCPU executes. The thread that the sample is of
/// has entered the guest, so it comes after the guest's frames.
pub fn whole_chain<'a>(
    chain: Callchain<'a>,
    stack: &'a [u64],
) -> impl Iterator<Item = u64> + Clone + 'a {
    let deferred = Context::UserDeferred.word();
    let mut words = chain.without_cookie();
    let has_mark = words.clone().next_back() == Some(deferred);
    if has_mark {
        words.next_back();
    }
    let stack = if has_mark { stack } else { &[] };
    let is_guest = stack.first().is_some_and(|&word| is_guest(word));
    let (guest, stack) = if is_guest { (stack, &[][..]) } else { (&[][..], stack) };
    let mark = (has_mark && !is_guest).then(|| Context::User.word());
    guest.iter().copied().chain(words).chain(mark).chain(stack.iter().copied())
}

const fn is_guest(word: u64) -> bool {
    use Context::{Guest, GuestKernel, GuestUser};
    matches!(Entry::from_word(word), Entry::Context(Guest | GuestKernel | GuestUser))
}

//! The chain that a merge makes.

use crate::record::{Callchain, Context};

/// Returns the words of `chain` with its deferred user part filled in: the
/// mark [`Context::User`] and `stack` take the place of the deferred mark and
/// the cookie.
///
/// The deferred mark must not stay: in front of a stack of one address, a
/// reader would take the address for a cookie. A chain whose user part was
/// not deferred stays as it is.
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
    let mark = has_mark.then(|| Context::User.word());
    let stack = if has_mark { stack } else { &[] };
    words.chain(mark).chain(stack.iter().copied())
}

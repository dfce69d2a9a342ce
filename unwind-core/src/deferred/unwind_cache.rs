//! What a task keeps of the stack of one kernel entry.

use core::fmt;

use super::cookie::Cookie;
use super::registration::InstanceId;
use crate::trace::{PackedFrame, Trace};

/// What a task keeps for one kernel entry: the trace of its user stack, and which entry
/// of which instance that is.
///
/// A delivery walks the stack of an entry once, into the cache that it is lent. Whoever
/// lends the same cache again in that entry, to a delivery or to
/// [`DeferredUnwind::stack`](super::DeferredUnwind::stack), has the trace without another
/// walk. The cache may live in the task, or in a pool for all tasks of an instance.
///
/// Like [`Trace`], a cache is made with room for `N` frames, `UnwindCache<[PackedFrame; N]>`,
/// and lent as an `UnwindCache`: at most `9 * N + 64` bytes. One whose bytes are all zero is a
/// [new](UnwindCache::new) one.
#[derive(Clone)]
#[repr(C)]
pub struct UnwindCache<F: ?Sized = [PackedFrame]> {
    /// Of which kernel entry the walk is.
    stack_of: StackOf,
    trace: Trace<F>,
}

/// A kernel entry of a task of any instance: cookies are unique within an
/// instance only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct StackOf {
    instance: InstanceId,
    /// `None`, which is zero, if it is of no entry.
    cookie: Option<Cookie>,
}

impl StackOf {
    const NONE: Self = Self { instance: InstanceId::NONE, cookie: None };

    pub(crate) const fn new(instance: InstanceId, cookie: Cookie) -> Self {
        Self { instance, cookie: Some(cookie) }
    }
}

const _: () = {
    assert!(size_of::<UnwindCache<[PackedFrame; 510]>>() <= 9 * 510 + 64, "the documented size");
    assert!(size_of::<UnwindCache<[PackedFrame; 16]>>() <= 9 * 16 + 64, "the documented size");
};

impl<const N: usize> UnwindCache<[PackedFrame; N]> {
    /// A cache without a stack.
    #[must_use]
    pub const fn new() -> Self {
        Self { stack_of: StackOf::NONE, trace: Trace::<[PackedFrame; N]>::new() }
    }
}

impl<F: ?Sized> UnwindCache<F> {
    /// Forgets the stack.
    pub const fn clear(&mut self) {
        self.stack_of = StackOf::NONE;
        self.trace.clear();
    }

    /// The stack, without frames if none was walked.
    #[must_use]
    pub const fn trace(&self) -> &Trace<F> {
        &self.trace
    }

    /// The trace, for a walk that is of no kernel entry: the stack of one is forgotten.
    #[must_use]
    pub const fn trace_mut(&mut self) -> &mut Trace<F> {
        self.clear();
        &mut self.trace
    }

    /// The kernel entry of which this is the stack; `None` if none was walked.
    #[must_use]
    pub const fn cookie(&self) -> Option<Cookie> {
        self.stack_of.cookie
    }
}

impl UnwindCache {
    /// The stack of an entry, by `walk` if it is not there yet. Without a walk it has no
    /// frames.
    pub(crate) fn stack(
        &mut self,
        of: StackOf,
        walk: &mut Option<impl FnOnce(&mut Trace)>,
    ) -> &Trace {
        if self.stack_of != of {
            self.clear();
            if let Some(walk) = walk.take() {
                walk(&mut self.trace);
            }
            // Not before: a walk that panics leaves no stack.
            self.stack_of = of;
        }
        &self.trace
    }
}

impl<const N: usize> Default for UnwindCache<[PackedFrame; N]> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: AsRef<[PackedFrame]> + ?Sized> fmt::Debug for UnwindCache<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnwindCache")
            .field("cookie", &self.cookie())
            .field("trace", &&self.trace)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_that_nobody_walks_has_no_frames_and_is_that_of_its_entry() {
        let mut cache = UnwindCache::<[PackedFrame; 4]>::new();
        let lent: &mut UnwindCache = &mut cache;
        let of = StackOf::new(InstanceId::NONE, Cookie::new(1).unwrap());
        let mut walk = None::<fn(&mut Trace)>;
        assert!(lent.stack(of, &mut walk).is_empty());
        assert_eq!(lent.cookie().map(Cookie::get), Some(1));
    }
}

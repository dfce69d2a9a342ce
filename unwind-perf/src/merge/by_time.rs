//! Cookies for streams whose records have none.

use alloc::collections::BTreeMap;

/// Gives the kernel entries of threads cookies in a stream whose records have none
/// ([`DeferredLayout::MarkerFirst`](crate::record::DeferredLayout::MarkerFirst)).
///
/// In such a stream the next stack of a thread is that of all its samples since the last
/// one, as far as nothing was lost: the kernel that writes these records does so before the
/// thread returns to user mode, once for each event that has samples. So the samples from
/// one stack to the next have one cookie here, and a loss ends all of them: what waits then
/// could be given the stack of a later entry.
///
/// The input has to be in order of time ([`Reorder`](super::Reorder)), of all CPUs; a stream
/// without times cannot be joined.
///
/// ```
/// use unwind_perf::merge::CookiesByTime;
///
/// let mut cookies = CookiesByTime::new();
/// let (first, second) = (cookies.of_sample(7), cookies.of_sample(7));
/// assert_eq!((first, cookies.of_stack(7)), (second, Some(first)));
/// // Another event's record of the same stack.
/// assert_eq!(cookies.of_stack(7), None);
/// assert_ne!(cookies.of_sample(7), first);
/// ```
#[derive(Clone, Debug, Default)]
pub struct CookiesByTime {
    /// By thread, that of the samples since its last stack.
    open: BTreeMap<u32, u64>,
    /// How many were given out.
    given: u64,
}

impl CookiesByTime {
    /// No sample has come.
    #[must_use]
    pub const fn new() -> Self {
        Self { open: BTreeMap::new(), given: 0 }
    }

    /// The cookie of a sample of the thread `tid`.
    pub fn of_sample(&mut self, tid: u32) -> u64 {
        let given = &mut self.given;
        *self.open.entry(tid).or_insert_with(|| {
            *given = given.saturating_add(1);
            *given
        })
    }

    /// The cookie of a stack of the thread; `None` if no sample waits for it.
    pub fn of_stack(&mut self, tid: u32) -> Option<u64> {
        self.open.remove(&tid)
    }

    /// Takes the end of a thread: its number may be given to another one.
    pub fn exit(&mut self, tid: u32) {
        self.open.remove(&tid);
    }

    /// Takes a loss of records, which may be stacks of any thread.
    pub fn lost(&mut self) {
        self.open.clear();
    }
}

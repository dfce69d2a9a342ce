//! The events of a task's life: return to user code, exec, exit.

use super::word::TaskWord;
use super::{CookieSource, DeferredUnwind, Host, TaskState};

/// Whether a task may continue to user code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a pending task has to deliver first"]
pub enum UserReturn {
    /// It may. The entry is over: what is asked from here on belongs to the
    /// next one.
    Ready,
    /// Something was asked for that is not delivered yet. The entry continues.
    Pending,
}

/// # Life cycle
impl<H: Host, C: CookieSource> DeferredUnwind<H, C> {
    /// Ends the kernel entry on the task's way to user code, after the
    /// deliveries: one load and one branch if nothing was asked for.
    ///
    /// It calls no hook of the host but [`Host::state`]. An NMI that asks
    /// before this is done leads to [`UserReturn::Pending`]; one that asks
    /// afterwards has the cookie of the next entry, and its
    /// [`schedule`](Host::schedule) sees to a delivery.
    ///
    /// A delivery that is not at its end, as its guard was leaked or is still in
    /// scope, ends here and is [counted](super::DropCounts::unfinished). If it
    /// has left someone out this is [`UserReturn::Pending`], and the next
    /// delivery calls them.
    #[inline]
    pub fn user_return(&self, task: &H::Task) -> UserReturn {
        let state = self.host().state(task);
        if state.word().is_used() { self.end_entry(state, |word| word) } else { UserReturn::Ready }
    }

    /// Refuses requests from here on: the task's user code is about to go.
    ///
    /// What was asked for before stays pending. An exit delivers it while the
    /// task's memory is there, or abandons it; an exec does so at its point of
    /// no return, and then [`reopen`](Self::reopen)s the task as its new
    /// program. A delivery that is not at its end, as that of a task that died in
    /// it, ends here as in [`user_return`](Self::user_return).
    pub fn close(&self, task: &H::Task) {
        let state = self.host().state(task);
        state.set_flags(TaskWord::CLOSED);
        self.end_unfinished(state);
    }

    /// Grants requests again after [`close`](Self::close), in a new kernel
    /// entry: the stack of the new program never goes out under a cookie from
    /// before.
    pub fn reopen(&self, task: &H::Task) -> UserReturn {
        self.end_entry(self.host().state(task), TaskWord::without_closed)
    }

    #[cold]
    pub(crate) fn end_entry(
        &self,
        state: &TaskState,
        open: impl Fn(TaskWord) -> TaskWord,
    ) -> UserReturn {
        self.end_unfinished(state);
        loop {
            let word = state.word();
            if word.is_pending() {
                return UserReturn::Pending;
            }
            let next = open(word.next_entry());
            state.cookie.prepare::<C>(word.version(), next.version());
            if state.replace_word(word, next) {
                state.forget_served();
                return UserReturn::Ready;
            }
        }
    }

    /// Ends a delivery that runs though its task continues. Whoever asked and was
    /// not called is pending again.
    fn end_unfinished(&self, state: &TaskState) {
        let Some(called) = state.delivery.end_any(self.clients()) else { return };
        self.counters().unfinished();
        if called.is_some() {
            self.counters().leaked_call();
        }
        // Served marks are of this entry where the request's is there.
        if !state.word().asked().difference(state.served().slots()).is_empty() {
            state.set_flags(TaskWord::PENDING);
        }
    }
}

//! What a task carries for deferred unwinding.

use core::fmt;

use super::client::{Epoch, Slot};
use super::client_table::ClientTable;
use super::cookie_cell::CookieCell;
use super::delivery_state::DeliveryState;
use super::word::{Served, TaskWord};
use crate::sync::{AtomicU64, Ordering, const_unless_loom};

/// The block of a task, to be embedded by value: a few atomics, always
/// borrowed shared, nothing to free. A block whose bytes are all zero is a
/// [new](Self::new) one.
///
/// A task that is created, also by fork, starts with
/// [`TaskState::new`]: nothing is inherited. A kernel that copies the parent's
/// task structure bytewise overwrites the child's block with it before the
/// child can run.
///
/// # Marks and slots
///
/// A mark is a bit of the client's slot, and slots are reused. The block says
/// up to which registration its marks account for the owners of their slots: a
/// mark of a slot whose owner registered later is a former owner's and does not
/// count, and the first request by a later client takes such marks out. So a
/// cancellation need not visit the tasks, and a host need not be able to list
/// them.
///
/// # Memory ordering
///
/// The block may be used by one CPU after the other, as the task migrates, if
/// the scheduler orders the two as it must for the task's own data. Requests
/// may also come from other CPUs at the same time.
#[repr(C, align(8))]
pub struct TaskState {
    word: AtomicU64,
    served: AtomicU64,
    /// [`Epoch`]: the registrations that the marks account for.
    epoch: AtomicU64,
    pub(crate) cookie: CookieCell,
    pub(crate) delivery: DeliveryState,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<TaskState>() <= 48, "the documented size");

impl TaskState {
    const_unless_loom! {
        /// The block of a task about which no client has asked: 48 bytes.
        #[must_use]
        pub fn new() -> Self {
            Self {
                word: AtomicU64::new(0),
                served: AtomicU64::new(0),
                epoch: AtomicU64::new(0),
                cookie: CookieCell::new(),
                delivery: DeliveryState::new(),
            }
        }
    }

    #[inline]
    pub(crate) fn word(&self) -> TaskWord {
        TaskWord::from_bits(self.word.load(Ordering::Acquire))
    }

    /// Replaces the word if it still is `old`, which was read by
    /// [`word`](Self::word).
    #[inline]
    pub(crate) fn replace_word(&self, old: TaskWord, new: TaskWord) -> bool {
        let (done, failed) = (Ordering::Release, Ordering::Relaxed);
        self.word.compare_exchange(old.bits(), new.bits(), done, failed).is_ok()
    }

    /// Sets flags of the word, whatever it is. They say nothing of what was done
    /// before, and what requests have done before is ordered as it was: this is
    /// one more exchange in their row.
    pub(crate) fn set_flags(&self, flags: TaskWord) {
        self.word.fetch_or(flags.bits(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn served(&self) -> Served {
        Served::from_bits(self.served.load(Ordering::Acquire))
    }

    /// Notes that a delivery goes to the client of `slot`. Whoever sees the mark
    /// sees the request that it answers.
    pub(crate) fn serve(&self, slot: Slot) {
        self.served.fetch_or(Served::mark(slot).bits(), Ordering::Release);
    }

    /// Takes marks out if nothing has changed. Whoever finds no mark any more
    /// sees that its entry is over.
    fn replace_served(&self, old: Served, new: Served) -> bool {
        let (done, failed) = (Ordering::Release, Ordering::Relaxed);
        self.served.compare_exchange(old.bits(), new.bits(), done, failed).is_ok()
    }

    /// Takes out the served mark of a client that has not asked in this entry:
    /// it is from before. Returns whether there was a mark.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_out_served(&self, slot: Slot) -> bool {
        let served = self.served();
        if served.has(slot) && !self.word().has_asked(slot) {
            // If it fails, something was served or taken out since, and
            // another attempt finds out what.
            self.replace_served(served, served.take_out(slot.set()));
        }
        served.has(slot)
    }

    /// Forgets who was served, in a new entry.
    pub(crate) fn forget_served(&self) {
        loop {
            let served = self.served();
            if self.replace_served(served, served.take_out(served.slots())) {
                return;
            }
        }
    }

    /// Drops the request of a client of `slot` that is gone. Returns whether it
    /// did: the mark may have become that of a new owner, who is not.
    pub(crate) fn drop_request(&self, slot: Slot, clients: &ClientTable) -> bool {
        loop {
            let word = self.word();
            if !word.has_asked(slot) || clients.has_owner(slot, self.epoch()) {
                return false;
            }
            if self.replace_word(word, word.without(slot)) {
                return true;
            }
        }
    }

    /// The registrations that the marks account for.
    #[inline]
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch::from_bits(self.epoch.load(Ordering::Acquire))
    }

    /// Makes the marks account for all of `clients`, if nothing comes between:
    /// the caller reads the word again, sees what is so and tries again.
    /// Returns how many requests of cancelled clients were dropped.
    ///
    /// `word` was read before anything else. The order matters:
    ///
    /// 1. What the marks accounted for; then the newest registration; then
    ///    which slots have been taken since. A slot that is taken after
    ///    `newest` was read may be missed: its marks still do not count.
    /// 2. Marks of former owners leave the word, which changes in any case. A
    ///    request of a former owner that has checked its id but not made its
    ///    mark expects the old word, fails and checks its id again.
    /// 3. Only then the marks account for more. Another request may have come
    ///    as far with a newer registration.
    #[cold]
    #[inline(never)]
    pub(crate) fn account(&self, word: TaskWord, clients: &ClientTable) -> u32 {
        let epoch = self.epoch();
        let newest = clients.newest();
        let taken = clients.taken_after(epoch);
        let served = self.served().slots();
        if !self.replace_word(word, word.purge(taken)) {
            return 0;
        }
        self.epoch.fetch_max(newest.to_bits(), Ordering::Release);
        word.asked().intersection(taken).difference(served).len()
    }
}

impl Default for TaskState {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word();
        f.debug_struct("TaskState")
            .field("entry", &word.version().number())
            .field("asked", &format_args!("{:#034b}", word.asked().bits()))
            .field("served", &format_args!("{:#034b}", self.served().slots().bits()))
            .field("pending", &word.is_pending())
            .field("used", &word.is_used())
            .field("closed", &word.is_closed())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn slots<const COUNT: usize>() -> [Slot; COUNT] {
        let mut all = Slot::all();
        core::array::from_fn(|_| all.next().unwrap())
    }

    #[test]
    fn only_a_served_mark_without_a_request_in_this_entry_is_taken_out() {
        let [asked, not_asked, never] = slots();
        let state = TaskState::new();
        assert!(state.replace_word(state.word(), state.word().ask(asked)));
        state.serve(asked);
        state.serve(not_asked);
        let before = state.served();
        state.take_out_served(asked);
        state.take_out_served(never);
        assert_eq!(state.served(), before);
        state.take_out_served(not_asked);
        assert_eq!(state.served().slots(), asked.set());
    }

    #[test]
    fn a_new_entry_forgets_all_served_marks_and_a_late_access_to_them_fails() {
        let [first, second] = slots();
        let state = TaskState::new();
        state.serve(first);
        state.serve(second);
        let before = state.served();
        state.forget_served();
        assert!(state.served().slots().is_empty());
        state.serve(first);
        state.serve(second);
        assert!(!state.replace_served(before, before.take_out(first.set())));
    }
}

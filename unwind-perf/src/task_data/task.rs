//! What a task carries for its PMU data.

use core::fmt;

use super::DataHandle;
use crate::sync::{AtomicU64, Ordering, const_unless_loom};

/// The block of a task: one word, to be embedded by value.
///
/// A task that is created, also by fork, starts with [`TaskData::new`]:
/// nothing is inherited. The child's data comes by
/// [`TaskDataUsers::fork`](super::TaskDataUsers::fork) if it is due.
pub struct TaskData {
    word: AtomicU64,
}

impl TaskData {
    const_unless_loom! {
        /// The block of a task without data: 8 bytes.
        #[must_use]
        pub fn new() -> Self {
            Self { word: AtomicU64::new(DataWord::EMPTY.0) }
        }
    }

    /// The task's data, if it has any. One load.
    ///
    /// The host opens a read section before and closes it when it is done with
    /// the memory: until then it is not freed. See
    /// [`DataHost::free_after_readers`](super::DataHost::free_after_readers).
    #[must_use]
    pub fn handle(&self) -> Option<DataHandle> {
        self.word().handle()
    }

    /// How many references hold the data: one for each event of this task, and
    /// one for all system-wide events together.
    #[must_use]
    pub fn users(&self) -> u32 {
        self.word().users()
    }

    /// Whether one of the references is that of the system-wide events.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        self.word().is_marked()
    }

    /// Whether the task has gone through its exit: it has no data and gets
    /// none any more.
    #[must_use]
    pub fn is_exited(&self) -> bool {
        self.word().is_exited()
    }

    pub(super) fn word(&self) -> DataWord {
        DataWord(self.word.load(Ordering::Acquire))
    }

    /// Replaces the word if it still is `old`; else returns the word that is
    /// there.
    ///
    /// Only a caller that has replaced the word uses its data: a failure
    /// acquires nothing.
    pub(super) fn replace(&self, old: DataWord, new: DataWord) -> Result<(), DataWord> {
        let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        match self.word.compare_exchange(old.0, new.0, done, failed) {
            Ok(_) => Ok(()),
            Err(found) => Err(DataWord(found)),
        }
    }

    /// Marks the task as exited, so that nothing attaches any more. Returns the
    /// word before that.
    ///
    /// Each user of the data has released it by [`replace`](Self::replace); no
    /// caller gets data from the word any more.
    pub(super) fn close(&self) -> DataWord {
        DataWord(self.word.fetch_or(DataWord::EXITED, Ordering::Acquire))
    }
}

impl Default for TaskData {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TaskData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word();
        f.debug_struct("TaskData")
            .field("handle", &word.handle())
            .field("users", &word.users())
            .field("marked", &word.is_marked())
            .field("exited", &word.is_exited())
            .finish()
    }
}

/// The state of a task's data.
///
/// | bits | meaning |
/// |---|---|
/// | 0-39 | the handle, if there are users |
/// | 40-61 | how many users |
/// | 62 | one of them is the system-wide events' |
/// | 63 | the task has exited: the rest is as it was then, and counts no more |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataWord(u64);

impl DataWord {
    const EMPTY: Self = Self(0);
    const EXITED: u64 = 1 << 63;
    const MARK: u64 = 1 << 62;
    const USER: u64 = 1 << DataHandle::BITS;
    const HANDLE: u64 = Self::USER - 1;
    const USERS: u64 = (Self::MARK - 1) & !Self::HANDLE;

    /// With this data, which is the word's own if it has any.
    pub(super) const fn with_handle(self, handle: DataHandle) -> Self {
        Self((self.0 & !Self::HANDLE) | handle.bits())
    }

    pub(super) fn handle(self) -> Option<DataHandle> {
        if self.is_exited() { None } else { self.last_handle() }
    }

    /// The handle, also if the task has exited with it.
    pub(super) fn last_handle(self) -> Option<DataHandle> {
        let used = self.0 & Self::USERS != 0;
        used.then_some(DataHandle::from_bits(self.0 & Self::HANDLE))
    }

    pub(super) fn users(self) -> u32 {
        if self.is_exited() {
            return 0;
        }
        u32::try_from((self.0 & Self::USERS) >> DataHandle::BITS).unwrap_or(u32::MAX)
    }

    pub(super) const fn is_marked(self) -> bool {
        self.0 & Self::MARK != 0 && !self.is_exited()
    }

    pub(super) const fn is_exited(self) -> bool {
        self.0 & Self::EXITED != 0
    }

    /// With one user more, or `None` if there are as many as can be counted.
    pub(super) const fn with_user(self) -> Option<Self> {
        if self.0 & Self::USERS == Self::USERS {
            return None;
        }
        Some(Self(self.0.wrapping_add(Self::USER)))
    }

    /// With the mark, whose reference the caller has added.
    pub(super) const fn with_mark(self) -> Self {
        Self(self.0 | Self::MARK)
    }

    pub(super) const fn without_mark(self) -> Self {
        Self(self.0 & !Self::MARK)
    }

    /// With one user less: with none, there is no data.
    pub(super) const fn without_user(self) -> Self {
        let left = self.0.saturating_sub(Self::USER);
        if left & Self::USERS == 0 { Self::EMPTY } else { Self(left) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handle_goes_with_the_last_user() {
        let handle = DataHandle::new(0xff_ffff, 0xffff).unwrap();
        let one = DataWord::EMPTY.with_handle(handle).with_user().unwrap();
        assert_eq!((one.handle(), one.users(), one.is_marked()), (Some(handle), 1, false));
        let two = one.with_user().unwrap().with_mark();
        assert_eq!((two.handle(), two.users(), two.is_marked()), (Some(handle), 2, true));
        let left = two.without_mark().without_user();
        assert_eq!(left, one);
        assert_eq!(left.without_user(), DataWord::EMPTY);
        assert_eq!(DataWord::EMPTY.handle(), None);
    }

    #[test]
    fn p3_an_exited_task_has_nothing_but_tells_what_it_had() {
        let handle = DataHandle::new(3, 9).unwrap();
        let before = DataWord::EMPTY.with_handle(handle).with_user().unwrap().with_mark();
        for (before, last) in [(before, Some(handle)), (DataWord::EMPTY, None)] {
            let after = DataWord(before.0 | DataWord::EXITED);
            assert!(after.is_exited() && !after.is_marked());
            assert_eq!((after.handle(), after.users(), after.last_handle()), (None, 0, last));
        }
    }

    #[test]
    fn x2_users_are_counted_as_far_as_the_word_goes() {
        let handle = DataHandle::new(1, 1).unwrap();
        let full = DataWord(handle.bits() | DataWord::USERS);
        assert_eq!(full.users(), (1 << 22) - 1);
        assert_eq!(full.with_user(), None);
        assert_eq!(full.handle(), Some(handle));
    }
}

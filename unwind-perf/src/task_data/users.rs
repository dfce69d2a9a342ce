//! Who needs the data of tasks: events of one task, and events of all.

use core::convert::Infallible;
use core::fmt;

use super::system_wide::{Phase, SystemWide};
use super::task::DataWord;
use super::{
    AllAttachment, AttachError, DataHandle, DataHost, DataLayout, DetachError, DetachReason,
    TaskAttachment, TaskData,
};
use crate::instance::Instance;
use crate::sync::{AtomicU64, Ordering, Statistic, const_unless_loom, fence};

/// The users of one PMU's task data, in a system.
///
/// A PMU whose data has another layout has users and blocks of its own.
pub struct TaskDataUsers {
    instance: Instance,
    layout: Option<DataLayout>,
    all: AtomicU64,
    allocated: Statistic,
    freed: Statistic,
    missed_forks: Statistic,
}

impl TaskDataUsers {
    const_unless_loom! {
        /// No users. `layout` is what the PMU needs for each task; a PMU that
        /// keeps nothing has `None`, and attaching is refused.
        #[must_use]
        pub fn new(layout: Option<DataLayout>) -> Self {
            Self {
                instance: Instance::new(),
                layout,
                all: AtomicU64::new(SystemWide::OFF.bits()),
                allocated: Statistic::new(),
                freed: Statistic::new(),
                missed_forks: Statistic::new(),
            }
        }
    }

    /// An event of `task` needs its data: the task has some when this returns.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; opening the event fails with it.
    pub fn attach_task<H: DataHost>(
        &self,
        host: &H,
        task: &H::Task,
    ) -> Result<TaskAttachment, AttachError> {
        let handle = self.join(host, host.data(task), DataWord::with_user)?;
        Ok(TaskAttachment { users: self.instance.number(), handle })
    }

    /// The event is gone. `task` is the one that it was attached to.
    ///
    /// The last user frees the data. If the task has exited, its data is
    /// already freed.
    ///
    /// # Errors
    ///
    /// [`DetachError`] with the attachment if `task` is another one, or if
    /// these are not the users that it is from; nothing is changed then.
    pub fn detach_task<H: DataHost>(
        &self,
        host: &H,
        task: &H::Task,
        attachment: TaskAttachment,
    ) -> Result<(), DetachError<TaskAttachment>> {
        if attachment.users != self.instance.number() {
            return Err(DetachError { reason: DetachReason::OtherUsers, attachment });
        }
        let (data, handle) = (host.data(task), Some(attachment.handle));
        let left =
            self.leave(host, data, |word| (word.handle() == handle).then(|| word.without_user()));
        // An exit has taken the data away, and left the handle to tell by.
        let word = data.word();
        let went_before = word.is_exited() && word.last_handle() == handle;
        if left || went_before {
            return Ok(());
        }
        Err(DetachError { reason: DetachReason::OtherTask, attachment })
    }

    /// A system-wide event needs the data of all tasks that are
    /// [wanted](DataHost::is_wanted): each has some when this returns, and each
    /// that is forked later gets some. Events after the first are only counted.
    ///
    /// An event about the tasks of a group is one with a filter. The host puts the group into
    /// its filter, calls [`refilter`](Self::refilter) and then this; at the end it calls
    /// [`detach_all`](Self::detach_all), takes the group out and calls `refilter` again.
    ///
    /// # Errors
    ///
    /// [`AttachError`], after everything is undone.
    pub fn attach_all<H: DataHost>(&self, host: &H) -> Result<AllAttachment, AttachError> {
        if self.layout.is_none() {
            return Err(AttachError::NoLayout);
        }
        loop {
            let all = self.all();
            let next = match all.phase() {
                Phase::On => all.with_user().ok_or(AttachError::TooManyUsers)?,
                Phase::Off => all.next(Phase::Attaching),
                Phase::Attaching | Phase::Detaching => {
                    host.relax();
                    continue;
                }
            };
            if !self.replace_all(all, next) {
                continue;
            }
            if all.phase() == Phase::Off {
                self.mark_all(host, next)?;
            }
            return Ok(AllAttachment { users: self.instance.number() });
        }
    }

    /// The system-wide event is gone. The last one frees the data of each task
    /// whose own events do not need it.
    ///
    /// # Errors
    ///
    /// [`DetachError`] with the attachment if these are not the users that it
    /// is from; nothing is changed then.
    pub fn detach_all<H: DataHost>(
        &self,
        host: &H,
        attachment: AllAttachment,
    ) -> Result<(), DetachError<AllAttachment>> {
        if attachment.users != self.instance.number() {
            return Err(DetachError { reason: DetachReason::OtherUsers, attachment });
        }
        // While there is an attachment of these users they are on, or their filter has changed
        // and a walk is under way.
        loop {
            let all = self.all();
            match all.phase() {
                Phase::On => {}
                Phase::Attaching => {
                    host.relax();
                    continue;
                }
                Phase::Off | Phase::Detaching => {
                    return Err(DetachError { reason: DetachReason::OtherUsers, attachment });
                }
            }
            let next = all.without_user().unwrap_or(all.next(Phase::Detaching));
            if self.replace_all(all, next) {
                if next.phase() == Phase::Detaching {
                    self.unmark_all(host, next);
                }
                return Ok(());
            }
        }
    }

    /// Which tasks are [wanted](DataHost::is_wanted) has changed, for any number of them: those
    /// that are now, have data when this returns, and the others have not, unless by an event
    /// of their own. Nothing to do while there are no system-wide events. Task context; waits
    /// for another one's walk over the tasks.
    ///
    /// # Errors
    ///
    /// [`AttachError::NoMemory`]: some tasks that are wanted go without. The host takes back what
    /// it has changed and calls this again, which then needs no memory.
    pub fn refilter<H: DataHost>(&self, host: &H) -> Result<(), AttachError> {
        loop {
            // The host has changed its filter before: an event that comes at the same time is
            // seen here, or its walk sees the change.
            let all = self.latest();
            match all.phase() {
                Phase::Off => return Ok(()),
                Phase::On if self.replace_all(all, all.again()) => {
                    let fitted = self.each_task(host, |task| self.fit(host, task));
                    // Relaxed: a fence follows each mark.
                    self.all.store(all.again().on_again().bits(), Ordering::Relaxed);
                    return fitted;
                }
                Phase::On => {}
                Phase::Attaching | Phase::Detaching => host.relax(),
            }
        }
    }

    /// Whether `task` is [wanted](DataHost::is_wanted) has changed, as it has moved to another
    /// group: it has data or none, accordingly. Task context; never waits, may allocate.
    ///
    /// # Errors
    ///
    /// [`AttachError::NoMemory`]: the task goes without, until it is moved again or the filter
    /// is changed.
    pub fn moved<H: DataHost>(&self, host: &H, task: &H::Task) -> Result<(), AttachError> {
        self.follow(host, task)
    }

    /// `child` has been created and can be found by
    /// [`DataHost::next_task`], but has not run yet: if there are system-wide
    /// events it gets its data.
    ///
    /// # Errors
    ///
    /// [`AttachError::NoMemory`]: the child goes without, which costs it what
    /// the hardware recorded before each of its switches. It is counted.
    pub fn fork<H: DataHost>(&self, host: &H, child: &H::Task) -> Result<(), AttachError> {
        self.follow(host, child).inspect_err(|_| self.missed_forks.count())
    }

    /// `task` is exiting: its data is freed, even with users, and none is
    /// allocated again.
    ///
    /// One exchange and at most one
    /// [`free_after_readers`](DataHost::free_after_readers): nothing here
    /// waits for a walk over the tasks or makes one wait.
    pub fn exit<H: DataHost>(&self, host: &H, task: &H::Task) {
        if let Some(handle) = host.data(task).close().handle() {
            self.free(host, handle);
        }
    }

    /// How many system-wide events there are.
    #[must_use]
    pub fn system_wide(&self) -> u32 {
        self.all().users()
    }

    /// How many blocks have been allocated and freed, and how many forks were
    /// missed.
    #[must_use]
    pub fn counters(&self) -> DataCounters {
        DataCounters {
            allocated: self.allocated.get(),
            freed: self.freed.get(),
            missed_forks: self.missed_forks.get(),
        }
    }

    /// Marks every task, or undoes the marks and returns the error.
    fn mark_all<H: DataHost>(&self, host: &H, attaching: SystemWide) -> Result<(), AttachError> {
        let marked = self.each_task(host, |task| self.fit(host, task));
        match marked {
            // Relaxed: a fence follows each mark.
            Ok(()) => self.all.store(attaching.on().bits(), Ordering::Relaxed),
            Err(_) => {
                let detaching = attaching.next(Phase::Detaching);
                // Relaxed: the walk that follows begins with a fence.
                self.all.store(detaching.bits(), Ordering::Relaxed);
                self.unmark_all(host, detaching);
            }
        }
        marked
    }

    fn unmark_all<H: DataHost>(&self, host: &H, detaching: SystemWide) {
        let _: Result<(), Infallible> = self.each_task(host, |task| {
            self.unmark(host, host.data(task));
            Ok(())
        });
        // Relaxed: the next attach replaces the word of each task, and so finds
        // its latest value.
        self.all.store(detaching.off().bits(), Ordering::Relaxed);
    }

    /// Walks over the tasks. The caller has published the reason for the walk
    /// before.
    fn each_task<H: DataHost, E>(
        &self,
        host: &H,
        mut visit: impl FnMut(&H::Task) -> Result<(), E>,
    ) -> Result<(), E> {
        fence(Ordering::SeqCst);
        let mut next = host.next_task(None);
        while let Some(task) = next {
            visit(&task)?;
            next = host.next_task(Some(&task));
        }
        Ok(())
    }

    /// Gives a task what the system-wide events want of it at this moment, outside of their
    /// walks.
    ///
    /// A walk publishes what it wants before it starts, and the task could be found before
    /// this: whichever comes second sees the other. If another walk changes that in between,
    /// the task is adjusted again.
    fn follow<H: DataHost>(&self, host: &H, task: &H::Task) -> Result<(), AttachError> {
        let mut all = self.latest();
        loop {
            let outcome = if all.is_wanted() {
                self.fit(host, task)
            } else {
                self.unmark(host, host.data(task));
                Ok(())
            };
            let latest = self.latest();
            if latest.is_same_walk(all) {
                return outcome;
            }
            all = latest;
        }
    }

    /// Gives a task the mark if it is wanted, and takes it away otherwise.
    ///
    /// Who changes the answer does this afterwards: of two that do it at once, the later one
    /// to change the mark sees the answer that is right.
    fn fit<H: DataHost>(&self, host: &H, task: &H::Task) -> Result<(), AttachError> {
        let data = host.data(task);
        let mut wanted = host.is_wanted(task);
        loop {
            let fitted = if wanted {
                self.mark(host, data)
            } else {
                self.unmark(host, data);
                Ok(())
            };
            fence(Ordering::SeqCst);
            let latest = host.is_wanted(task);
            if latest == wanted {
                return fitted;
            }
            wanted = latest;
        }
    }

    /// Gives a task the mark and its reference, unless it has them or is
    /// exiting.
    fn mark<H: DataHost>(&self, host: &H, data: &TaskData) -> Result<(), AttachError> {
        let marked = self.join(host, data, |word| {
            if word.is_marked() { Some(word) } else { word.with_user().map(DataWord::with_mark) }
        });
        match marked {
            Ok(_) | Err(AttachError::Exiting) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes the mark and its reference from a task, if it has them.
    fn unmark<H: DataHost>(&self, host: &H, data: &TaskData) {
        self.leave(host, data, |word| word.is_marked().then(|| word.without_mark().without_user()));
    }

    /// Makes the task's word what `join` makes of it, with data allocated if
    /// there is none.
    fn join<H: DataHost>(
        &self,
        host: &H,
        data: &TaskData,
        join: impl Fn(DataWord) -> Option<DataWord>,
    ) -> Result<DataHandle, AttachError> {
        let layout = self.layout.ok_or(AttachError::NoLayout)?;
        let mut spare = Spare { users: self, host, handle: None };
        let mut word = data.word();
        loop {
            if word.is_exited() {
                return Err(AttachError::Exiting);
            }
            let handle = match word.handle() {
                Some(handle) => handle,
                None => spare.get(layout).ok_or(AttachError::NoMemory)?,
            };
            let joined = join(word.with_handle(handle)).ok_or(AttachError::TooManyUsers)?;
            match data.replace(word, joined) {
                Ok(()) => {
                    if word.handle().is_none() {
                        spare.handle = None;
                    }
                    return Ok(handle);
                }
                Err(found) => word = found,
            }
        }
    }

    /// Makes the task's word what `leave` makes of it, and frees the data if
    /// it has no user any more. `false` if there is nothing to leave.
    fn leave<H: DataHost>(
        &self,
        host: &H,
        data: &TaskData,
        leave: impl Fn(DataWord) -> Option<DataWord>,
    ) -> bool {
        let mut word = data.word();
        loop {
            let Some(left) = leave(word) else { return false };
            match data.replace(word, left) {
                Ok(()) => {
                    if let (Some(handle), None) = (word.handle(), left.handle()) {
                        self.free(host, handle);
                    }
                    return true;
                }
                Err(found) => word = found,
            }
        }
    }

    fn free<H: DataHost>(&self, host: &H, handle: DataHandle) {
        self.freed.count();
        host.free_after_readers(handle);
    }

    /// Relaxed: a caller that acts on the tasks because of this word replaces
    /// it first.
    fn all(&self) -> SystemWide {
        SystemWide::from_bits(self.all.load(Ordering::Relaxed))
    }

    /// What is wanted after everything that this thread has done.
    fn latest(&self) -> SystemWide {
        fence(Ordering::SeqCst);
        self.all()
    }

    fn replace_all(&self, old: SystemWide, new: SystemWide) -> bool {
        let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        self.all.compare_exchange(old.bits(), new.bits(), done, failed).is_ok()
    }
}

impl fmt::Debug for TaskDataUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskDataUsers")
            .field("layout", &self.layout)
            .field("system_wide", &self.system_wide())
            .field("counters", &self.counters())
            .finish()
    }
}

/// A piece of memory that is allocated when it is first needed, and freed if
/// no task took it.
struct Spare<'a, H: DataHost> {
    users: &'a TaskDataUsers,
    host: &'a H,
    handle: Option<DataHandle>,
}

impl<H: DataHost> Spare<'_, H> {
    fn get(&mut self, layout: DataLayout) -> Option<DataHandle> {
        if self.handle.is_none() {
            self.handle = self.host.alloc(layout);
            if self.handle.is_some() {
                self.users.allocated.count();
            }
        }
        self.handle
    }
}

impl<H: DataHost> Drop for Spare<'_, H> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle {
            self.users.freed.count();
            self.host.free(handle);
        }
    }
}

/// What has come and gone, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataCounters {
    /// Pieces of memory that were allocated.
    pub allocated: u64,
    /// Pieces of memory that were freed.
    pub freed: u64,
    /// Tasks that were forked without data because there was no memory.
    pub missed_forks: u64,
}

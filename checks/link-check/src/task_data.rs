//! What a PMU keeps for each task.

use core::fmt::Write as _;

use unwind_perf::task_data::{
    DataHandle, DataHost, DataLayout, SwitchHook, TaskAttachment, TaskData, TaskDataUsers,
};

use crate::{Text, seen};

#[expect(improper_ctypes, reason = "tasks are only passed through")]
unsafe extern "C" {
    /// Asks the host for memory.
    fn host_alloc(size: usize, align: usize) -> u64;
    /// Gives memory back.
    fn host_free(index: u32, later: bool);
    /// The number of the next task.
    fn host_next(after: u64) -> Option<&'static Task>;
}

/// A task.
#[repr(C)]
pub struct Task {
    number: u64,
    data: TaskData,
}

struct Host;

impl DataHost for Host {
    type Task = &'static Task;

    fn data<'t>(&'t self, task: &'t &'static Task) -> &'t TaskData {
        &task.data
    }

    fn alloc(&self, layout: DataLayout) -> Option<DataHandle> {
        // SAFETY: promised by the function that links this.
        let index = unsafe { host_alloc(layout.size(), layout.align()) };
        DataHandle::new(u32::try_from(index).ok()?, 1)
    }

    fn free(&self, handle: DataHandle) {
        // SAFETY: as above.
        unsafe { host_free(handle.index(), false) }
    }

    fn free_after_readers(&self, handle: DataHandle) {
        // SAFETY: as above.
        unsafe { host_free(handle.index(), true) }
    }

    fn next_task(&self, after: Option<&&'static Task>) -> Option<&'static Task> {
        // SAFETY: as above.
        unsafe { host_next(after.map_or(0, |task| task.number)) }
    }

    fn relax(&self) {}
}

static USERS: TaskDataUsers = TaskDataUsers::new(DataLayout::new(788, 64));
static HOOK: SwitchHook = SwitchHook::new();

/// Events attach and detach, tasks are born and die.
#[unsafe(no_mangle)]
pub fn task_data(task: &'static Task, attachment: &mut Option<TaskAttachment>) {
    match USERS.attach_task(&Host, &task) {
        Ok(new) => *attachment = Some(new),
        Err(error) => {
            let _ = write!(Text(0), "{error} {}", error.errno().number());
        }
    }
    if let Ok(all) = USERS.attach_all(&Host) {
        seen(USERS.detach_all(&Host, all));
    }
    seen((USERS.fork(&Host, &task), USERS.moved(&Host, &task), USERS.refilter(&Host)));
    seen(HOOK.switch(Some(&task.data), Some(&task.data)));
    seen((HOOK.add_user(), HOOK.remove_user(), HOOK.users()));
    if let Some(attachment) = attachment.take() {
        seen(USERS.detach_task(&Host, &task, attachment));
    }
    USERS.exit(&Host, &task);
    seen((USERS.system_wide(), USERS.counters(), task.data.is_marked(), task.data.handle()));
}

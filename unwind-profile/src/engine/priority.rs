//! Threads that must not wait for a CPU.

use rustix::process::{getpriority_process, setpriority_process};

/// Has this thread run before others where that is allowed: while it waits for a CPU the
/// rings run over.
pub(crate) fn go_first() {
    // Without the right for it the recording is as good on a machine that has time.
    let _ = setpriority_process(None, -20);
}

/// Has this thread run as others do, whatever the one that has started it does.
pub(crate) fn go_as_others() {
    if getpriority_process(None).is_ok_and(|priority| priority < 0) {
        let _ = setpriority_process(None, 0);
    }
}

//! Signals that end a recording, which has something to do before it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{SigSet, Signal};

/// A flag that is set when one of these signals comes. A command that was started gets those
/// of the terminal, too, and ends by them.
pub(crate) fn end_at(signals: &[Signal]) -> Arc<AtomicBool> {
    let ends = Arc::new(AtomicBool::new(false));
    let signals: SigSet = signals.iter().copied().collect();
    // All threads that this one starts have them blocked, and the standard library takes
    // the block from the command.
    if signals.thread_block().is_ok() {
        let told = Arc::clone(&ends);
        thread::spawn(move || {
            while signals.wait().is_ok() {
                told.store(true, Ordering::Relaxed);
            }
        });
    }
    ends
}

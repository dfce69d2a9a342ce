//! Signals that end a recording, which has something to do before it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;

/// A flag that is set when one of these signals comes.
///
/// The first one is for the process whose number is in `command`, if that is not zero: what was started ends as
/// it would without this program, or does not, and is waited for. The flag is set by the next. A signal that
/// another process sends to this one alone is sent on; those of the terminal go to both.
pub(crate) fn end_at(signals: &[Signal], command: &Arc<AtomicI32>) -> Arc<AtomicBool> {
    let ends = Arc::new(AtomicBool::new(false));
    let signals: SigSet = signals.iter().copied().collect();
    let Ok(queue) = SignalFd::new(&signals) else { return ends };
    // All threads that this one starts have them blocked.
    if signals.thread_block().is_ok() {
        let (told, command) = (Arc::clone(&ends), Arc::clone(command));
        thread::spawn(move || {
            let mut is_first = true;
            while let Ok(Some(signal)) = queue.read_signal() {
                let started = command.load(Ordering::Relaxed);
                if started == 0 || !is_first {
                    told.store(true, Ordering::Relaxed);
                }
                is_first = false;
                let number = i32::try_from(signal.ssi_signo).ok();
                let number = number.and_then(|number| Signal::try_from(number).ok());
                if let (true, Some(number)) = (started > 0 && signal.ssi_code <= 0, number) {
                    let _ = kill(Pid::from_raw(started), number);
                }
            }
        });
    }
    ends
}

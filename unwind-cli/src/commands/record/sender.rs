//! Sends the profiles of files while the recording runs.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver as Queue, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use unwind_target::counted::counted;
use unwind_target::untrusted::escaped;

use crate::commands::record::receiver::Receiver;
use crate::failure::Failure;

/// How many files may wait while another one is sent.
const MOST_WAITING: usize = 16;

/// How long those are still sent that wait when the recording ends.
const AT_THE_END: Duration = Duration::from_secs(20);

/// The exit code if a profile was not received.
const NOT_SENT: u8 = 1;

/// What there is to know of each file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) off_cpu: bool,
    pub(crate) trusts_frame_pointers: bool,
}

/// A thread that sends files one after the other. A receiver that takes its time holds up nothing else.
#[derive(Debug)]
pub(crate) struct Sender {
    files: SyncSender<PathBuf>,
    /// When to begin with no further file.
    until: Arc<OnceLock<Instant>>,
    /// Returns how many profiles were not received.
    thread: JoinHandle<u64>,
    /// Profiles for which there was no room.
    left_out: u64,
}

impl Sender {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// [`Failure`] if there can be no further thread.
    pub(crate) fn start(receiver: Receiver, reading: Reading) -> Result<Self, Failure> {
        let (files, queue) = sync_channel(MOST_WAITING);
        let until = Arc::<OnceLock<Instant>>::default();
        let until_there = Arc::clone(&until);
        let thread = Builder::new().name("unwind-send".into());
        let thread = thread
            .spawn(move || send_all(&receiver, reading, &queue, &until_there))
            .map_err(|error| Failure::new(format!("cannot start a thread: {error}"), 1))?;
        Ok(Self { files, until, thread, left_out: 0 })
    }

    /// Has a file sent, unless too many wait.
    pub(crate) fn send(&mut self, path: &Path) {
        let why = match self.files.try_send(path.to_owned()) {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => TOO_LATE,
            Err(TrySendError::Disconnected(_)) => "what sends has failed",
        };
        self.left_out = self.left_out.saturating_add(1);
        tell(path, &why);
    }

    /// Waits until all are sent, but not for long.
    ///
    /// # Errors
    ///
    /// [`Failure`] if some were not received.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let _ = self.until.set(Instant::now().checked_add(AT_THE_END).unwrap_or_else(Instant::now));
        drop(self.files);
        let unsent = self.thread.join().map_err(|_| Failure::new("the sender has failed", 1))?;
        match unsent.saturating_add(self.left_out) {
            0 => Ok(()),
            unsent => {
                let unsent = counted(unsent, "profile was", "profiles were");
                Err(Failure::new(format!("{unsent} not sent"), NOT_SENT))
            }
        }
    }
}

/// Why a file is left out.
const TOO_LATE: &str = "the receiver is still busy with those before it";

fn send_all(
    receiver: &Receiver,
    reading: Reading,
    queue: &Queue<PathBuf>,
    until: &OnceLock<Instant>,
) -> u64 {
    let mut unsent: u64 = 0;
    for path in queue {
        let Reading { off_cpu, trusts_frame_pointers } = reading;
        let is_too_late = until.get().is_some_and(|until| Instant::now() >= *until);
        let sent = match is_too_late {
            true => Err(Failure::new(TOO_LATE, NOT_SENT)),
            false => receiver.send_recording(&path, off_cpu, trusts_frame_pointers),
        };
        if let Err(error) = sent {
            unsent = unsent.saturating_add(1);
            tell(&path, &error);
        }
    }
    unsent
}

fn tell(path: &Path, why: &impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "unwind: {} is not sent: {why}", escaped(path));
}

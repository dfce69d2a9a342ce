//! Sends the profiles of files while the recording runs.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver as Queue, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use unwind_target::counted::counted;
use unwind_target::untrusted::escaped;

use crate::commands::record::receiver::Receiver;
use crate::failure::Failure;

/// How many files may wait while another one is sent: a recording waits for these when it ends.
const MOST_WAITING: usize = 1;

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
        let thread = Builder::new().name("unwind-send".into());
        let thread = thread
            .spawn(move || send_all(&receiver, reading, &queue))
            .map_err(|error| Failure::new(format!("cannot start a thread: {error}"), 1))?;
        Ok(Self { files, thread, left_out: 0 })
    }

    /// Has a file sent, unless too many wait.
    pub(crate) fn send(&mut self, path: &Path) {
        if self.files.try_send(path.to_owned()).is_err() {
            self.left_out = self.left_out.saturating_add(1);
            tell(path, &"the receiver is still busy with those before it");
        }
    }

    /// Waits until all are sent.
    ///
    /// # Errors
    ///
    /// [`Failure`] if some were not received.
    pub(crate) fn finish(self) -> Result<(), Failure> {
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

fn send_all(receiver: &Receiver, reading: Reading, queue: &Queue<PathBuf>) -> u64 {
    let mut unsent: u64 = 0;
    for path in queue {
        let Reading { off_cpu, trusts_frame_pointers } = reading;
        if let Err(error) = receiver.send_recording(&path, off_cpu, trusts_frame_pointers) {
            unsent = unsent.saturating_add(1);
            tell(&path, &error);
        }
    }
    unsent
}

fn tell(path: &Path, why: &impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "unwind: {} is not sent: {why}", escaped(path));
}

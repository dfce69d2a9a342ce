//! The stacks that perf's own unwinder finds in a recording, by `perf script`.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::spawn;

use unwind_target::Untrusted;
use unwind_target::untrusted::plain;

/// The most frames that perf is asked for.
const MAX_FRAMES: usize = 8192;
/// The longest line that is read: a number, or two.
const MAX_LINE: u64 = 4096;
/// How many samples are read ahead.
const AHEAD: usize = 256;
/// How many addresses of samples wait at most for the same sample here, in 128 MiB.
const MAX_WAITING: usize = 1 << 24;
/// By how many nanoseconds the order of perf may differ.
const DISORDER: u64 = 2_000_000_000;

/// A sample as perf shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PerfSample {
    key: Key,
    /// Innermost first, the kernel's first.
    addrs: Vec<u64>,
}

/// The thread, and the time.
type Key = (u32, u64);

/// Why perf's stacks cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum PerfScriptError {
    #[error("cannot start perf: {0}")]
    Start(#[source] io::Error),
    #[error("perf script ended with {0}; `perf script -i FILE` says why")]
    Ended(std::process::ExitStatus),
    #[error("perf script cannot be waited for: {0}")]
    Wait(#[source] io::Error),
}

impl PerfScriptError {
    /// Why it could not be started, if that is it.
    pub(super) const fn start(&self) -> Option<&io::Error> {
        match self {
            Self::Start(error) => Some(error),
            Self::Ended(_) | Self::Wait(_) => None,
        }
    }
}

/// `perf script`, as it runs.
#[derive(Debug)]
pub(super) struct PerfScript {
    /// Which perf, in its own words.
    pub(super) version: Untrusted,
    child: Child,
    samples: Receiver<PerfSample>,
    waiting: HashMap<Key, VecDeque<Vec<u64>>>,
    /// How many addresses wait.
    waiting_addrs: usize,
    /// The time of the last one that was read.
    last: u64,
}

impl PerfScript {
    /// Has `perf` read a recording.
    ///
    /// # Errors
    ///
    /// [`PerfScriptError::Start`].
    pub(super) fn start(perf: &OsStr, recording: &Path) -> Result<Self, PerfScriptError> {
        let version = Command::new(perf).arg("--version").stdin(Stdio::null()).output();
        let version = version.map_err(PerfScriptError::Start)?;
        let version = version.stdout.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let mut command = Command::new(perf);
        command.args(["script", "--no-inline", "--ns", "-F", "tid,time,ip", "--max-stack"]);
        command.arg(MAX_FRAMES.to_string()).arg("-i").arg(recording);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(PerfScriptError::Start)?;
        let (sender, samples) = sync_channel(AHEAD);
        if let Some(output) = child.stdout.take() {
            // It ends with perf, or when no one reads it any more.
            spawn(move || {
                let _ = read_samples(BufReader::new(output), |sample| sender.send(sample).is_ok());
            });
        }
        Ok(Self {
            version: version.get(..version.len().min(64)).unwrap_or_default().into(),
            child,
            samples,
            waiting: HashMap::new(),
            waiting_addrs: 0,
            last: 0,
        })
    }

    /// The addresses that perf has of a sample; `None` if it does not show the sample.
    pub(super) fn addrs(&mut self, thread: u32, time: u64) -> Option<Vec<u64>> {
        let key = (thread, time);
        loop {
            if let Some(addrs) = self.waiting.get_mut(&key).and_then(VecDeque::pop_front) {
                self.waiting_addrs = self.waiting_addrs.saturating_sub(addrs.len());
                return Some(addrs);
            }
            if self.last > time.saturating_add(DISORDER) {
                return None;
            }
            let sample = self.samples.recv().ok()?;
            self.last = self.last.max(sample.key.1);
            if sample.key == key {
                return Some(sample.addrs);
            }
            let addrs = self.waiting_addrs.saturating_add(sample.addrs.len());
            self.waiting_addrs = addrs;
            if addrs > MAX_WAITING {
                // They belong to samples that are not here.
                self.waiting.clear();
                self.waiting_addrs = sample.addrs.len();
            }
            self.waiting.entry(sample.key).or_default().push_back(sample.addrs);
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// [`PerfScriptError`] if it failed.
    pub(super) fn finish(mut self) -> Result<(), PerfScriptError> {
        while self.samples.recv().is_ok() {}
        let status = self.child.wait().map_err(PerfScriptError::Wait)?;
        if status.success() { Ok(()) } else { Err(PerfScriptError::Ended(status)) }
    }
}

impl Drop for PerfScript {
    fn drop(&mut self) {
        // It has ended, or is not needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads samples, until `take` wants no more: a line with the thread and the time, a line for each
/// address, and an empty one.
fn read_samples(
    mut input: impl BufRead,
    mut take: impl FnMut(PerfSample) -> bool,
) -> io::Result<()> {
    let mut line = Vec::new();
    let mut sample: Option<PerfSample> = None;
    loop {
        line.clear();
        let len = input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        let text = line.trim_ascii();
        if text.is_empty() {
            let is_over = sample.take().is_some_and(|sample| !take(sample)) || len == 0;
            if is_over {
                return Ok(());
            }
        } else if let Some(sample) = &mut sample {
            let addr = plain(text).and_then(|text| u64::from_str_radix(text, 16).ok());
            if sample.addrs.len() <= MAX_FRAMES {
                sample.addrs.extend(addr);
            }
        } else {
            sample = heading(text).map(|key| PerfSample { key, addrs: Vec::new() });
        }
    }
}

/// How many samples and addresses a text of perf has.
pub(crate) fn listed(text: &[u8]) -> (usize, usize) {
    let (mut samples, mut addrs) = (0_usize, 0_usize);
    // Bytes in memory are read without an error.
    let _ = read_samples(text, |sample| {
        samples = samples.saturating_add(1);
        addrs = addrs.saturating_add(sample.addrs.len());
        true
    });
    (samples, addrs)
}

/// `TID SECONDS.NANOSECONDS:`.
fn heading(text: &[u8]) -> Option<Key> {
    let mut words = plain(text)?.split_ascii_whitespace();
    let thread = words.next()?.parse().ok()?;
    let (seconds, rest) = words.next()?.strip_suffix(':')?.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    let nanoseconds: u64 = rest.parse().ok().filter(|_| rest.len() == 9)?;
    Some((thread, seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(text: &str) -> Vec<PerfSample> {
        let mut samples = Vec::new();
        let take = |sample| {
            samples.push(sample);
            true
        };
        read_samples(text.as_bytes(), take).unwrap();
        samples
    }

    #[test]
    fn samples_are_read_as_perf_writes_them() {
        let text = "   12 29323.305623961: \n\t           148f2\n\tffffffff81000000\n\n\
                    13953 1.000000002: \n\n7 0.000000000: \n\t 1\n";
        let sample =
            |thread, time, addrs: &[u64]| PerfSample { key: (thread, time), addrs: addrs.to_vec() };
        assert_eq!(
            samples(text),
            [
                sample(12, 29_323_305_623_961, &[0x148f2, 0xffff_ffff_8100_0000]),
                sample(13_953, 1_000_000_002, &[]),
                sample(7, 0, &[1]),
            ]
        );
    }

    #[test]
    fn what_is_no_sample_is_left_out() {
        for text in
            ["", "\n\n\n", "a line\n\t 1\n\n", "1 2.3: \n\n", "1 99999999999999.000000000:\n"]
        {
            assert_eq!(samples(text), [], "{text:?}");
        }
        // Not a hang, and little memory.
        assert_eq!(samples(&"x".repeat(1 << 20)), []);
    }
}

//! The demonstration's child: two threads, each at the end of a chain of calls.

use std::io::{self, Write as _};
use std::sync::mpsc;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::chain::{Chain, ChainError, Kind, Object, TrueFrame, Witness};

/// How long the threads may take to reach the end of their chains.
const PARK_TIMEOUT: Duration = Duration::from_secs(5);

/// What the chains compute from.
const INPUT: u64 = 0x1234_5678;

/// A thread that waits at the end of its chain.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ParkedThread {
    pub(crate) kind: Kind,
    pub(crate) thread: i32,
    /// Innermost first.
    pub(crate) truth: Vec<TrueFrame>,
}

/// Why the child gave up.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// There is no chain.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A thread could not be started, or the parent is gone.
    #[error("the demonstration's child cannot continue: {0}")]
    Io(#[from] io::Error),
    /// A thread never arrived, or took another way.
    #[error("a chain of the demonstration, {0:?}, did not reach its end")]
    NotParked(Kind),
    /// A chain went wrong on its way back: its stack was changed.
    #[error("a chain of the demonstration, {kind:?}, computed {got:#x} and not {expected:#x}")]
    WrongResult {
        /// Which.
        kind: Kind,
        /// What it computed while it was looked at.
        got: u64,
        /// What it computes alone.
        expected: u64,
    },
}

/// What the child tells its parent in a line of JSON: where its threads are, or
/// why they are not there.
pub(crate) type Message = Result<Vec<ParkedThread>, String>;

/// Parks two threads, tells standard output of them, lets them continue when
/// standard input is at its end, and checks what they computed.
///
/// # Errors
///
/// [`ChildError`].
pub(crate) fn run(object: Object) -> Result<(), ChildError> {
    let chain = match Chain::load(object) {
        Ok(chain) => chain,
        Err(error) => return Ok(send(&Err(error.to_string()))?),
    };
    let calls = [Kind::FramePointers, Kind::NoFramePointers].map(|kind| Call {
        chain: &chain,
        kind,
        witness: Witness::waiting(),
    });
    thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut parked = Vec::new();
        for call in &calls {
            let (sender, thread) = mpsc::channel();
            let body = move || call.run(&sender);
            parked.push(match thread::Builder::new().spawn_scoped(scope, body) {
                Ok(handle) => {
                    threads.push(handle);
                    call.wait_until_parked(&thread)
                }
                Err(error) => Err(error.into()),
            });
        }
        // Said in either case: the threads end only after the parent heard it.
        let parked: Result<_, ChildError> = parked.into_iter().collect();
        send(&parked.map_err(|error| error.to_string()))?;
        let results: Vec<_> = threads.into_iter().map(ScopedJoinHandle::join).collect();
        calls.iter().zip(results).try_for_each(|(call, result)| {
            call.check(result.map_err(|_| ChildError::NotParked(call.kind))??)
        })
    })
}

fn send(message: &Message) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    serde_json::to_writer(&mut stdout, message)?;
    writeln!(stdout)?;
    stdout.flush()
}

/// One thread's way down a chain.
#[derive(Debug)]
struct Call<'c> {
    chain: &'c Chain,
    kind: Kind,
    witness: Witness,
}

impl Call<'_> {
    /// What the thread does. It tells its id first.
    fn run(&self, thread: &mpsc::Sender<i32>) -> Result<u64, ChainError> {
        // The receiver is there until the chain is parked.
        let _ = thread.send(nix::unistd::gettid().as_raw());
        self.chain.call(self.kind, &self.witness, INPUT)
    }

    fn wait_until_parked(&self, thread: &mpsc::Receiver<i32>) -> Result<ParkedThread, ChildError> {
        let not_parked = || ChildError::NotParked(self.kind);
        let begin = Instant::now();
        let thread = thread.recv_timeout(PARK_TIMEOUT).map_err(|_| not_parked())?;
        while !self.witness.is_parked() {
            if begin.elapsed() > PARK_TIMEOUT {
                return Err(not_parked());
            }
            thread::sleep(Duration::from_micros(50));
        }
        let truth = self.witness.frames(self.kind).ok_or_else(not_parked)?;
        Ok(ParkedThread { kind: self.kind, thread, truth })
    }

    /// Compares what the chain computed with what it computes undisturbed.
    fn check(&self, got: u64) -> Result<(), ChildError> {
        let kind = self.kind;
        let expected = self.chain.call(kind, &Witness::passing(), INPUT)?;
        if got == expected { Ok(()) } else { Err(ChildError::WrongResult { kind, got, expected }) }
    }
}

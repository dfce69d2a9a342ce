//! What shows on a terminal that work takes long: how far that on a large file is, and for how long
//! there has been a recording.

use std::cell::RefCell;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use unwind_profile::recording::reader::ReadProgress;
use unwind_target::rows::build_progress::BuildProgress;
use unwind_target::untrusted::escaped;

/// Smaller files are done at once.
const LARGE: u64 = 100 << 20;
const LARGE_RECORDING: u64 = 8 << 20;

/// How far the work on a file is, on standard error if that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar for a file of this many bytes.
    pub(crate) fn new(path: &Path, len: u64) -> Self {
        Self::from_len(path, len, LARGE)
    }

    fn from_len(path: &Path, len: u64, large: u64) -> Self {
        if len < large || !is_wanted() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {bar:30} {percent} %")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let name = path.file_name().unwrap_or(path.as_os_str());
        let bar = bar.with_finish(ProgressFinish::AndClear);
        Self(bar.with_style(style).with_message(escaped(name).to_string()))
    }

    /// So much of the work is done.
    pub(crate) fn set(&self, done: u64, whole: usize) {
        self.0.set_length(u64::try_from(whole).unwrap_or(u64::MAX));
        self.0.set_position(done);
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// How far the reading of recordings is, each byte of which takes longer.
#[derive(Debug, Default)]
struct ReadBar(Mutex<Option<Progress>>);

/// Shows how far the reading of recordings is.
pub(crate) fn of_recordings() -> Arc<dyn ReadProgress> {
    Arc::new(ReadBar::default())
}

impl ReadBar {
    fn bar(&self) -> MutexGuard<'_, Option<Progress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadProgress for ReadBar {
    fn begin(&self, path: &Path, len: u64) {
        *self.bar() = Some(Progress::from_len(path, len, LARGE_RECORDING));
    }

    fn done(&self, done: u64, len: u64) {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.bar().iter().for_each(|bar| bar.set(done, len));
    }

    fn end(&self) {
        self.bar().take().iter().for_each(Progress::finish);
    }
}

/// How far the making of a table is.
#[derive(Debug, Default)]
pub(crate) struct BuildBar(RefCell<Option<Progress>>);

impl BuildProgress for BuildBar {
    fn done(&self, path: &Path, len: u64, done: u64, whole: usize) {
        self.0.borrow_mut().get_or_insert_with(|| Progress::new(path, len)).set(done, whole);
    }

    fn end(&self) {
        if let Some(bar) = self.0.take() {
            bar.finish();
        }
    }
}

/// For how long there has been work of which no one knows how much it is, on standard error if that
/// is a terminal.
#[derive(Debug)]
pub(crate) struct Elapsed(ProgressBar);

impl Elapsed {
    /// Shows nothing.
    pub(crate) fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    /// Shows `what` and the time since now.
    pub(crate) fn new(what: &'static str) -> Self {
        if !is_wanted() {
            return Self::hidden();
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = bar.with_style(style).with_message(what).with_finish(ProgressFinish::AndClear);
        bar.enable_steady_tick(Duration::from_secs(1));
        Self(bar)
    }

    /// Takes it away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// Whether the user has a terminal that shows more than plain text. That standard error is one is
/// looked at elsewhere.
fn is_wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

//! A bar that shows how far the work on a large file is.

use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::untrusted::escaped;

/// Smaller files are done at once.
const LARGE: u64 = 100 << 20;

/// How far the work on a file is, on standard error if that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar for a file of this many bytes.
    pub(crate) fn new(path: &Path, len: u64) -> Self {
        if len < LARGE {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {bar:30} {percent} %")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let name = path.file_name().unwrap_or(path.as_os_str());
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

//! How stacks are walked.

use std::ffi::OsString;
use std::rc::Rc;

use crate::rows::build_progress::BuildProgress;
use crate::rows::frame_pointers::FramePointerRows;
use crate::rows::stack_switches::SwitchNames;
use crate::stack::walk::{Method, Ways};

/// How many frames of a stack there are at most unless [`WalkOptions::max_frames`] says so.
const MAX_FRAMES: u32 = 510;

/// How the stacks of a process or a core file are walked.
///
/// ```
/// use unwind_target::{Method, WalkOptions};
///
/// // The thread 4711 alone, by call frame information, as deep as its stack is.
/// let options = WalkOptions::new().thread(4711).method(Method::Cfi).max_frames(u32::MAX);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct WalkOptions {
    pub(crate) thread: Option<i32>,
    method: Method,
    frame_pointers: FramePointerRows,
    switches: SwitchNames,
    max_frames: u32,
    pub(crate) interpreters: bool,
    progress: Rc<dyn BuildProgress>,
}

impl Default for WalkOptions {
    fn default() -> Self {
        Self {
            thread: None,
            method: Method::Auto,
            frame_pointers: FramePointerRows { is_trusted: false },
            switches: SwitchNames::new(&[]),
            max_frames: MAX_FRAMES,
            interpreters: true,
            progress: Rc::new(()),
        }
    }
}

impl WalkOptions {
    /// All threads, by whatever leads to their callers, up to 510 frames of each, with the frames of
    /// interpreters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The stack of this thread alone.
    #[must_use]
    pub fn thread(self, id: i32) -> Self {
        Self { thread: Some(id), ..self }
    }

    /// How callers are found.
    #[must_use]
    pub fn method(self, method: Method) -> Self {
        Self { method, ..self }
    }

    /// How many frames of a stack there are at most; a stack with more is incomplete.
    #[must_use]
    pub fn max_frames(self, max_frames: u32) -> Self {
        Self { max_frames, ..self }
    }

    /// Leaves out the frames of interpreters: native ones only.
    #[must_use]
    pub fn native(self) -> Self {
        Self { interpreters: false, ..self }
    }

    /// Declares that all code without a table keeps frame pointers, so that a frame which one leads to is
    /// no guess.
    #[must_use]
    pub fn trust_frame_pointers(self) -> Self {
        Self { frame_pointers: FramePointerRows { is_trusted: true }, ..self }
    }

    /// Functions that call on another stack and change back before they return, by their names in the
    /// file. Those of Go's runtime are known.
    #[must_use]
    pub fn stack_switches(self, functions: &[OsString]) -> Self {
        Self { switches: SwitchNames::new(functions), ..self }
    }

    /// Tells this how far the making of a table is, by [`Method::CfiSframe`].
    #[doc(hidden)]
    #[must_use]
    pub fn progress(self, progress: Rc<dyn BuildProgress>) -> Self {
        Self { progress, ..self }
    }

    pub(crate) fn ways(&self) -> Ways<'_> {
        Ways {
            method: self.method,
            frame_pointers: self.frame_pointers,
            switches: &self.switches,
            max_frames: self.max_frames,
        }
    }

    pub(crate) fn build_progress(&self) -> &dyn BuildProgress {
        &*self.progress
    }
}

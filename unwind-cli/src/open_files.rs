//! How many files this process may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Lets this process have as many files open as it may: those that a target maps may be many, and each
/// is kept open. What was started before keeps its limit.
pub(crate) fn allow_all() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // With fewer, files that are opened last are said to be too many.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

//! How frames are named, as the user says.

use unwind_target::{DebugFiles, Naming};

use crate::{notices, read_lines};

/// By these files, with lines or without, and with functions of C++ in short or as a whole.
pub(crate) fn naming(debug_files: DebugFiles, has_lines: bool, is_short: bool) -> Naming {
    let lines = has_lines.then(read_lines::reader);
    let naming = Naming::new().debug_files(debug_files).notices(notices::all().clone());
    let naming = naming.lines(lines);
    if is_short { naming.short() } else { naming }
}

//! What a user is told once, however often it is met. It is told when the command is done, as a
//! screen or a bar may be shown before.

use std::io::{self, Write as _};
use std::sync::LazyLock;

use unwind_target::Notices;

static NOTICES: LazyLock<Notices> = LazyLock::new(Notices::default);

/// Those of this command.
pub(crate) fn all() -> &'static Notices {
    &NOTICES
}

/// Takes note of a line that a terminal may show. The same one is told once.
pub(crate) fn add(notice: String) {
    NOTICES.add(notice);
}

/// Tells what was not told yet.
pub(crate) fn tell() {
    for notice in NOTICES.take() {
        // With standard error gone there is no other place to tell it.
        let _ = writeln!(io::stderr(), "unwind: {notice}");
    }
}

//! What the command says of a recording that is made.

use std::io::{self, Write as _};
use std::path::Path;

use unwind_profile::session::ledger::Ledger;
use unwind_target::untrusted::escaped;

use crate::failure::Failure;

/// How it is said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Telling {
    pub(super) is_json: bool,
    /// Whether there are more files.
    pub(super) is_one_of_many: bool,
}

/// Shows the ledger of a file.
pub(super) fn tell(telling: Telling, path: &Path, ledger: &Ledger) -> Result<(), Failure> {
    if telling.is_json {
        let text = serde_json::to_string(ledger).map_err(|error| Failure::new(error, 1))?;
        return writeln!(io::stdout(), "{text}").map_err(Failure::output);
    }
    // With standard error gone there is no other place to tell it.
    let _ = match telling.is_one_of_many {
        true => writeln!(io::stderr(), "{}: {}", escaped(path), ledger.summary()),
        false => write!(io::stderr(), "{ledger}"),
    };
    Ok(())
}

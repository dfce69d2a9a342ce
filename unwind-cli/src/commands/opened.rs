//! Events that are open, with what they lack told.

use std::io::{self, Write as _};

use unwind_profile::engine::Shortfall;
use unwind_profile::engine::sampling::Sampling;
use unwind_profile::session::{Opened, SessionError};

/// Opens the events, and says on standard error what they lack.
///
/// # Errors
///
/// [`SessionError`] if the kernel refuses them.
pub(crate) fn open(sampling: &Sampling, rate: u32) -> Result<Opened, SessionError> {
    let opened = Opened::new(sampling, rate)?;
    for shortfall in &opened.shortfalls {
        let hint = match shortfall {
            Shortfall::OneSize => ", or choose a size by --stack-bytes",
            _ => "",
        };
        // With standard error gone there is no other place to tell it.
        let _ = writeln!(io::stderr(), "unwind: {shortfall}{hint}");
    }
    Ok(opened)
}

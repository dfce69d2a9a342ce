//! Where what was stripped off files is looked for, as the user says.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use unwind_target::{DebugFiles, DebugServers, NoServers};

use crate::failure::Failure;
use crate::notices;

/// Where a user has such files.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct DebugDirectories {
    /// Look for what was stripped off files in this directory, made as /usr/lib/debug is,
    /// first; may be given more than once
    #[arg(long, value_name = "DIR")]
    debug_dir: Vec<PathBuf>,
}

impl DebugDirectories {
    /// All places, where the files of a target are below `sysroot`.
    pub(crate) fn files(&self, sysroot: Option<&Path>) -> DebugFiles {
        DebugFiles::new(&self.debug_dir, sysroot)
    }

    /// The same, and servers if they are to be asked.
    ///
    /// # Errors
    ///
    /// [`Failure`] if there are no servers, or no client.
    pub(crate) fn files_and_servers(
        &self,
        sysroot: Option<&Path>,
        asks_servers: bool,
    ) -> Result<DebugFiles, Failure> {
        let files = self.files(sysroot);
        Ok(if asks_servers { files.asking(servers()?) } else { files })
    }
}

/// The servers of this process: one that does not answer is not asked again.
fn servers() -> Result<DebugServers, NoServers> {
    static SERVERS: OnceLock<DebugServers> = OnceLock::new();
    if let Some(servers) = SERVERS.get() {
        return Ok(servers.clone());
    }
    let servers = DebugServers::of_environment(notices::all().clone())?;
    Ok(SERVERS.get_or_init(|| servers).clone())
}

impl From<NoServers> for Failure {
    fn from(error: NoServers) -> Self {
        let exit_code = match error {
            NoServers::NoUrls => 2,
            _ => 3,
        };
        Self::new(format!("--debuginfod needs {error}"), exit_code)
    }
}

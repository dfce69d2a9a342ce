//! Why the file of a mapping is not used.

use std::fmt;

use crate::elf::error::ElfError;
use crate::system_error::SystemError;

/// Why the file of a mapping is not used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// It cannot be opened.
    #[error("cannot open it: {0}")]
    Open(SystemError),
    /// It is a directory, a pipe, a device or a socket.
    #[error("it is not a regular file")]
    NotRegular,
    /// It has no name any more.
    #[error("it was deleted or replaced, and only root may still read it")]
    Deleted,
    /// Another file has taken its place.
    #[error("it is not the file that was mapped: the build ids differ, its own is {0}")]
    Replaced(BuildId),
    /// A file that a core file was made with cannot be used.
    #[error("{error}{}", hint(wanted.as_ref(), *is_program))]
    OfCore {
        /// Why not.
        error: Box<ModuleError>,
        /// The build id of the file that was mapped.
        wanted: Option<BuildId>,
        /// It is the program, not a library.
        is_program: bool,
    },
    /// It is not ELF, or damaged.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Its program headers have no code where it was mapped.
    #[error("its program headers have no code at the mapped offset {0:#x}")]
    NoCodeAt(u64),
    /// The target's memory cannot be read.
    #[error("its memory cannot be read")]
    Memory,
}

/// What helps where a file that a core was made with cannot be used.
fn hint(wanted: Option<&BuildId>, is_program: bool) -> String {
    match (wanted, is_program) {
        (Some(id), true) => {
            format!(
                "; give the program that has build id {id}, which the core was made of, by --exe"
            )
        }
        (None, true) => "; give the program that the core was made of by --exe".into(),
        (Some(id), false) => format!("; the one that was mapped has build id {id}"),
        (None, false) => String::new(),
    }
}

/// What identifies the contents of a file, as the linker left it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BuildId(Vec<u8>);

impl BuildId {
    /// How many bytes are shown; the usual ones have 20.
    const SHOWN: usize = 32;
}

impl From<&[u8]> for BuildId {
    fn from(id: &[u8]) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        self.0.iter().take(Self::SHOWN).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(if self.0.len() > Self::SHOWN { "…" } else { "" })
    }
}

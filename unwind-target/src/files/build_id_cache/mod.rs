//! Files by their build ids, in the folder where perf keeps them: what a recording has samples of
//! can be removed or built anew, and still has its names.
//!
//! ```text
//! ~/.debug/
//!     usr/bin/ls/abcdef…/elf               a file
//!     [kernel.kallsyms]/abcdef…/kallsyms   the symbols of a kernel
//!     .build-id/ab/cdef…                   leads to the folder of one of them
//! ```

mod bounds;
mod folder;
mod keeping;
mod place;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::regular_file;

pub use keeping::{Keeping, KeepingError, Origin};
pub(crate) use place::folder;

/// The name of a file in its folder.
const ELF: &str = "elf";
/// That of a kernel's symbols.
const KALLSYMS: &str = "kallsyms";
/// The folder of the links.
const LINKS: &str = ".build-id";

/// The longest build id that is looked for, in bytes. Those of linkers have 8 to 32.
pub(super) const MAX_ID: usize = 64;

/// The file with a build id, if one is kept. Whether it has that build id is for the caller to see:
/// it may be a link to a file that was changed since.
pub(crate) fn open(build_id: &[u8]) -> Option<File> {
    let link = link(build_id)?;
    // Before Linux 4.11 perf linked to the file itself.
    regular_file::open(&link.join(ELF)).or_else(|_| regular_file::open(&link)).ok()
}

/// The symbols of the kernel with a build id, if they are kept.
#[must_use]
pub fn open_kallsyms(build_id: &[u8]) -> Option<File> {
    regular_file::open(&link(build_id)?.join(KALLSYMS)).ok()
}

fn link(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = names_of(build_id)?;
    Some(folder()?.join(LINKS).join(first).join(rest))
}

/// What the link of a build id is called, and the folder that it is in.
fn names_of(build_id: &[u8]) -> Option<(String, String)> {
    let (first, rest) = build_id.split_first().filter(|_| build_id.len() <= MAX_ID)?;
    (!rest.is_empty()).then(|| (format!("{first:02x}"), hex(rest)))
}

/// A build id as text.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// The folder as a user may write it.
#[must_use]
pub fn shown_folder() -> String {
    let folder = folder();
    folder.as_deref().map_or_else(
        || "~/.debug".into(),
        |path: &Path| crate::untrusted::escaped(path).to_string(),
    )
}

/// What an error of the system is called there.
fn system(error: rustix::io::Errno) -> io::Error {
    error.into()
}

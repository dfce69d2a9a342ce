//! Files with what was stripped off others: their symbols and DWARF.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use memchr::memchr;

use crate::elf::ElfFile;
use crate::elf::error::Part;
use crate::files::build_id_cache::MAX_ID;
use crate::files::debug_servers::DebugServers;
use crate::files::regular_file;
use crate::untrusted::escaped;

/// Where what was stripped off files, their symbols and DWARF, is looked for.
#[derive(Clone, Debug)]
pub struct DebugFiles {
    /// Directories that are made as `/usr/lib/debug` is, in order.
    directories: Vec<PathBuf>,
    /// What stands for `/` where the files of a target are.
    root: PathBuf,
    /// Which are asked for what is not found.
    servers: Option<DebugServers>,
}

/// A file that a debug link leads to is not the one that was stripped off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is not used: its checksum is not that of .gnu_debuglink", escaped(path))]
pub struct WrongDebugFile {
    path: PathBuf,
}

impl Default for DebugFiles {
    fn default() -> Self {
        Self::new(&[], None)
    }
}

impl DebugFiles {
    /// Looks in these directories, then in `/usr/lib/debug`, which is below `sysroot` if there
    /// is one, as are the directories that the files of a target are in.
    #[must_use]
    pub fn new(directories: &[PathBuf], sysroot: Option<&Path>) -> Self {
        let root = sysroot.unwrap_or(Path::new("/")).to_owned();
        let usual = root.join("usr/lib/debug");
        let directories = directories.iter().cloned().chain([usual]).collect();
        Self { directories, root, servers: None }
    }

    /// Asks these servers for what is not there, too.
    #[must_use]
    pub fn asking(self, servers: DebugServers) -> Self {
        Self { servers: Some(servers), ..self }
    }

    /// The file with what was stripped off another: by its build id, else by its debug link,
    /// for which `path` has to be known, as the target has it.
    ///
    /// # Errors
    ///
    /// [`WrongDebugFile`] if the link leads to another file and to no right one.
    #[doc(hidden)]
    pub fn find(
        &self,
        file: &ElfFile,
        path: Option<&Path>,
    ) -> Result<Option<ElfFile>, WrongDebugFile> {
        if let Some(found) = self.by_build_id(file) {
            return Ok(Some(found));
        }
        let linked = path.map_or(Ok(None), |path| self.by_link(file, path));
        match (&self.servers, linked) {
            (Some(servers), linked @ (Ok(None) | Err(_))) => {
                by_server(servers, file).map_or(linked, |found| Ok(Some(found)))
            }
            (_, linked) => linked,
        }
    }

    /// `.build-id/ab/cdef….debug`, where distributions put what they strip off.
    fn by_build_id(&self, file: &ElfFile) -> Option<ElfFile> {
        let id = file.build_id()?;
        let (first, rest) = id.split_first()?;
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        let below = format!(".build-id/{first:02x}/{rest}.debug");
        self.directories.iter().find_map(|directory| {
            let file =
                ElfFile::from_file(regular_file::open(&directory.join(&below)).ok()?).ok()?;
            (file.build_id().as_deref() == Some(&id)).then_some(file)
        })
    }

    /// By name beside the file, in `.debug` there, or below the directories.
    fn by_link(&self, file: &ElfFile, path: &Path) -> Result<Option<ElfFile>, WrongDebugFile> {
        let Some(link) = DebugLink::read(file) else { return Ok(None) };
        let name = OsStr::from_bytes(&link.name);
        let Some(beside) = path.parent().map(|beside| beside.strip_prefix("/").unwrap_or(beside))
        else {
            return Ok(None);
        };
        let own =
            [self.root.join(beside).join(name), self.root.join(beside).join(".debug").join(name)];
        let kept = self.directories.iter().map(|directory| directory.join(beside).join(name));
        let mut wrong = None;
        for path in own.into_iter().chain(kept) {
            let Ok(mut file) = regular_file::open(&path) else { continue };
            if is_mostly_hole(&file) {
                continue;
            }
            if checksum(&mut file).is_ok_and(|sum| sum == link.checksum) {
                match ElfFile::from_file(file) {
                    Ok(file) => return Ok(Some(file)),
                    Err(_) => continue,
                }
            }
            wrong = wrong.or(Some(WrongDebugFile { path }));
        }
        wrong.map_or(Ok(None), Err)
    }
}

/// Whether nearly all of a large file was never written: it is no file of a linker, and reading it may take hours.
fn is_mostly_hole(file: &File) -> bool {
    /// The largest that is read whatever it has on the disk.
    const LARGE: u64 = 1 << 30;
    /// How many times as large a file may be as what it has there, which some file systems compress.
    const RATIO: u64 = 64;
    let Ok(metadata) = file.metadata() else { return true };
    metadata.len() > LARGE && metadata.blocks().saturating_mul(512 * RATIO) < metadata.len()
}

/// The file with what was stripped off another, from a server. To the client an id that is longer than any linker's
/// is an error, which would be taken for the server's.
fn by_server(servers: &DebugServers, file: &ElfFile) -> Option<ElfFile> {
    servers.find(&file.build_id().filter(|id| (1..=MAX_ID).contains(&id.len()))?)
}

/// What `.gnu_debuglink` says.
///
/// ```text
///     the name of a file, a zero, zeroes up to a multiple of 4 bytes
///     u32   the CRC-32 of the file's bytes
/// ```
struct DebugLink {
    /// Without a directory.
    name: Vec<u8>,
    checksum: u32,
}

impl DebugLink {
    /// The longest section that is read, in bytes. Names have 255 at most.
    const LIMIT: u64 = 512;

    fn read(file: &ElfFile) -> Option<Self> {
        let sections = file.sections().ok()?;
        let section = sections.iter().find(|section| section.name == b".gnu_debuglink")?;
        let bytes = file.bytes(Part::DebugLink, section.offset, section.size.min(Self::LIMIT));
        Self::parse(&bytes.ok()?, file.endian == object::Endianness::Big)
    }

    fn parse(bytes: &[u8], is_big: bool) -> Option<Self> {
        let len = memchr(0, bytes)?;
        let name = bytes.get(..len)?;
        let is_name = !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/');
        let at = len.checked_add(1)?.checked_next_multiple_of(4)?;
        let sum = *bytes.get(at..)?.first_chunk()?;
        let checksum = if is_big { u32::from_be_bytes(sum) } else { u32::from_le_bytes(sum) };
        is_name.then(|| Self { name: name.to_vec(), checksum })
    }
}

/// The name that the bytes of a `.gnu_debuglink` have, if they are one.
#[must_use]
pub fn name_of_link(bytes: &[u8], is_big: bool) -> Option<Vec<u8>> {
    DebugLink::parse(bytes, is_big).map(|link| link.name)
}

/// The CRC-32 of a file's bytes, from here to its end.
fn checksum(file: &mut File) -> io::Result<u32> {
    let mut sum = crc32fast::Hasher::new();
    let mut chunk = vec![0; 256 << 10];
    loop {
        let len = file.read(&mut chunk)?;
        match chunk.get(..len) {
            Some(bytes) if !bytes.is_empty() => sum.update(bytes),
            _ => return Ok(sum.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debug_link_is_a_name_without_a_directory_and_a_checksum() {
        let parse = |bytes: &[u8]| Some((DebugLink::parse(bytes, false)?.name, 0)).map(|_| ());
        assert_eq!(parse(b"a.debug\0\x01\x02\x03\x04"), Some(()));
        let link = DebugLink::parse(b"ab.debug\0\0\0\0\x01\x02\x03\x04", false).unwrap();
        assert_eq!((link.name.as_slice(), link.checksum), (&b"ab.debug"[..], 0x0403_0201));
        for bytes in [
            &b"../a.debug\0\0\x01\x02\x03\x04"[..],
            b"..\0\0\x01\x02\x03\x04",
            b"\0\0\0\0\x01\x02\x03\x04",
            b"a.debug\0\x01\x02\x03",
            b"a.debug",
            b"",
        ] {
            assert_eq!(parse(bytes), None, "{bytes:?}");
        }
    }
}

//! Keeps files there.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{Mode, fchmod, ioctl_ficlone};

use crate::elf::ElfFile;
use crate::files::build_id_cache::bounds::{self, MARK};
use crate::files::build_id_cache::folder::Folder;
use crate::files::build_id_cache::{
    ELF, KALLSYMS, LINKS, hex, link, names_of, open, place, system,
};
use crate::files::regular_file;
use crate::system_error::SystemError;
use crate::untrusted::escaped;

/// The largest file that is copied although a link to it would do, in bytes: a link leads to what is
/// written into the file later, and programs that are built often are small.
const SMALL: u64 = 8 << 20;

/// The largest file that is copied at all.
const MAX_COPY: u64 = 256 << 20;

/// How many bytes one command copies.
const MAX_COPIES: u64 = 1 << 30;

/// The longest list of a kernel's symbols. The usual ones have 10 MiB.
const MAX_KALLSYMS: u64 = 64 << 20;

/// How much of a list tells whether the kernel is still where it was.
const HEAD: u64 = 64 << 10;

/// Where the kernel's symbols are.
const KERNEL: &str = "[kernel.kallsyms]";

/// Where files are whose names cannot be those of folders.
const OTHERS: &str = "[others]";

/// What a file was when it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// What the process has called it.
    pub name: &'a [u8],
    pub build_id: &'a [u8],
}

/// Why a file is not kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeepingError {
    /// Others would get what this user makes there.
    #[error("{} belongs to user {owner}, not to you (user {user})", escaped(path))]
    OfAnother { path: PathBuf, owner: u32, user: u32 },
    /// There is no such folder, and it cannot be made.
    #[error("{}: {error}", escaped(path))]
    Folder { path: PathBuf, error: SystemError },
    /// It cannot be read, or not be written there.
    #[error("{0}")]
    System(SystemError),
    /// It was written to meanwhile.
    #[error("it changed while it was copied")]
    Changed,
    /// It is too large to be copied, and is on another disk.
    #[error("it has {0} bytes, and there can be no link to it")]
    TooLarge(u64),
}

impl From<io::Error> for KeepingError {
    fn from(error: io::Error) -> Self {
        Self::System(error.into())
    }
}

/// The folder, and what was put there so far.
#[derive(Debug)]
pub struct Keeping {
    path: PathBuf,
    root: Folder,
    /// How many bytes were copied.
    copied: u64,
    /// Whether there is more than before.
    has_more: bool,
}

impl Keeping {
    /// In the folder of this user, which is made if there is none. `None` if there is none to be.
    ///
    /// # Errors
    ///
    /// [`KeepingError`] if it cannot be made, or is another user's.
    pub fn begin() -> Result<Option<Self>, KeepingError> {
        let Some(path) = place::folder() else { return Ok(None) };
        Self::at(path).map(Some)
    }

    fn at(path: PathBuf) -> Result<Self, KeepingError> {
        let failed =
            |error: io::Error| KeepingError::Folder { path: path.clone(), error: error.into() };
        let check = |metadata: &Metadata| {
            let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
            let path = path.clone();
            let other = KeepingError::OfAnother { path, owner, user };
            if owner == user { Ok(()) } else { Err(other) }
        };
        if !path.exists() {
            // Someone's home in which another user, such as root, would leave things.
            if let Some(Ok(above)) = path.parent().map(Path::metadata) {
                check(&above)?;
            }
            let is_named = place::is_named();
            DirBuilder::new().mode(0o755).recursive(is_named).create(&path).map_err(failed)?;
        }
        let root = File::open(&path).map_err(failed)?;
        check(&root.metadata().map_err(failed)?)?;
        Ok(Self { path, root: Folder::new(root), copied: 0, has_more: false })
    }

    /// Keeps a file that is open. If its build id is not the one that it was recorded with, or it
    /// changes meanwhile, nothing is kept.
    ///
    /// # Errors
    ///
    /// [`KeepingError`] if it cannot be kept.
    pub fn keep(&mut self, origin: Origin<'_>, file: &File) -> Result<(), KeepingError> {
        if open(origin.build_id).is_some_and(|kept| has_build_id(kept, origin.build_id)) {
            mark_as_used(origin.build_id);
            return Ok(());
        }
        let folders = folders_of(origin.name, origin.build_id);
        let (folder, below) = self.make(&folders).or_else(|_| {
            // A part of the name may be that of a file here.
            self.make(&[OTHERS.into(), hex(origin.build_id).into()])
        })?;
        self.place(&folder, origin, file)?;
        self.publish(&folder, &below, origin.build_id)
    }

    /// Puts the bytes of a file into its folder: as a copy that shares them, as a copy of its own if
    /// that is small, as another name of it, or as a large copy.
    fn place(
        &mut self,
        folder: &Folder,
        origin: Origin<'_>,
        file: &File,
    ) -> Result<(), KeepingError> {
        let metadata = file.metadata()?;
        let may_be_copied =
            metadata.len() <= MAX_COPY && self.copied.saturating_add(metadata.len()) <= MAX_COPIES;
        if !(may_be_copied && metadata.len() <= SMALL)
            && may_be_linked(&metadata)
            && folder.link(ELF, file).is_ok()
        {
            return Ok(());
        }
        let mut copied = 0;
        folder.put(ELF, |out| {
            if ioctl_ficlone(out, file).is_err() {
                if !may_be_copied {
                    return Err(KeepingError::TooLarge(metadata.len()));
                }
                copied = copy(file, out, metadata.len())?;
            }
            let after = file.metadata()?;
            let stayed = |of: fn(&Metadata) -> i64| of(&metadata) == of(&after);
            let is_same = metadata.len() == after.len()
                && stayed(Metadata::mtime)
                && stayed(Metadata::mtime_nsec);
            if !is_same || !has_build_id(out.try_clone()?, origin.build_id) {
                return Err(KeepingError::Changed);
            }
            // Whoever may not read the file may not read the copy.
            let mode = Mode::from_raw_mode(metadata.mode() & 0o444) | Mode::RUSR;
            Ok(fchmod(out, mode).map_err(system)?)
        })?;
        self.copied = self.copied.saturating_add(copied);
        Ok(())
    }

    /// Keeps the symbols of the running kernel, as they are now. Those who may not see their
    /// addresses have none to keep.
    ///
    /// # Errors
    ///
    /// [`KeepingError`] if they cannot be kept.
    pub fn keep_kernel(&mut self, build_id: &[u8]) -> Result<(), KeepingError> {
        let list = start_of(Path::new("/proc/kallsyms"), HEAD)?;
        let modules = loaded_modules();
        let kept = link(build_id).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let is_kept = start_of(&kept.join(KALLSYMS), HEAD).is_ok_and(|kept| kept == list)
            && start_of(&kept.join(MODULES), MAX_KALLSYMS).is_ok_and(|kept| kept == modules);
        if is_kept {
            mark_as_used(build_id);
            return Ok(());
        }
        if !shows_addresses(&list) {
            return Ok(());
        }
        let (folder, below) = self.make(&[KERNEL.into(), hex(build_id).into()])?;
        folder.put(KALLSYMS, |mut out| {
            let mut list = File::open("/proc/kallsyms")?.take(MAX_KALLSYMS);
            io::copy(&mut list, &mut out).map(|_| ())
        })?;
        folder.put(MODULES, |mut out| out.write_all(&modules))?;
        self.publish(&folder, &below, build_id)
    }

    /// Ends it: what is here takes no more than its bound.
    pub fn finish(self) {
        if self.has_more {
            bounds::trim(&self.path, &self.root);
        }
    }

    /// Makes folders, each in the one before. Returns the last and where it is.
    fn make(&self, names: &[OsString]) -> io::Result<(Folder, PathBuf)> {
        let mut folder = Folder::new(self.root.file().try_clone()?);
        for name in names {
            folder = folder.make(name)?;
        }
        Ok((folder, names.iter().collect()))
    }

    /// Has the build id lead to a folder that is `below` the first one.
    fn publish(
        &mut self,
        folder: &Folder,
        below: &Path,
        build_id: &[u8],
    ) -> Result<(), KeepingError> {
        folder.put(MARK, |_| io::Result::Ok(()))?;
        self.has_more = true;
        let (first, rest) =
            names_of(build_id).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let links = self.root.make(LINKS)?.make(first)?;
        Ok(links.put_link(&rest, &Path::new("../..").join(below))?)
    }
}

/// The modules of the kernel where its symbols were read.
const MODULES: &str = "modules";

/// Whether another name of a file may be made: one that grants rights stays where its owner can
/// remove it, and what other users write into theirs is not wanted.
fn may_be_linked(file: &Metadata) -> bool {
    let owner = file.uid();
    let is_own = owner == 0 || owner == rustix::process::geteuid().as_raw();
    is_own && file.nlink() > 0 && file.mode() & 0o6000 == 0
}

/// Copies as many bytes as a file had, whatever the place at which others read it.
fn copy(from: &File, to: &File, len: u64) -> io::Result<u64> {
    let mut chunk = vec![0; 256 << 10];
    let mut at = 0;
    let mut to = to;
    while at < len {
        let read = from.read_at(&mut chunk, at)?;
        let bytes = chunk.get(..read).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        to.write_all(bytes)?;
        at = at.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    }
    Ok(at)
}

fn has_build_id(file: File, build_id: &[u8]) -> bool {
    ElfFile::from_file(file).is_ok_and(|file| file.build_id().as_deref() == Some(build_id))
}

/// Takes note that what is kept under a build id was recorded again.
fn mark_as_used(build_id: &[u8]) {
    let mark = link(build_id).map(|link| link.join(MARK));
    let open = |mark| File::options().write(true).custom_flags(libc::O_NOFOLLOW).open(mark);
    if let Some(Ok(mark)) = mark.map(open) {
        // Then it goes earlier than it might.
        let _ = mark.set_modified(SystemTime::now());
    }
}

/// The folders of a file, from the first one on: those of its path and one more, as perf has them.
fn folders_of(name: &[u8], build_id: &[u8]) -> Vec<OsString> {
    /// What a path has at most.
    const MAX_LEN: usize = 3_000;
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    let parts: Vec<&[u8]> =
        name.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect();
    // The name of memory may be any text.
    let is_folder = |part: &&[u8]| {
        !matches!(*part, b"." | b".." | b".build-id") && part.len() <= 255 && !part.contains(&0)
    };
    let is_path = !parts.is_empty() && name.len() <= MAX_LEN && parts.iter().all(is_folder);
    let parts = if is_path { parts } else { vec![OTHERS.as_bytes()] };
    let id = OsString::from(hex(build_id));
    parts.into_iter().map(|part| OsStr::from_bytes(part).to_owned()).chain([id]).collect()
}

/// What a file begins with.
fn start_of(path: &Path, len: u64) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    regular_file::open(path)?.take(len).read_to_end(&mut start)?;
    Ok(start)
}

/// Whether any address of a list of symbols is told.
fn shows_addresses(list: &[u8]) -> bool {
    list.split(|&byte| byte == b'\n').any(|line| {
        let addr = line.split(|&byte| byte == b' ').next().unwrap_or_default();
        addr.iter().any(|&digit| digit != b'0')
    })
}

/// The names and addresses of the modules of the kernel.
fn loaded_modules() -> Vec<u8> {
    let text = start_of(Path::new("/proc/modules"), MAX_KALLSYMS).unwrap_or_default();
    let mut modules = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        let mut words = line.split(|&byte| byte == b' ');
        if let (Some(name), Some(addr)) = (words.next(), words.nth(4)) {
            modules.extend([name, b" ", addr, b"\n"].concat());
        }
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k4_the_folders_of_a_name_stay_below_the_first_one() {
        let folders = |name: &[u8]| {
            let folders: PathBuf = folders_of(name, &[0xab, 0xcd]).into_iter().collect();
            folders.into_os_string().into_encoded_bytes()
        };
        assert_eq!(folders(b"/usr/bin/ls"), b"usr/bin/ls/abcd");
        assert_eq!(folders(b"/tmp/a b (deleted)"), b"tmp/a b/abcd");
        assert_eq!(folders(b"/memfd:runc (deleted)"), b"memfd:runc/abcd");
        let others = b"[others]/abcd";
        for name in [&b"/memfd:../../etc/x"[..], b"/memfd:/..", b"", b"/", b"/.build-id/ab/cd"] {
            assert_eq!(folders(name), others, "{name:?}");
        }
        assert_eq!(folders(&[b"/".as_slice(), &[b'a'; 300]].concat()), others);
    }

    #[test]
    fn k4_a_file_that_grants_rights_or_is_another_users_is_not_linked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = || file.as_file().metadata().unwrap();
        assert!(may_be_linked(&metadata()));
        fchmod(file.as_file(), Mode::from_raw_mode(0o4755)).unwrap();
        assert!(!may_be_linked(&metadata()));
        let gone = tempfile::tempfile().unwrap();
        assert!(!may_be_linked(&gone.metadata().unwrap()), "it has no name");
    }

    #[test]
    fn k4_a_folder_of_another_user_is_not_written_to() {
        if !nix::unistd::geteuid().is_root() {
            return test_support::skip("only root can make a folder of another user");
        }
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(home.path(), Some(1), None).unwrap();
        let error = Keeping::at(home.path().to_owned()).unwrap_err();
        assert!(matches!(error, KeepingError::OfAnother { owner: 1, user: 0, .. }), "{error}");
        let error = Keeping::at(home.path().join(".debug")).unwrap_err();
        assert!(matches!(error, KeepingError::OfAnother { owner: 1, user: 0, .. }), "{error}");
        assert!(!home.path().join(".debug").exists());
    }

    #[test]
    fn k4_addresses_that_are_all_zero_are_not_told() {
        assert!(!shows_addresses(b"0000000000000000 T _text\n0000000000000000 t a\n"));
        assert!(shows_addresses(b"0000000000000000 A zero\nffffffff81000000 T _text\n"));
    }
}

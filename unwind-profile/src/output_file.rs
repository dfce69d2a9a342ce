//! The one way in which the command writes a file that its user names: whole, or not at all.
//!
//! The bytes go into a new file in the same folder, of a name that nobody can have guessed and that
//! no link can stand under. It takes the name once everything is on the disk. Until then what was there
//! before stays as it is: if the disk is full, if the command is killed, and if the machine stops.
//!
//! A recording that is being made is not written so: what it has is to be readable whatever ends the
//! recorder.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use tempfile::{Builder, NamedTempFile};
use unwind_target::files::same_file::standard_output_at;

/// What any new file is created with. The mask of the process takes some away.
const NEW: u32 = 0o666;

/// The permissions that a file keeps when it is written anew.
const KEPT: u32 = 0o777;

/// A new file cannot be made in the folder.
#[derive(Debug, thiserror::Error)]
#[error("no new file can be made beside it: {0}")]
struct NoneBeside(#[source] io::Error);

/// Writes a file, which takes its name once it is whole. What is no regular file, such as a pipe
/// or a device, and where standard output goes to is written to as it is.
///
/// # Errors
///
/// What `write` fails with, and what opening, writing or renaming a file does. A file that was
/// there is then as it was.
pub fn write_file<T>(path: &Path, write: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
    write_file_as(path, NEW, write)
}

/// The same of a file which, if it is a new one, has these permissions but for what the mask of the
/// process takes away.
///
/// # Errors
///
/// As [`write_file`].
pub fn write_file_as<T>(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&File) -> io::Result<T>,
) -> io::Result<T> {
    match Target::find(path)? {
        Target::Opened(file) => write(&file),
        Target::Named { path, before } => {
            // What few could read before is at no time read by more.
            let mode = before.as_ref().map_or(mode, Metadata::mode);
            let file = beside(&path, mode)
                .map_err(|error| io::Error::new(error.kind(), NoneBeside(error)))?;
            if let Some(before) = before {
                keep_access(file.as_file(), &before)?;
            }
            let written = write(file.as_file())?;
            // A name that leads to bytes which are not on the disk yet would lead to none after a
            // power failure.
            file.as_file().sync_all()?;
            file.persist(path)?;
            Ok(written)
        }
    }
}

/// Where the bytes go.
enum Target {
    /// What keeps nothing, or is open already.
    Opened(File),
    /// A regular file, as it was before if it was there. No link stands under the path.
    Named { path: PathBuf, before: Option<Metadata> },
}

impl Target {
    fn find(path: &Path) -> io::Result<Self> {
        if let Some(output) = standard_output_at(path) {
            return Ok(Self::Opened(output));
        }
        // A handle opens nothing, so a pipe is not waited for and a device does nothing.
        let handle = match File::options().read(true).custom_flags(libc::O_PATH).open(path) {
            Ok(handle) => handle,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::Named { path: path.into(), before: None });
            }
            Err(error) => return Err(error),
        };
        let before = handle.metadata()?;
        if !before.is_file() {
            return File::options().write(true).open(path).map(Self::Opened);
        }
        // Who may write to the folder alone may not write to the file.
        accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS)?;
        // A link stays, and what it leads to is written.
        let path = fs::read_link(format!("/proc/self/fd/{}", handle.as_raw_fd()))?;
        Ok(Self::Named { path, before: Some(before) })
    }
}

/// A new file in the folder of another one. It is removed unless it takes that one's name.
fn beside(path: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut builder = Builder::new();
    // It does not have the name of the other one: names have a greatest length.
    builder.prefix(".unwind-").suffix(".partial").permissions(Permissions::from_mode(mode & KEPT));
    builder.tempfile_in(folder.unwrap_or(Path::new(".")))
}

/// Gives a file to whom another one belongs, and has it be read and written by the same.
fn keep_access(file: &File, before: &Metadata) -> io::Result<()> {
    let mut mode = before.mode() & KEPT;
    let now = file.metadata()?;
    if (now.uid(), now.gid()) != (before.uid(), before.gid())
        && fchown(file, Some(before.uid()), Some(before.gid())).is_err()
    {
        // Another group than before may do what others may, and no more.
        mode = mode & !0o070 | (mode & 0o007) << 3;
    }
    file.set_permissions(Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::*;

    /// The names in a folder, in order.
    fn names(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into()).collect();
        names.sort();
        names
    }

    #[test]
    fn n6_a_file_is_as_it_was_until_the_new_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"old").unwrap();
        let refused = write_file(&path, |mut file| {
            file.write_all(b"a part of the n")?;
            assert_eq!(fs::read(&path).unwrap(), b"old");
            Err::<(), _>(io::Error::from_raw_os_error(libc::ENOSPC))
        });
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(
            (fs::read(&path).unwrap(), names(folder.path())),
            (b"old".to_vec(), vec!["file".into()])
        );
        write_file(&path, |mut file| file.write_all(b"new")).unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), names(folder.path())),
            (b"new".to_vec(), vec!["file".into()])
        );
    }

    #[test]
    fn n6_a_file_keeps_its_permissions_and_a_new_one_has_those_of_any() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let usual = folder.path().join("usual");
        File::create(&usual).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        write_file(&path, |_| Ok(())).unwrap();
        assert_eq!(mode(&path), mode(&usual));
        for kept in [0o600, 0o640, 0o755] {
            fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
            let while_written = write_file(&path, |file| file.metadata()).unwrap();
            assert_eq!(while_written.mode() & 0o7777, kept);
            assert_eq!(mode(&path), kept);
        }
    }

    #[test]
    fn n6_a_link_stays_and_the_file_that_it_leads_to_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let (other, link) = (folder.path().join("other"), folder.path().join("link"));
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), b"old").unwrap();
        symlink("other/file", &link).unwrap();
        write_file(&link, |mut file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("other/file"));
        assert_eq!(fs::read(other.join("file")).unwrap(), b"new");
        assert_eq!(names(&other), [Path::new("file")]);
    }

    #[test]
    fn n6_what_is_no_regular_file_is_written_to_as_it_is() {
        write_file(Path::new("/dev/null"), |mut file| file.write_all(b"bytes")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        let full = write_file(Path::new("/dev/full"), |mut file| file.write_all(b"bytes"));
        assert_eq!(full.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        let folder = tempfile::tempdir().unwrap();
        let error = write_file(folder.path(), |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        let error = write_file(&folder.path().join("none/file"), |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }
}

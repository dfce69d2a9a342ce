//! Opens files that someone else names: a process by its mappings, a core file, a
//! recording.
//!
//! Such a name may lead to a pipe that nothing is ever written to, to a device that
//! does something when it is opened, to a lease that its holder gives back late. So
//! the file is looked at first, by a handle that opens nothing, and then opened
//! without waiting, if it is a regular one; between the two it cannot change.
//! What a user names on the command line may be anything.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

/// Opens a regular file to read it.
///
/// # Errors
///
/// As opening a file; of one that is not regular the inner error says so.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, 0)
}

/// The same of a path whose last part is no symbolic link: in a folder like `/tmp` each user may
/// put one that leads to a file of another.
///
/// # Errors
///
/// As [`open`]; a link is no regular file.
pub(crate) fn open_no_link(path: &Path) -> io::Result<File> {
    open_with(path, libc::O_NOFOLLOW)
}

/// The same of a path below a folder, the root of a process, by no link at all: whoever writes there
/// cannot lead out of it.
///
/// # Errors
///
/// As [`open`]; also where the system knows no such way (before Linux 5.6).
pub(crate) fn open_below(root: &Path, path: &Path) -> io::Result<File> {
    let root = File::open(root)?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let handle = openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    reopen(&File::from(handle))
}

/// Opens a file of a machine whose files are below `sysroot`, links among them as they are
/// there.
///
/// # Errors
///
/// As [`open`].
pub(crate) fn open_in(sysroot: &Path, path: &Path) -> io::Result<File> {
    let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(sysroot)?;
    let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::IN_ROOT);
    let file = openat2(&root, path, flags, Mode::empty(), resolve)?;
    reopen(&File::from(file))
}

fn open_with(path: &Path, flags: i32) -> io::Result<File> {
    reopen(&OpenOptions::new().read(true).custom_flags(libc::O_PATH | flags).open(path)?)
}

/// Opens what a handle is of, if it is a regular file.
fn reopen(handle: &File) -> io::Result<File> {
    if !handle.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, NotRegular));
    }
    let same = format!("/proc/self/fd/{}", handle.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(same)
}

/// What a name leads to is a directory, a pipe, a device or a socket.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it is not a regular file")]
pub(crate) struct NotRegular;

impl NotRegular {
    /// Whether this is why a file was not opened.
    pub(crate) fn is_why(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_none_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        let started = Instant::now();
        for path in [&fifo, &link, directory.path(), Path::new("/dev/zero"), Path::new("/dev/ptmx")]
        {
            let error = open(path).unwrap_err();
            assert!(NotRegular::is_why(&error), "{}: {error}", path.display());
        }
        assert!(started.elapsed() < Duration::from_secs(10));

        let file = directory.path().join("file");
        std::fs::write(&file, b"bytes").unwrap();
        assert_eq!(io::read_to_string(open(&file).unwrap()).unwrap(), "bytes");
        let to_file = directory.path().join("to file");
        std::os::unix::fs::symlink(&file, &to_file).unwrap();
        assert!(open(&to_file).is_ok() && open_no_link(&file).is_ok());
        assert!(NotRegular::is_why(&open_no_link(&to_file).unwrap_err()));
        let error = open(&directory.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!NotRegular::is_why(&error));
    }
}

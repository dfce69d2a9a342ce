//! Folders in which files are made. Others may write there at the same time, and a link that one
//! of them has put there leads nowhere: each folder is opened in the one before, by no link.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, renameat, symlinkat, unlinkat};
use rustix::io::Errno;

use crate::files::build_id_cache::system;

/// A folder that is open.
#[derive(Debug)]
pub(super) struct Folder(File);

/// What a folder is opened with.
const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Folder {
    pub(super) const fn new(folder: File) -> Self {
        Self(folder)
    }

    /// The folder itself.
    pub(super) const fn file(&self) -> &File {
        &self.0
    }

    /// A folder in it.
    ///
    /// # Errors
    ///
    /// Where there is none, or a link to one.
    pub(super) fn open(&self, name: impl AsRef<Path>) -> io::Result<Self> {
        let folder = openat(&self.0, name.as_ref(), FOLDER, Mode::empty()).map_err(system)?;
        Ok(Self(folder.into()))
    }

    /// A folder in it, made if there is none.
    ///
    /// # Errors
    ///
    /// Where it cannot be made, or something else has the name.
    pub(super) fn make(&self, name: impl AsRef<Path>) -> io::Result<Self> {
        let name = name.as_ref();
        match self.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        match mkdirat(&self.0, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => self.open(name),
            Err(error) => Err(system(error)),
        }
    }

    /// Makes a file that has no name of its own yet, and hands it to `fill`. Where that succeeds it
    /// takes the place of what has the name.
    ///
    /// # Errors
    ///
    /// Those of `fill`, and where it cannot be made.
    pub(super) fn put<E: From<io::Error>>(
        &self,
        name: &str,
        fill: impl FnOnce(&File) -> Result<(), E>,
    ) -> Result<(), E> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (temporary, file) = self.with_new_name(|temporary| {
            openat(&self.0, temporary, flags, Mode::RUSR | Mode::WUSR)
        })?;
        let filled = fill(&File::from(file));
        let placed = filled.and_then(|()| Ok(self.rename(&temporary, name)?));
        if placed.is_err() {
            let _ = unlinkat(&self.0, &*temporary, AtFlags::empty());
        }
        placed
    }

    /// Gives a file another name here, which it takes from what has it.
    ///
    /// # Errors
    ///
    /// Where the file is on another disk, has no name any more, or may not be linked.
    pub(super) fn link(&self, name: &str, file: &File) -> io::Result<()> {
        use std::os::fd::AsRawFd as _;
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        let (temporary, ()) = self.with_new_name(|temporary| {
            rustix::fs::linkat(
                rustix::fs::CWD,
                &*opened,
                &self.0,
                temporary,
                AtFlags::SYMLINK_FOLLOW,
            )
        })?;
        let placed = self.rename(&temporary, name);
        // Two names of one file stay both.
        let _ = unlinkat(&self.0, &*temporary, AtFlags::empty());
        placed
    }

    /// Makes a symbolic link, which takes the place of another one.
    ///
    /// # Errors
    ///
    /// Where it cannot be made, or a folder has the name.
    pub(super) fn put_link(&self, name: &str, target: &Path) -> io::Result<()> {
        let (temporary, ()) =
            self.with_new_name(|temporary| symlinkat(target, &self.0, temporary))?;
        let placed = self.rename(&temporary, name);
        if placed.is_err() {
            let _ = unlinkat(&self.0, &*temporary, AtFlags::empty());
        }
        placed
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        renameat(&self.0, from, &self.0, to).map_err(system)
    }

    /// Has something made under a name that nothing has.
    fn with_new_name<T>(&self, make: impl Fn(&str) -> Result<T, Errno>) -> io::Result<(String, T)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        for _ in 0..100 {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!(".unwind-{}-{number}", std::process::id());
            match make(&name) {
                Err(Errno::EXIST) => {}
                made => return made.map(|made| (name, made)).map_err(system),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    fn folder(path: &Path) -> Folder {
        Folder::new(File::open(path).unwrap())
    }

    #[test]
    fn k4_nothing_is_written_through_a_link_that_someone_has_put_there() {
        let (shared, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let here = folder(shared.path());
        std::os::unix::fs::symlink(outside.path(), shared.path().join("usr")).unwrap();
        assert!(here.make("usr").is_err() && here.open("usr").is_err());
        let victim = outside.path().join("victim");
        fs::write(&victim, b"old").unwrap();
        std::os::unix::fs::symlink(&victim, shared.path().join("elf")).unwrap();
        here.put("elf", |mut file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"old");
        let made = shared.path().join("elf");
        assert_eq!(fs::read(&made).unwrap(), b"new");
        assert!(fs::symlink_metadata(&made).unwrap().is_file(), "it took the link's place");
    }

    #[test]
    fn k4_a_file_that_cannot_be_filled_leaves_nothing() {
        let shared = tempfile::tempdir().unwrap();
        let here = folder(shared.path());
        here.put("elf", |mut file| file.write_all(b"old")).unwrap();
        let full = here.put("elf", |_| Err(io::Error::from(io::ErrorKind::StorageFull)));
        assert!(full.is_err());
        let names: Vec<_> =
            fs::read_dir(shared.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["elf"]);
        assert_eq!(fs::read(shared.path().join("elf")).unwrap(), b"old");
        // A second name of one file leaves nothing either.
        let file = File::open(shared.path().join("elf")).unwrap();
        here.link("elf", &file).unwrap();
        here.link("other", &file).unwrap();
        assert_eq!(fs::read_dir(shared.path()).unwrap().count(), 2);
    }
}

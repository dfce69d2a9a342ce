//! The files that a recording is written to: one, or one after the other of which the oldest go.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Seek as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use chrono::{DateTime, NaiveDateTime, Utc};
use unwind_profile::recording::error::PerfError;
use unwind_target::untrusted::plain;

/// What stands after the name of a file that is one of many: when it was begun, by the time of
/// Greenwich. Names are in the order of times.
const STAMP: &str = "%Y%m%dT%H%M%S%.3fZ";

/// What stands after the name of one that is not whole.
const PART: &str = ".part";

/// Where to write.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) path: PathBuf,
    /// How many bytes files of the same name may have together; without it there is one.
    pub(crate) limit: Option<u64>,
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: File,
    /// Where it is, and where it is to be.
    pub(crate) at: PathBuf,
    pub(crate) path: PathBuf,
}

impl OpenFile {
    /// Takes away what was in it before. Until then a recording that does not come about leaves an
    /// earlier one as it is.
    pub(crate) fn clear(&self) -> io::Result<()> {
        // Others, as devices and pipes, keep nothing.
        if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) }
    }
}

impl Files {
    /// Begins the file of what is recorded from then on.
    ///
    /// # Errors
    ///
    /// [`PerfError`] if it cannot be made, or its start not be written once its end is known.
    pub(crate) fn begin(&self, time: SystemTime) -> Result<OpenFile, PerfError> {
        // As other commands call standard output, which may be a file or not.
        if self.path.as_os_str() == "-" {
            return Err(PerfError::FileFormToPipe);
        }
        let path = match self.limit {
            None => self.path.clone(),
            Some(_) => with(&self.path, &format!(".{}", DateTime::<Utc>::from(time).format(STAMP))),
        };
        let at = if self.limit.is_some() { with(&path, PART) } else { path.clone() };
        let mut options = File::options();
        // Others know when a file will be begun: a link that stands under its name leads elsewhere.
        match self.limit {
            Some(_) => options.create_new(true),
            None => options.create(true).truncate(false),
        };
        // As of perf: it has addresses of the kernel and of programs.
        let mut file = options.write(true).mode(0o600).open(&at)?;
        if file.stream_position().is_err() {
            return Err(PerfError::FileFormToPipe);
        }
        Ok(OpenFile { file, at, path })
    }

    /// Ends a file, which is whole, and removes the oldest ones that are too many.
    pub(crate) fn finish(&self, at: &Path, path: &Path) -> io::Result<()> {
        let Some(limit) = self.limit else { return Ok(()) };
        fs::rename(at, path)?;
        let mut files = self.all()?;
        // This one stays. Its folder may be written in another way.
        files.retain(|(other, _)| other.file_name() != path.file_name());
        let mut left = limit.saturating_sub(fs::metadata(path)?.len());
        for (path, len) in files.into_iter().rev() {
            match left.checked_sub(len) {
                Some(rest) => left = rest,
                None => {
                    left = 0;
                    fs::remove_file(path)?;
                }
            }
        }
        Ok(())
    }

    /// All files with such names and their lengths, the oldest first.
    fn all(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let name = self.path.file_name().unwrap_or_default();
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let is_one = is_stamped(entry.file_name().as_bytes(), name.as_bytes());
            // One that is gone by now is none.
            if let Ok(metadata) = entry.metadata()
                && is_one
                && metadata.is_file()
            {
                files.push((entry.path(), metadata.len()));
            }
        }
        files.sort();
        Ok(files)
    }
}

/// A path with this at its end.
fn with(path: &Path, end: &str) -> PathBuf {
    let mut bytes = path.as_os_str().as_bytes().to_vec();
    bytes.extend(end.as_bytes());
    OsString::from_vec(bytes).into()
}

/// Whether a name is `name` with a time after it.
fn is_stamped(of_file: &[u8], name: &[u8]) -> bool {
    let stamp = of_file.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"."));
    let stamp = stamp.map(|stamp| stamp.strip_suffix(PART.as_bytes()).unwrap_or(stamp));
    let stamp = stamp.and_then(plain);
    stamp.is_some_and(|stamp| NaiveDateTime::parse_from_str(stamp, STAMP).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d14_the_oldest_files_go_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files { path: folder.path().join("perf.data"), limit: Some(250) };
        let write = |name: &str| fs::write(folder.path().join(name), [0; 100]).unwrap();
        let stamped = |second: u8| format!("perf.data.20260102T0304{second:02}.000Z");
        let others = ["perf.data", "perf.data.old", "other.data.20260102T030405.000Z"];
        others.into_iter().for_each(write);
        // One that was never finished.
        write(&format!("{}{PART}", stamped(1)));
        for second in 2..5 {
            write(&format!("{}{PART}", stamped(second)));
            let path = folder.path().join(stamped(second));
            files.finish(&with(&path, PART), &path).unwrap();
        }
        let mut names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        let kept = [stamped(3), stamped(4)];
        let mut expected = [&others[..], &[&kept[0], &kept[1]]].concat();
        expected.sort_unstable();
        assert_eq!(names, expected);
        // One that is longer than the limit stays as long as it is the last one.
        let none = Files { limit: Some(1), ..files };
        let path = folder.path().join(stamped(6));
        write(&format!("{}{PART}", stamped(6)));
        none.finish(&with(&path, PART), &path).unwrap();
        assert!(path.exists() && !folder.path().join(stamped(4)).exists());
    }

    #[test]
    fn d14_a_file_is_called_by_its_time_and_is_part_of_one_until_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files { path: folder.path().join("a"), limit: Some(1) };
        let OpenFile { at, path, .. } = files.begin(SystemTime::now()).unwrap();
        assert!(at.exists() && !path.exists());
        assert!(is_stamped(path.file_name().unwrap().as_bytes(), b"a"), "{path:?}");
        let OpenFile { at, path, .. } =
            Files { limit: None, ..files }.begin(SystemTime::UNIX_EPOCH).unwrap();
        assert!(at == path && at.ends_with("a"));
    }
    #[test]
    fn n6_a_link_under_the_name_of_a_part_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, b"whole").unwrap();
        let files = Files { path: folder.path().join("a"), limit: Some(1) };
        let OpenFile { at, .. } = files.begin(SystemTime::UNIX_EPOCH).unwrap();
        fs::remove_file(&at).unwrap();
        std::os::unix::fs::symlink(&victim, &at).unwrap();
        let error = files.begin(SystemTime::UNIX_EPOCH).unwrap_err();
        let is_there = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
        assert!(matches!(&error, PerfError::Io(error) if is_there(error)), "{error}");
        assert_eq!(fs::read(&victim).unwrap(), b"whole");
    }
}

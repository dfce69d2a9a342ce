//! How much is kept: the oldest goes first, of what this command has put there. What perf has is
//! left alone.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{AtFlags, unlinkat};

use crate::files::build_id_cache::folder::Folder;
use crate::files::build_id_cache::{ELF, KALLSYMS, LINKS};

/// A file in each folder that this command has made. Its time is that of the last recording that
/// has samples of what is kept there.
pub(super) const MARK: &str = ".unwind";

/// How many bytes are kept.
const LIMIT: u64 = 2 << 30;

/// How many folders are looked at.
const MAX_FOLDERS: usize = 1 << 16;

/// What is kept under a build id.
#[derive(Debug)]
struct Kept {
    used: SystemTime,
    bytes: u64,
    /// The link to it, and where that leads, both from the first folder on.
    link: PathBuf,
    folder: PathBuf,
}

/// Removes the oldest until the rest takes no more than the limit.
pub(super) fn trim(path: &Path, root: &Folder) {
    trim_to(LIMIT, path, root);
}

fn trim_to(limit: u64, path: &Path, root: &Folder) {
    let mut all: Vec<Kept> = kept(path).take(MAX_FOLDERS).collect();
    let mut bytes = all.iter().fold(0_u64, |sum, kept| sum.saturating_add(kept.bytes));
    all.sort_by_key(|kept| kept.used);
    for kept in &all {
        if bytes <= limit {
            break;
        }
        // What cannot be removed takes its room for now.
        if remove(root, kept).is_ok() {
            bytes = bytes.saturating_sub(kept.bytes);
        }
    }
}

fn kept(path: &Path) -> impl Iterator<Item = Kept> {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    entries(&path.join(LINKS)).flat_map(move |first| {
        entries(&first.path()).filter_map(move |rest| {
            let link = rest.path();
            let used = link.join(MARK).symlink_metadata().ok()?.modified().ok()?;
            let files = [ELF, KALLSYMS].map(|name| link.join(name).symlink_metadata().ok());
            let bytes = files.iter().flatten().map(bytes_of).fold(0, u64::saturating_add);
            let folder = fs::read_link(&link).ok()?.strip_prefix("../..").ok()?.to_owned();
            let link = Path::new(LINKS).join(first.file_name()).join(rest.file_name());
            Some(Kept { used, bytes, link, folder })
        })
    })
}

/// What a file takes. One that has another name takes nothing here.
fn bytes_of(file: &Metadata) -> u64 {
    if file.nlink() > 1 { 0 } else { file.blocks().saturating_mul(512) }
}

fn remove(root: &Folder, kept: &Kept) -> io::Result<()> {
    let (link_name, links) = split(&kept.link)?;
    let links = open(root, &links)?;
    let (_, above) = split(&kept.folder)?;
    let folder = open(root, &names(&kept.folder)?)?;
    for name in [ELF, KALLSYMS, "modules", MARK] {
        let _ = unlinkat(folder.file(), name, AtFlags::empty());
    }
    unlinkat(links.file(), link_name, AtFlags::empty())?;
    // Folders that have something else stay.
    let mut last = kept.folder.clone();
    let mut above = above;
    while let Some(name) = last.file_name() {
        let parent = open(root, &above)?;
        if unlinkat(parent.file(), name, AtFlags::REMOVEDIR).is_err() {
            break;
        }
        last.pop();
        above.pop();
    }
    Ok(())
}

/// A folder by the names of those that it is in.
fn open(root: &Folder, names: &[OsString]) -> io::Result<Folder> {
    let mut folder = Folder::new(root.file().try_clone()?);
    for name in names {
        folder = folder.open(name)?;
    }
    Ok(folder)
}

/// The last name of a path, and those before it.
fn split(path: &Path) -> io::Result<(OsString, Vec<OsString>)> {
    let mut names = names(path)?;
    let last = names.pop().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((last, names))
}

/// The names of a path that leads only down.
fn names(path: &Path) -> io::Result<Vec<OsString>> {
    let names = path.components().map(|part| match part {
        Component::Normal(name) => Ok(name.to_owned()),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    #[test]
    fn k4_the_oldest_goes_first_and_what_others_have_put_there_stays() {
        let cache = tempfile::tempdir().unwrap();
        let path = cache.path();
        let put = |id: &str, age: Option<u64>| {
            let folder = path.join("usr/bin").join(id).join(id);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(ELF), [1; 64 << 10]).unwrap();
            if let Some(age) = age {
                let mark = File::create(folder.join(MARK)).unwrap();
                mark.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
            }
            let links = path.join(LINKS).join(&id[..2]);
            fs::create_dir_all(&links).unwrap();
            let target = Path::new("../../usr/bin").join(id).join(id);
            std::os::unix::fs::symlink(target, links.join(&id[2..])).unwrap();
        };
        put("aa01", Some(30));
        put("aa02", Some(10));
        put("bb03", Some(20));
        put("cc04", None);
        let root = Folder::new(File::open(path).unwrap());
        let is_there = |id: &str| {
            let link = path.join(LINKS).join(&id[..2]).join(&id[2..]);
            assert_eq!(link.symlink_metadata().is_ok(), path.join("usr/bin").join(id).exists());
            link.join(ELF).exists()
        };
        let there = || ["aa01", "aa02", "bb03", "cc04"].map(is_there);
        trim_to(192 << 10, path, &root);
        assert_eq!(there(), [true; 4]);
        trim_to(191 << 10, path, &root);
        assert_eq!(there(), [false, true, true, true]);
        trim_to(64 << 10, path, &root);
        assert_eq!(there(), [false, true, false, true]);
        trim_to(0, path, &root);
        assert_eq!(there(), [false, false, false, true]);
        // A link that leads out of the cache is not followed.
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join(ELF), [1; 64 << 10]).unwrap();
        fs::write(outside.path().join(MARK), b"").unwrap();
        std::os::unix::fs::symlink(outside.path(), path.join(LINKS).join("aa/05")).unwrap();
        let up = Path::new("../../../").join(outside.path().file_name().unwrap());
        std::os::unix::fs::symlink(up, path.join(LINKS).join("aa/06")).unwrap();
        trim_to(0, path, &root);
        assert!(outside.path().join(ELF).exists());
    }
}

//! Where the files are.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::files::regular_file;

/// What perf's scripts know the folder by.
const VARIABLE: &str = "PERF_BUILDID_DIR";

/// The folder: what `PERF_BUILDID_DIR` says, else `buildid.dir` of perf's configuration, else
/// `~/.debug`. `None` if there is none to be, which `/dev/null` means.
pub(crate) fn folder() -> Option<PathBuf> {
    let home = env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let named = env::var_os(VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folder =
        named.or_else(|| configured(home.as_deref())).or_else(|| Some(home?.join(".debug")))?;
    (folder != Path::new("/dev/null")).then_some(folder)
}

/// Whether the user has named the folder for this command alone.
pub(super) fn is_named() -> bool {
    env::var_os(VARIABLE).is_some_and(|folder| !folder.is_empty())
}

/// What a user's configuration of perf says, or that of the machine.
fn configured(home: Option<&Path>) -> Option<PathBuf> {
    let own = home.map(|home| home.join(".perfconfig"));
    let files = [own, Some(PathBuf::from("/etc/perfconfig"))];
    let found = files.into_iter().flatten().find_map(|path| {
        let mut text = Vec::new();
        let file = regular_file::open(&path).ok()?;
        File::take(file, LIMIT).read_to_end(&mut text).ok()?;
        folder_in(&text)
    })?;
    match (found.strip_prefix("~"), home) {
        (Ok(below), Some(home)) => Some(home.join(below)),
        _ => Some(found),
    }
}

/// The longest configuration that is read, in bytes.
const LIMIT: u64 = 64 << 10;

/// `dir` in the section `[buildid]` of a configuration.
fn folder_in(text: &[u8]) -> Option<PathBuf> {
    let mut is_there = false;
    let mut folder = None;
    for line in text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii) {
        if let Some(section) = line.strip_prefix(b"[") {
            is_there =
                section.strip_suffix(b"]").is_some_and(|name| name.trim_ascii() == b"buildid");
            continue;
        }
        let mut parts = line.splitn(2, |&byte| byte == b'=');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else { continue };
        if is_there && name.trim_ascii() == b"dir" {
            let value = value.trim_ascii();
            let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
            let value = unquoted.unwrap_or(value);
            folder = (!value.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(value)));
        }
    }
    folder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k4_the_folder_is_where_the_configuration_of_perf_has_it() {
        let found = |text: &str| folder_in(text.as_bytes());
        assert_eq!(found("[buildid]\n\tdir = /var/cache/ids\n"), Some("/var/cache/ids".into()));
        assert_eq!(found("[buildid]\ndir=\"/a b\"\n[report]\ndir=/c\n"), Some("/a b".into()));
        assert_eq!(found("# dir=/x\n[report]\ndir=/c\n"), None);
        assert_eq!(found("[buildid]\n# dir = /x\n"), None);
        assert_eq!(found("[buildid]\ndir =\n"), None);
    }
}

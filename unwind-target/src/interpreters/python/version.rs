//! Versions of CPython.

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The first two numbers of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    pub(super) major: u8,
    pub(super) minor: u8,
}

impl Version {
    /// The number that the interpreter has itself, as `0x030b07f0`.
    pub(super) fn of_number(number: u64) -> Self {
        let [.., minor, major, _, _, _, _] = number.to_le_bytes();
        Self { major, minor }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The version in the name of a program or library (`python3.9`, `libpython3.9.so.1.0`), of a folder of
/// modules, or of a module (`_struct.cpython-39-x86_64-linux-gnu.so`).
pub(super) fn version_in_path(path: &Path) -> Option<Version> {
    let path = path.as_os_str().as_bytes();
    after(path, b"python3.").or_else(|| after(path, b".cpython-3"))
}

/// The version whose minor number is after a mark.
fn after(path: &[u8], mark: &[u8]) -> Option<Version> {
    let at = memchr::memmem::rfind(path, mark)?.checked_add(mark.len())?;
    let digits = path.get(at..)?.iter().take_while(|byte| byte.is_ascii_digit());
    let digit = |minor: Option<u8>, digit: &u8| -> Option<u8> {
        minor?.checked_mul(10)?.checked_add(digit.wrapping_sub(b'0'))
    };
    let mut digits = digits.peekable();
    digits.peek()?;
    Some(Version { major: 3, minor: digits.fold(Some(0), digit)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_programs_libraries_and_modules_have_the_version() {
        for (path, minor) in [
            ("/usr/bin/python3.11", Some(11)),
            ("/usr/lib/libpython3.9.so.1.0", Some(9)),
            ("/x/lib-dynload/_struct.cpython-310-x86_64-linux-gnu.so", Some(10)),
            ("/usr/lib/python3.12/lib-dynload/_x.so", Some(12)),
            ("/usr/bin/python3", None),
            ("/usr/bin/python3.999", None),
            ("/usr/bin/python2.7", None),
        ] {
            let found = version_in_path(Path::new(path));
            assert_eq!(found.map(|version| version.minor), minor, "{path}");
        }
        let version = Version::of_number(0x030b_07f0);
        assert_eq!(version, Version { major: 3, minor: 11 });
    }
}

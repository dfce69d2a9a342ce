//! Where the files of a day and a host are: `day=2026-11-23/host=web-1`, as readers expect it
//! that leave out whole folders.

use std::fmt::Write as _;
use std::path::PathBuf;

use chrono::NaiveDate;

/// The longest name of a host in a path, in bytes.
const MAX_HOST: usize = 200;

/// What a host is called whose name is not known.
pub(super) const UNKNOWN: &str = "unknown";

/// The folder of a day, by the time of Greenwich, and a host.
pub(super) fn folder(day: NaiveDate, host: &str) -> PathBuf {
    [format!("day={day}"), format!("host={}", encoded(host))].iter().collect()
}

/// The name with all that could mean something in a path as `%` and two digits.
fn encoded(host: &str) -> String {
    let mut name = String::new();
    for byte in host.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let _ =
            if is_plain { name.write_char(char::from(byte)) } else { write!(name, "%{byte:02X}") };
        if name.len() >= MAX_HOST {
            break;
        }
    }
    if name.is_empty() { UNKNOWN.to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c9_the_name_of_a_host_leads_out_of_no_folder() {
        let day = NaiveDate::from_ymd_opt(2026, 3, 9).unwrap();
        let folder = |host| folder(day, host).into_os_string().into_encoded_bytes();
        assert_eq!(folder("web-1.example"), b"day=2026-03-09/host=web-1.example");
        assert_eq!(folder(""), b"day=2026-03-09/host=unknown");
        assert_eq!(folder("../a b\\x1b"), b"day=2026-03-09/host=..%2Fa%20b%5Cx1b");
        assert!(folder(&"ü".repeat(1_000)).len() < 255);
    }
}

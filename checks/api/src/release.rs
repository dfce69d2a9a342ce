//! What a release promised: its interface, as long as the version says that programs need no change.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::Path;

/// The last release. Its interfaces are in the folder of this name.
pub(crate) const RELEASE: &str = "0.1.0";

/// Prints what of the release's interface of a package is gone or changed; `now` is what there is. Returns
/// whether nothing is, the version says so, or `compatible.txt` has it. What is only new is not looked at: a
/// variant of an enum that may not grow, or a method that a trait requires, breaks programs, too.
pub(crate) fn is_kept(package: &str, now: &str) -> Result<bool, Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let promised = here.join(RELEASE).join(format!("{package}.txt"));
    // A library that is newer than the release.
    if !promised.exists() || is_incompatible(&version(here)?, RELEASE) {
        return Ok(true);
    }
    let promised = fs::read_to_string(promised)?;
    let compatible = fs::read_to_string(here.join(RELEASE).join("compatible.txt"))?;
    let compatible: BTreeSet<&str> = compatible.lines().collect();
    let now: BTreeSet<&str> = now.lines().collect();
    let gone = promised.lines().filter(|item| !now.contains(item));
    let gone = gone.map(|item| format!("{package}: - {item}"));
    let gone: BTreeSet<String> = gone.filter(|line| !compatible.contains(&**line)).collect();
    for line in &gone {
        println!("{line}");
    }
    Ok(gone.is_empty())
}

/// The version of the workspace.
fn version(here: &Path) -> Result<String, Box<dyn Error>> {
    let manifest = fs::read_to_string(here.join("../../Cargo.toml"))?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
    let version = version.and_then(|rest| rest.strip_suffix('"'));
    Ok(version.ok_or("Cargo.toml has no version")?.to_owned())
}

/// Whether programs made for version `old` may need a change for `new`: the first number that is not zero
/// differs.
fn is_incompatible(new: &str, old: &str) -> bool {
    let first = |version: &str| {
        let numbers: Vec<&str> = version.split('.').collect();
        let len =
            numbers.iter().position(|number| *number != "0").map_or(numbers.len(), |at| at + 1);
        numbers[..len].join(".")
    };
    first(new) != first(old)
}

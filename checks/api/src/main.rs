//! Writes the public interface of each library to `api/CRATE.txt`, or compares it. Either way it compares
//! with the interface of the last release, too.
//!
//! ```text
//! checks/api/run            compares; exits 1 where an interface changed
//! checks/api/run --write    writes what there is now
//! ```

mod release;

use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use crate::release::{RELEASE, is_kept};

/// The packages, and the names of their libraries.
const LIBRARIES: [(&str, &str); 11] = [
    ("unwind-core", "unwind_core"),
    ("unwind-cfi", "unwind_cfi"),
    ("unwind-sframe", "sframe"),
    ("unwind-x86", "unwind_x86"),
    ("unwind-guest", "unwind_guest"),
    ("unwind-perf", "unwind_perf"),
    ("unwind-kit", "unwind"),
    ("unwind-local", "unwind_local"),
    ("unwind-target", "unwind_target"),
    ("unwind-bpf", "unwind_bpf"),
    ("unwind-profile", "unwind_profile"),
];

fn main() -> ExitCode {
    let write = match env::args().nth(1).as_deref() {
        None => false,
        Some("--write") => true,
        Some(other) => {
            eprintln!("usage: checks/api/run [--write], not {other}");
            return ExitCode::FAILURE;
        }
    };
    let (mut changed, mut broken) = (false, false);
    for (package, library) in LIBRARIES {
        let looked_at = listing(package, library)
            .and_then(|now| Ok((take(package, &now, write)?, is_kept(package, &now)?)));
        match looked_at {
            Ok((same, kept)) => {
                changed |= !same;
                broken |= !kept;
            }
            Err(error) => {
                eprintln!("{package}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    if changed {
        eprintln!("if that is meant: checks/api/run --write, and a line in CHANGELOG.md");
    }
    if broken {
        eprintln!(
            "release {RELEASE} has what is gone: give the workspace a version that is not compatible, \
             or say in checks/api/{RELEASE}/compatible.txt why no program breaks"
        );
    }
    ExitCode::from(u8::from(changed || broken))
}

/// The interface with all features, one item a line.
fn listing(package: &str, library: &str) -> Result<String, Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = root.join("target/api");
    let status = Command::new("cargo")
        .args(["rustdoc", "--locked", "--quiet", "--all-features", "--lib", "--package", package])
        .arg("--target-dir")
        .arg(&target)
        .args(["--", "-Zunstable-options", "--output-format=json", "--cap-lints=allow"])
        .args(is_partly_hidden(package).then_some("--document-hidden-items"))
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(&root)
        .status()?;
    if !status.success() {
        return Err("rustdoc failed".into());
    }
    let json: PathBuf = target.join("doc").join(format!("{library}.json"));
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(false)
        .build()?;
    let lines = api.items().map(|item| format!("{item}\n"));
    Ok(lines.filter(|line| !is_partly_hidden(package) || is_at_root(line, library)).collect())
}

/// Whether the modules of a library are for this workspace alone, and its interface is what the root passes
/// on from them: rustdoc leaves that out with the modules.
fn is_partly_hidden(package: &str) -> bool {
    ["unwind-target", "unwind-profile"].contains(&package)
}

/// Whether an item is one of the root of a library or belongs to one.
fn is_at_root(line: &str, library: &str) -> bool {
    let item = match line.strip_prefix("impl") {
        Some(of) => of.split_once(" for ").map_or(of, |(_, of)| of),
        None => line,
    };
    let Some((_, path)) = item.split_once(&format!("{library}::")) else { return true };
    let first = path.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next();
    let len = first.map_or(0, str::len);
    !(path.starts_with(char::is_lowercase) && path[len..].starts_with("::"))
}

/// Writes a listing, or compares it with the written one and shows what differs.
fn take(package: &str, now: &str, write: bool) -> Result<bool, Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{package}.txt"));
    if write {
        fs::write(path, now)?;
        return Ok(true);
    }
    let written = fs::read_to_string(path)?;
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (old, new) = (lines(&written), lines(now));
    for gone in old.difference(&new) {
        println!("{package}: - {gone}");
    }
    for added in new.difference(&old) {
        println!("{package}: + {added}");
    }
    if written != now && old == new {
        println!("{package}: the same items in another order or number");
    }
    Ok(written == now)
}

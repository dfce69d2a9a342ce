//! Compares the rows of files with gimli's: `against_gimli FILE...`.
//!
//! Each row of each FDE, at its start and at its end, and 10,000 random places of the code
//! of each file. Registers and memory are made up; both have to lead to the same CFA, return
//! address and frame pointer. The exit status is 1 if a place differs, or no file is named.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::std_instead_of_alloc,
    reason = "no library"
)]

#[path = "../tests/gimli_files/mod.rs"]
mod gimli_files;
#[path = "../tests/gimli_frames/mod.rs"]
mod gimli_frames;

use std::process::ExitCode;

use gimli_files::{Comparison, compare};

fn main() -> ExitCode {
    let mut sum = Comparison::default();
    let mut files = 0;
    if std::env::args_os().len() < 2 {
        eprintln!("which files? against_gimli FILE...");
        return ExitCode::FAILURE;
    }
    for path in std::env::args_os().skip(1) {
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let Some(found) = compare(&bytes, 10_000) else { continue };
        files += 1;
        if !found.differ.is_empty() {
            println!("{}: {:#?}", path.display(), found.differ);
        }
        add(&mut sum, found);
    }
    println!(
        "{files} files, {} places: {} same, {} in no FDE, {} differ, {} only here; no row can \
         say {:?}; largest FDE {} bytes",
        sum.looked_at,
        sum.same,
        sum.none,
        sum.differ.len(),
        sum.more,
        sum.unsaid,
        sum.largest
    );
    ExitCode::from(u8::from(!sum.differ.is_empty()))
}

/// Adds what came of one file.
fn add(sum: &mut Comparison, other: Comparison) {
    sum.looked_at += other.looked_at;
    sum.same += other.same;
    sum.none += other.none;
    sum.more += other.more;
    sum.largest = sum.largest.max(other.largest);
    sum.differ.extend(other.differ);
    for (reason, count) in other.unsaid {
        *sum.unsaid.entry(reason).or_default() += count;
    }
}

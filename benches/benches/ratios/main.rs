//! Ratios of times, this workspace's to a rival's: one line each.
//!
//! ```text
//! cargo bench --package unwind-benches --bench ratios [-- first|walks|tables|process...]
//! ```
//!
//! Times are the shortest of many rounds in which the contestants take turns,
//! on whatever CPU this runs on: `taskset` names one.

#![allow(
    missing_docs,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a measuring program stops at the first surprise"
)]

mod first;
mod process;
mod tables;
mod walks;

use unwind_benches::corpus::Corpus;
use unwind_benches::timing::{Effort, wants};

fn main() {
    let effort = Effort::of_arguments();
    heading();
    if wants("process") {
        process::measure(effort);
    }
    if wants("first") || wants("walks") || wants("tables") {
        for path in Corpus::paths() {
            let corpus = Corpus::open(&path);
            if wants("first") {
                first::measure(&corpus, effort);
            }
            if wants("walks") {
                walks::measure(&corpus, effort);
            }
            if wants("tables") {
                tables::measure(&corpus, effort);
            }
        }
    }
}

fn heading() {
    println!("{:<34} {:<30} {:>9} {:<34} {:>9} {:>7}", "", "", "ns", "rival", "ns", "ratio");
}

/// A line: what is measured and of what, the time of this workspace and that of
/// the rival.
fn line(what: &str, of: &str, ours: f64, rival: &str, theirs: f64) {
    let ratio = ours / theirs;
    println!("{what:<34} {of:<30} {ours:>9.2} {rival:<34} {theirs:>9.2} {ratio:>7.3}");
}

/// A line without times.
fn fact(what: &str, of: &str, text: &str) {
    println!("{what:<34} {of:<30} {text}");
}

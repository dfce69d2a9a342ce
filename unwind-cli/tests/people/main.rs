//! Programs as people have them, whose truth is known, through every command: whether their
//! functions are named and their stacks complete, and whether what is missing is told.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]
#![allow(unreachable_pub, missing_docs, missing_debug_implementations, reason = "of one test")]

mod commands;
mod kinds;
mod matrix;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use commands::Looker;
use kinds::Kind;
use matrix::{expected, heading, line};

/// How many programs are looked at at a time.
const THREADS: usize = 2;

#[test]
fn k4_k5_k6_k7_k8_k9_m1_what_is_found_and_told_of_each_program_by_each_command() {
    let kinds = Mutex::new(Kind::ALL.into_iter());
    let rows = Mutex::new(Vec::new());
    let has_samples = AtomicBool::new(true);
    let look = || {
        while let Some(kind) = { kinds.lock().unwrap().next() } {
            let Some(subject) = kind.start() else { continue };
            let mut looker = Looker::new(subject);
            match looker.row() {
                Some(cells) => rows.lock().unwrap().push((kind, cells, looker.wrong)),
                None => has_samples.store(false, Ordering::Relaxed),
            }
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| _ = scope.spawn(look)));
    if !has_samples.into_inner() {
        return;
    }
    let mut rows = rows.into_inner().unwrap();
    rows.sort_by_key(|&(kind, ..)| Kind::ALL.iter().position(|&other| other == kind));
    let mut found = vec![heading().to_owned()];
    let mut wanted = found.clone();
    let mut wrong = Vec::new();
    for (kind, cells, lines) in rows {
        let kind = format!("{kind:?}");
        found.push(line(&kind, &cells));
        wanted.push(expected(&kind).to_owned());
        wrong.extend(lines);
    }
    let found = found.join("\n");
    eprintln!("{found}");
    assert!(
        found == wanted.join("\n"),
        "found\n{found}\nexpected\n{}\n{wrong:#?}",
        wanted.join("\n")
    );
}

//! A program that measures unwinders of its own beside the others.

use std::fs;
use std::path::{Path, PathBuf};

use crate::comparison::Comparison;
use crate::contestant::Contestant;
use crate::corpus::Corpus;
use crate::timing::Effort;
use crate::{plot, program};

/// The main function of a program that measures unwinders of its own beside the others: with
/// a mode as its first argument it is [`program::run`], else it compares all.
pub fn main(own: &[Contestant]) {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    if arguments.first().is_some_and(|first| program::MODES.contains(first)) {
        program::run(&arguments, own);
    } else {
        compare(&arguments, own);
    }
}

/// Compares the benches' unwinders and `own` ones in the corpora of these files, or in all: prints
/// tables and draws `target/comparison.svg`.
fn compare(files: &[&str], own: &[Contestant]) {
    let mut paths: Vec<_> = files.iter().map(PathBuf::from).collect();
    if paths.is_empty() {
        paths = Corpus::paths();
    }
    let corpora: Vec<_> = paths.iter().map(|path| Corpus::open(path)).collect();
    let contestants = [&Contestant::compared(), own].concat();
    let comparison = Comparison::new(&corpora, &contestants, Effort::FULL);
    println!("{comparison}");
    let picture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/comparison.svg");
    fs::write(&picture, plot::svg(&comparison)).unwrap();
    println!("drawn as target/comparison.svg");
}

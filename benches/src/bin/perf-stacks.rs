//! Walks the samples of `perf record --call-graph dwarf` by this workspace's
//! tables, made of the `.eh_frame` of the mapped files, and compares each stack,
//! frame by frame, with the reference's, framehop's, and what `perf script` prints.
//!
//! ```text
//! perf-stacks COUNT PERF.DATA...
//! ```
//!
//! takes the first COUNT samples of each file. It fails where a finding has no
//! reason in `known.rs`, by the name of the file.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a measuring program stops at the first surprise"
)]

use std::path::Path;

use unwind_benches::known::KNOWN;
use unwind_benches::perf_file::PerfFile;
use unwind_benches::{Framehop, Report, Unwind};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().unwrap().parse().unwrap();
    let reports: Vec<_> = arguments.map(|path| report(Path::new(&path), count)).collect();
    let unknown: Vec<_> = reports.iter().flat_map(|report| report.unknown(KNOWN)).collect();
    assert!(unknown.is_empty(), "without a reason in known.rs: {unknown:#?}");
}

fn report(path: &Path, count: usize) -> Report {
    let PerfFile { parts, mut chains } = PerfFile::open(path, count);
    let mut report: Option<Report> = None;
    for corpus in &parts {
        let part = Report::of(
            corpus,
            vec![("walker", Box::new(Unwind::new(corpus)))],
            vec![
                ("framehop", Box::new(Framehop::new(corpus))),
                ("perf script", Box::new(&mut chains)),
            ],
        );
        report = Some(match report {
            Some(report) => report.and(part),
            None => part,
        });
    }
    let report = report.unwrap();
    print!("{report}");
    report
}

//! The far end of the demonstration: merges the samples and the stacks that
//! the kernel recorded, prints the whole chains, and checks every one of them.
//!
//! ```text
//!     demo-report KERNEL PROGRAMS RECORDS CONSOLE
//!     demo-report several KERNEL PROGRAMS RECORDS CONSOLE
//!     demo-report sizes FOLDER
//!     demo-report guest FOLDED
//! ```
//!
//! The first takes the kernel's ELF file, the folder of the user programs, the
//! bytes of the record stream and what the kernel printed. `several` takes those of a
//! run on several CPUs. `sizes` prints how
//! much code the programs in a folder have. `guest` checks what `unwind guest`
//! found from outside of the machine, as folded stacks. The status is 1 if
//! anything is not as it must be.

mod account;
mod calls;
mod chain;
mod check;
mod guest;
mod image;
mod known;
mod several;
mod sizes;
mod stream;
mod tasks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use account::Account;
use check::Checker;
use demo_format::{PROFILER, TRACER};
use image::Images;
use stream::{Events, Stream};

/// Chains that are printed, the most frequent ones.
const PRINTED: usize = 60;

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let result = match arguments.as_slice() {
        [word, folder] if word == Path::new("sizes") => sizes::print(folder).map(|()| 0),
        [word, folded] if word == Path::new("guest") => guest::check(folded),
        [kernel, programs, records, console] => {
            Run::read(kernel, programs, records, console).and_then(|run| report(&run))
        }
        [word, kernel, programs, records, console] if word == Path::new("several") => {
            Run::read(kernel, programs, records, console).and_then(|run| several::report(&run))
        }
        _ => Err("usage: demo-report [several] KERNEL PROGRAMS RECORDS CONSOLE | sizes FOLDER \
                  | guest FOLDED"
            .into()),
    };
    match result {
        Ok(0) => ExitCode::SUCCESS,
        Ok(faults) => {
            println!("{faults} faults");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// What there is of a run.
struct Run {
    images: Images,
    records: Vec<u8>,
    account: Account,
}

impl Run {
    fn read(
        kernel: &Path,
        programs: &Path,
        records: &Path,
        console: &Path,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        Ok(Self {
            images: Images::open(kernel, programs)?,
            records: fs::read(records)?,
            account: Account::parse(&fs::read_to_string(console)?)?,
        })
    }
}

/// Prints the report, and returns how many faults there are.
fn report(run: &Run) -> Result<usize, Box<dyn std::error::Error>> {
    let stream = Stream::decode(&run.records, &[&[PROFILER], &[TRACER]])?;
    let [profiler, tracer] = stream.events.as_slice() else { return Err("two groups".into()) };
    let mut checker = Checker::new(&run.images, &stream.tasks);
    for events in &stream.events {
        for sample in &events.samples {
            checker.check(sample, events);
        }
    }
    checker.compare(profiler, tracer, &run.account);

    print_chains("profiler", &checker, profiler);
    print_chains("tracer", &checker, tracer);
    print_merge("profiler", profiler);
    print_merge("tracer", tracer);
    print_checks(&checker);
    Ok(checker.faults.len())
}

fn print_checks(checker: &Checker<'_>) {
    println!("checks: {}", checker.summary());
    for fault in checker.faults.iter().take(20) {
        println!("FAULT {fault}");
    }
}

fn print_chains(name: &str, checker: &Checker<'_>, events: &Events) {
    let mut folded = BTreeMap::<String, u64>::new();
    for sample in &events.samples {
        *folded.entry(checker.folded(sample)).or_default() += 1;
    }
    let mut chains: Vec<_> = folded.into_iter().collect();
    chains.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    println!("{name}: {} samples, {} chains", events.samples.len(), chains.len());
    for (chain, count) in chains.iter().take(PRINTED) {
        println!("{count:6} {chain}");
    }
}

fn print_merge(name: &str, events: &Events) {
    let counts = events.counts;
    println!(
        "{name}: {} merged ({} before their samples), {} inline, {} unmatched \
         (exit {}, exec {}, lost {}, newer cookie {}, end {}); {} stacks, {} of no sample",
        counts.merged,
        counts.merged_late,
        counts.inline,
        counts.unmatched(),
        counts.unmatched_exit,
        counts.unmatched_exec,
        counts.unmatched_lost,
        counts.unmatched_newer_cookie,
        counts.unmatched_end,
        counts.records,
        counts.records_unused,
    );
}

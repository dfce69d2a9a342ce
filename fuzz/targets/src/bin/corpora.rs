//! Packs and unpacks the corpora of the fuzz targets.
//!
//! ```text
//! corpora unpack [TARGET...]    writes seeds and archive to fuzz/corpus/TARGET
//! corpora pack [TARGET...]      makes the archive of what is there, less the seeds
//! ```
//!
//! Without a target they take all.

use std::{collections::BTreeSet, env, fs, io, process::ExitCode};

use fuzz_targets::{TARGETS, corpora};

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let mut targets: Vec<String> = args.collect();
    if let Some(unknown) = targets.iter().find(|name| TARGETS.iter().all(|t| t.name != **name)) {
        eprintln!("there is no fuzz target {unknown}");
        return ExitCode::FAILURE;
    }
    if targets.is_empty() {
        targets = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    }
    let work = match command.as_str() {
        "unpack" => unpack,
        "pack" => pack,
        _ => {
            eprintln!("usage: corpora pack|unpack [TARGET...]");
            return ExitCode::FAILURE;
        }
    };
    for target in &targets {
        match work(target) {
            Ok(count) => println!("{target}: {count} inputs"),
            Err(error) => {
                eprintln!("{target}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn unpack(target: &str) -> io::Result<usize> {
    let folder = corpora::folder().join("corpus").join(target);
    fs::create_dir_all(&folder)?;
    let inputs = corpora::committed(target)?;
    for (name, bytes) in &inputs {
        fs::write(folder.join(name), bytes)?;
    }
    Ok(inputs.len())
}

fn pack(target: &str) -> io::Result<usize> {
    let seeds: BTreeSet<_> = corpora::seeds(target)?.into_values().collect();
    let mut inputs = corpora::read_folder(&corpora::folder().join("corpus").join(target))?;
    inputs.retain(|_, bytes| !seeds.contains(bytes));
    if inputs.is_empty() {
        return Err(io::Error::other("fuzz/corpus has no inputs: unpack them first"));
    }
    fs::create_dir_all(corpora::folder().join("corpora"))?;
    fs::write(corpora::archive(target), corpora::pack(&inputs)?)?;
    Ok(inputs.len())
}

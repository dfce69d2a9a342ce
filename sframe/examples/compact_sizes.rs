//! How large compact tables of files are, and what they cannot say.
//!
//! ```text
//! cargo run --release --package unwind-sframe --features cfi --example compact_sizes FILE...
//! ```
//!
//! Of `.eh_frame`. A row is one of the image, with those that repeat at the start of a page what holds
//! there. The SFrame table of version 3 beside it is made of the same section. Times are of one run
//! each, with reading the file left out.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::unwrap_used,
    clippy::panic,
    unreachable_pub,
    missing_docs,
    reason = "an example"
)]

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use sframe::{Abi, Builder, CfiAbi, CompactBuilder, CompactTable, Format};

#[path = "../tests/compact/program.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod program;

fn main() {
    println!(
        "| file | rows | bytes | bytes a row | rules | pages | SFrame V3 bytes | made, ms | read whole, ms | lost, by reason |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|---|");
    for path in std::env::args_os().skip(1) {
        let path = Path::new(&path);
        let Some(program) = program::Program::read(path) else {
            eprintln!("{} is no 64-bit ELF file with .eh_frame", path.display());
            continue;
        };
        let start = Instant::now();
        let mut builder = CompactBuilder::new();
        builder.add_cfi(program.cfi(), CfiAbi::X86_64).unwrap();
        let (image, omissions) = builder.finish().unwrap();
        let made = start.elapsed();
        let start = Instant::now();
        let table = CompactTable::parse(&image).unwrap();
        let read = start.elapsed();
        let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
        builder.add_cfi(program.cfi(), |_| ()).unwrap();
        let sframe = builder.finish(program.addr, |_| ()).unwrap().len();
        let mut lost = String::new();
        for (reason, count) in omissions.iter() {
            let comma = if lost.is_empty() { "" } else { "; " };
            write!(
                lost,
                "{comma}{}: {} ranges, {} bytes",
                reason.name(),
                count.ranges,
                count.bytes
            )
            .unwrap();
        }
        let rows = table.num_rows();
        println!(
            "| {} | {rows} | {} | {:.2} | {} | {} | {sframe} | {:.1} | {:.1} | {lost} |",
            Path::new(path.file_name().unwrap_or_default()).display(),
            image.len(),
            image.len() as f64 / f64::from(rows),
            table.num_rules(),
            table.num_pages(),
            made.as_secs_f64() * 1e3,
            read.as_secs_f64() * 1e3,
        );
    }
}

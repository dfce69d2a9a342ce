//! Prints the stacks of a process, with lines that another process reads.
//!
//! ```text
//! cargo run --package unwind-target --example stack -- PID
//! ```
//!
//! The other process is this program again, with `serve` and addresses as its arguments: files of the process may
//! be crafted, and only the other process suffers from it.

use std::env;
use std::error::Error;

use unwind_target::{LineReader, Naming, Process, serve_lines};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [first, addrs @ ..] = arguments.as_slice()
        && first == "serve"
    {
        let addrs: Result<Vec<_>, _> =
            addrs.iter().map(|addr| u64::from_str_radix(addr, 16)).collect();
        return Ok(serve_lines(&addrs?)?);
    }
    let [id] = arguments.as_slice() else { return Err("usage: stack PID".into()) };
    let reader =
        LineReader::Apart { program: env::current_exe()?, arguments: vec!["serve".into()] };
    let stacks = Process::new(id.parse()?).naming(Naming::new().lines(Some(reader))).stacks()?;
    for thread in &stacks.threads {
        println!("thread {}", thread.id);
        for frame in &thread.frames {
            for inlined in &frame.symbol.source.inlined {
                println!("  inlined {inlined}");
            }
            println!("  {:#x} {}", frame.pc, frame.symbol);
        }
        println!("  {}", thread.end);
    }
    for warning in &stacks.warnings {
        eprintln!("{warning}");
    }
    Ok(())
}

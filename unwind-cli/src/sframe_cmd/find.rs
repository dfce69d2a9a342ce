//! `unwind sframe find`: the row at an address.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;
use sframe::{FuncRange, Sections};

use crate::error::Error;
use crate::sframe_cmd::{
    SframeError,
    file::{Input, SframeFile, parse_addr},
    json::hex,
    rules::Rules,
};
use crate::untrusted::escaped;

/// Print the row that covers each address, or why there is none.
///
/// Addresses are those of the file as it is linked.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,

    /// Addresses: hexadecimal behind 0x, else decimal
    #[arg(value_name = "ADDR", required = true, value_parser = parse_addr)]
    addrs: Vec<u64>,

    /// Print one JSON object instead of text; `--help` describes it
    #[arg(long)]
    json: bool,
}

const LONG_HELP: &str = "\
A line has the address, the function that covers it (start and size), the row
(where it begins in the function) and what the row says: how the caller's stack
pointer (CFA), return address (RA) and frame pointer (FP) are found; `*(...)` is
loaded from memory.

JSON: one object with
  schema        1; rises when a field changes its meaning or goes
  file
  addresses     a list, each with
    addr                addresses are hexadecimal text
    function            null, or start and size of the function
    row                 null, or start (bytes from the start of the function
                        or block), info and words, as they are in the table
    rules               what the row says, as in the text, or null
    why                 why there is no row or no rule, or null

`unwind --help` lists the exit codes.";

/// The version of the structure: it rises when a field changes its meaning or
/// goes.
const SCHEMA: u32 = 1;

/// Runs `unwind sframe find`.
///
/// # Errors
///
/// [`Error`] if the file cannot be read, or an address has no row.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let file = args.input.open()?;
    if file.relocatable {
        return Err(SframeError::Relocatable { path: file.path }.into());
    }
    let answers: Vec<_> = args.addrs.iter().map(|&addr| Answer::new(&file, addr)).collect();
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json { write_json(&mut out, &file, &answers) } else { write(&mut out, &answers) }
        .and_then(|()| out.flush())
        .map_err(Error::Output)?;
    let missing = answers.iter().filter(|answer| answer.rules.is_none()).count();
    match missing {
        0 => Ok(()),
        _ => Err(SframeError::NoRow { missing, asked: answers.len() }.into()),
    }
}

fn write(out: &mut impl Write, answers: &[Answer]) -> io::Result<()> {
    answers.iter().try_for_each(|answer| writeln!(out, "{answer}"))
}

fn write_json(out: &mut impl Write, file: &SframeFile, answers: &[Answer]) -> io::Result<()> {
    #[derive(Serialize)]
    struct Answers<'a> {
        schema: u32,
        file: String,
        addresses: &'a [Answer],
    }
    let file = escaped(&file.path).to_string();
    let answers = Answers { schema: SCHEMA, file, addresses: answers };
    serde_json::to_writer_pretty(&mut *out, &answers)?;
    writeln!(out)
}

/// What is known about one address.
#[derive(Debug, Serialize)]
struct Answer {
    addr: String,
    function: Option<Function>,
    row: Option<Row>,
    rules: Option<String>,
    why: Option<String>,
}

#[derive(Debug, Serialize)]
struct Function {
    start: String,
    size: u32,
}

#[derive(Debug, Serialize)]
struct Row {
    start: u32,
    info: u8,
    words: Vec<i32>,
}

impl Answer {
    fn new(file: &SframeFile, addr: u64) -> Self {
        let mut answer =
            Self { addr: hex(addr), function: None, row: None, rules: None, why: None };
        let mut why = None;
        for section in &file.sections {
            match answer.look_up(section.tables(), addr) {
                Ok(()) if answer.function.is_some() => return answer,
                Ok(()) => {}
                Err(error) => why = Some(error.to_string()),
            }
        }
        if answer.rules.is_none() {
            answer.why = Some(why.unwrap_or_else(|| absence(file, addr)));
        }
        answer
    }

    fn look_up(&mut self, tables: Sections<'_>, addr: u64) -> Result<(), sframe::Error> {
        let Some(found) = tables.find(addr)? else { return Ok(()) };
        let FuncRange { start, size } = found.fde.range;
        self.function = Some(Function { start: hex(start), size });
        self.row = found.fre.map(|fre| Row {
            start: fre.start,
            info: fre.info.0,
            words: fre.words().to_vec(),
        });
        match found.row() {
            Ok(row) => self.rules = Some(Rules { abi: found.fde.abi(), row }.to_string()),
            Err(error) => self.why = Some(error.to_string()),
        }
        Ok(())
    }
}

/// Why no row covers `addr`, where no table is at fault.
fn absence(file: &SframeFile, addr: u64) -> String {
    let mut before: Option<FuncRange> = None;
    for section in &file.sections {
        for table in section.tables().tables().flatten() {
            for index in 0..table.header().num_fdes {
                let Some(range) = table.range(index) else { continue };
                if range.contains(addr) {
                    return format!(
                        "the function {:#x}+{:#x} has no row for it",
                        range.start, range.size
                    );
                }
                if range.start <= addr && before.is_none_or(|last| last.start <= range.start) {
                    before = Some(range);
                }
            }
        }
    }
    match before {
        Some(FuncRange { start, size }) => {
            let end = start.wrapping_add(size.into());
            format!("no function covers it; the last one before it ends at {end:#x}")
        }
        None => "no function covers it, nor any address before it".into(),
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  ", self.addr)?;
        if let Some(Function { start, size }) = &self.function {
            write!(f, "function {start}+{size:#x}, ")?;
        }
        if let Some(row) = &self.row {
            write!(f, "row +{:#x}: ", row.start)?;
        }
        match (&self.rules, &self.why) {
            (Some(rules), _) => f.write_str(rules),
            (None, Some(why)) => write!(f, "no row: {why}"),
            (None, None) => f.write_str("no row"),
        }
    }
}

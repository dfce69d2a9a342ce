//! `unwind sframe find`: the row at an address, or at a function's symbol.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use serde::Serialize;
use sframe::{FuncRange, Section};
use unwind_target::Untrusted;
use unwind_target::untrusted::{escaped, plain};

use crate::commands::sframe::error::SframeError;
use crate::commands::sframe::{
    file::{SframeFile, Starts},
    formulas::Rules,
    input::{Form, Image, each_image, parse_addr},
    names::Names,
};
use crate::failure::Failure;

/// Print the row that covers each address, or why there is none.
///
/// Addresses are those of the file as it is linked; in a relocatable object they are
/// offsets in its code sections, in all that are long enough.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct Args {
    /// An ELF file: a program, a library, an object, an archive; `-` is standard input
    file: PathBuf,

    #[command(flatten)]
    form: Form,

    /// Addresses, hexadecimal after 0x or decimal; or names: of a function, or of an
    /// object's code section, with an offset or not: `main`, `main+0x10`, `.text+16`
    #[arg(value_name = "ADDR|SYMBOL", required = true, 
          value_parser = OsStringValueParser::new().try_map(Question::parse::<OsString>))]
    questions: Vec<Question>,

    /// Print one JSON object instead of text; `--help` describes it
    #[arg(long)]
    json: bool,
}

const LONG_HELP: &str = "\
A line has the address, the function that covers it (name, start and size), the
row (where it begins in the function) and what the row says: how the caller's
stack pointer (CFA), return address (RA) and frame pointer (FP) are found;
`*(...)` is loaded from memory. A name may be that of several functions, of which
each has a line, the first 64. Of an archive, members are shown that have an answer.

JSON (its JSON Schema: docs/schema/sframe-find.json): one object, of an archive one for each
member with an answer, with
  schema        1; rises when a field changes its meaning or goes
  file
  addresses     a list, each with
    addr                addresses are hexadecimal text, or `.text+0x10` in
                        an object; null for a name that is not there
    symbol              the name that was asked for, or null
    function            null, or name (or null), start and size of the function
    row                 null, or start (bytes from the start of the function
                        or block), info and words, as they are in the table
    rules               what the row says, as in the text, or null
    why                 why there is no row or no rule, or null

`unwind --help` lists the exit codes.";

/// The version of the structure: it rises when a field changes its meaning or
/// goes.
const SCHEMA: u32 = 1;

/// The most answers to a question. Each is a search through a table that may not be
/// sorted.
const MAX_ANSWERS: usize = 64;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    Addr(u64),
    Symbol(OsString),
}

impl Question {
    fn parse<T: AsRef<OsStr>>(argument: T) -> Result<Self, String> {
        let argument = argument.as_ref();
        let bytes = argument.as_bytes();
        if bytes.first().is_some_and(u8::is_ascii_digit) {
            return parse_addr(plain(bytes).unwrap_or_default()).map(Self::Addr);
        }
        Ok(Self::Symbol(argument.into()))
    }

    /// The addresses that are meant. An offset in an object is meant in each function
    /// that has it.
    fn addresses(&self, file: &SframeFile<'_>, names: &Names<'_>) -> Vec<u64> {
        let symbol = match self {
            Self::Addr(offset) if file.starts == Starts::Object => {
                let mut found = file.addresses_of(*offset);
                if found.is_empty() {
                    found.extend(file.code.address(*offset));
                }
                return found;
            }
            Self::Addr(addr) => return vec![*addr],
            Self::Symbol(symbol) => symbol.as_bytes(),
        };
        let named = |name: &[u8]| {
            let mut found = names.starts_of(name);
            if found.is_empty() {
                found = file.code.named(name).collect();
            }
            found
        };
        let whole = named(symbol);
        if !whole.is_empty() {
            return whole;
        }
        // `operator+` has one, too.
        let Some(plus) = symbol.iter().rposition(|&byte| byte == b'+') else { return Vec::new() };
        let (name, offset) = symbol.split_at(plus);
        let offset = offset.get(1..).and_then(plain);
        let Some(Ok(offset)) = offset.map(parse_addr) else { return Vec::new() };
        named(name).into_iter().filter_map(|start| start.checked_add(offset)).collect()
    }

    fn symbol(&self) -> Option<&OsStr> {
        match self {
            Self::Addr(_) => None,
            Self::Symbol(symbol) => Some(symbol),
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addr(addr) => write!(f, "{addr:#x}"),
            Self::Symbol(symbol) => write!(f, "{}", escaped(symbol)),
        }
    }
}

/// Runs `unwind sframe find`.
///
/// # Errors
///
/// [`Failure`] if the file cannot be read, or an address has no row.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let asked = args.questions.len();
    // Whether each was answered in some image, and how many lines had no row.
    let mut answered = vec![false; asked];
    let mut rowless = 0_usize;
    let mut is_archive = false;
    each_image(std::slice::from_ref(&args.file), args.form, |image| {
        is_archive = image.is_one_of_many;
        find(args, image, &mut answered, &mut rowless)
    })?;
    if is_archive && !args.json {
        let unanswered = args.questions.iter().zip(&answered).filter(|(_, answered)| !**answered);
        let mut out = io::stdout().lock();
        for (question, _) in unanswered {
            writeln!(out, "{question}  no row: no member has one").map_err(Failure::output)?;
        }
    }
    let missing = answered.iter().filter(|answered| !**answered).count();
    match missing.saturating_add(rowless) {
        0 => Ok(()),
        missing => Err(SframeError::NoRow { missing, asked: asked.max(missing) }.into()),
    }
}

fn find(
    args: &Args,
    image: &Image,
    answered: &mut [bool],
    rowless: &mut usize,
) -> Result<(), Failure> {
    let file = SframeFile::open(image)?;
    if file.starts == Starts::Unknown {
        return Err(SframeError::Relocatable { path: file.path }.into());
    }
    let names = file.names();
    let mut answers = Vec::new();
    for (question, is_answered) in args.questions.iter().zip(answered) {
        let mut addresses = question.addresses(&file, &names);
        if let Some(more) = addresses.len().checked_sub(MAX_ANSWERS).filter(|&more| more != 0) {
            // With standard error gone there is no other place to tell it.
            let _ = writeln!(io::stderr(), "unwind: {question}: {more} more are not shown");
            addresses.truncate(MAX_ANSWERS);
        }
        let mut all: Vec<_> =
            addresses.iter().map(|&addr| Answer::new(&file, &names, question, addr)).collect();
        if image.is_one_of_many {
            all.retain(|answer| answer.function.is_some());
        }
        if all.is_empty() && !image.is_one_of_many {
            all.push(Answer::absent(&file, question));
        }
        if all.iter().any(|answer| answer.rules.is_some()) {
            *is_answered = true;
            let without = all.iter().filter(|answer| answer.rules.is_none()).count();
            *rowless = rowless.saturating_add(without);
        }
        answers.append(&mut all);
    }
    if answers.is_empty() {
        return Ok(());
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    match args.json {
        true => write_json(&mut out, &file, &answers),
        false => image.write_heading(&mut out).and_then(|()| write(&mut out, &answers)),
    }
    .and_then(|()| out.flush())
    .map_err(Failure::output)
}

fn write(out: &mut impl Write, answers: &[Answer]) -> io::Result<()> {
    answers.iter().try_for_each(|answer| writeln!(out, "{answer}"))
}

fn write_json(out: &mut impl Write, file: &SframeFile<'_>, answers: &[Answer]) -> io::Result<()> {
    #[derive(Serialize)]
    struct Answers<'a> {
        schema: u32,
        file: Untrusted,
        addresses: &'a [Answer],
    }
    let file = Untrusted::from(&file.path);
    let answers = Answers { schema: SCHEMA, file, addresses: answers };
    serde_json::to_writer_pretty(&mut *out, &answers)?;
    writeln!(out)
}

/// What is known about one address.
#[derive(Debug, Serialize)]
struct Answer {
    addr: Option<String>,
    symbol: Option<Untrusted>,
    function: Option<Function>,
    row: Option<Row>,
    rules: Option<String>,
    why: Option<String>,
}

#[derive(Debug, Serialize)]
struct Function {
    name: Option<String>,
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
    fn new(file: &SframeFile<'_>, names: &Names<'_>, question: &Question, addr: u64) -> Self {
        let mut answer = Self {
            addr: Some(file.code.place(addr).to_string()),
            symbol: question.symbol().map(Untrusted::from),
            function: None,
            row: None,
            rules: None,
            why: None,
        };
        let mut why = None;
        for section in &file.sections {
            match answer.look_up(file, names, section.tables(), addr) {
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

    /// The answer for a name, or an offset, that the file does not have.
    fn absent(file: &SframeFile<'_>, question: &Question) -> Self {
        let (addr, why) = match question {
            Question::Addr(addr) => (Some(*addr), "no code section is long enough"),
            Question::Symbol(_) => (None, "no function has this name"),
        };
        Self {
            addr: addr.map(|addr| file.code.place(addr).to_string()),
            symbol: question.symbol().map(Untrusted::from),
            function: None,
            row: None,
            rules: None,
            why: Some(why.into()),
        }
    }

    fn look_up(
        &mut self,
        file: &SframeFile<'_>,
        names: &Names<'_>,
        tables: Section<'_>,
        addr: u64,
    ) -> Result<(), sframe::Error> {
        let Some(found) = tables.find(addr)? else { return Ok(()) };
        let FuncRange { start, size } = found.fde.range;
        let name = names.at(start).map(|name| name.to_string());
        self.function = Some(Function { name, start: file.code.place(start).to_string(), size });
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
fn absence(file: &SframeFile<'_>, addr: u64) -> String {
    let mut before: Option<FuncRange> = None;
    for section in &file.sections {
        for table in section.tables().tables().flatten() {
            for index in 0..table.header().num_fdes {
                let Some(range) = table.range(index) else { continue };
                if range.contains(addr) {
                    return format!(
                        "the function {}+{:#x} has no row for it",
                        file.code.place(range.start),
                        range.size
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
            let end = file.code.place(start.wrapping_add(size.into()));
            format!("no function covers it; the last one before it ends at {end}")
        }
        None => "no function covers it, nor any address before it".into(),
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.addr, &self.symbol) {
            (Some(addr), _) => write!(f, "{addr}  ")?,
            (None, Some(symbol)) => write!(f, "{symbol}  ")?,
            (None, None) => {}
        }
        if let Some(Function { name, start, size }) = &self.function {
            write!(f, "function {start}+{size:#x}")?;
            if let Some(name) = name {
                write!(f, " <{name}>")?;
            }
            f.write_str(", ")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_with_a_digit_is_an_address_and_all_else_a_name() {
        assert_eq!(Question::parse("0x10"), Ok(Question::Addr(16)));
        assert_eq!(Question::parse("16"), Ok(Question::Addr(16)));
        assert_eq!(Question::parse("x16"), Ok(Question::Symbol("x16".into())));
        assert!(Question::parse("0xg").is_err());
        assert!(Question::parse("1main").is_err());
    }
}

//! `unwind sframe diff`: what the tables of two files say otherwise.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Serialize, Serializer, ser::SerializeSeq as _};
use sframe::{Abi, Fde, Table};
use unwind_core::Row;

use crate::commands::sframe::{
    SframeError,
    file::{SframeFile, Starts, unresolved_start},
    formulas::Rules,
    input::{Form, Image, each_image},
    shared_rows::RowsLeft,
};
use crate::counted::counted;
use crate::elf::SframeSection;
use crate::failure::Failure;
use crate::untrusted::Untrusted;

/// Compare the tables of two files: which functions were added, removed or changed,
/// and in which rows.
///
/// Rows are compared by what they say, not by how: tables of two versions of the
/// format may be equal.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct Args {
    /// An ELF file: a program, a library, an object, an archive; `-` is standard input
    old: PathBuf,

    /// The file that it is compared to
    new: PathBuf,

    #[command(flatten)]
    form: Form,

    /// What makes two functions one: the name where both files have names, else the
    /// address, unless this says which
    #[arg(long, value_name = "KEY")]
    by: Option<Key>,

    /// Print one JSON object instead of text; `--help` describes it
    #[arg(long)]
    json: bool,
}

const LONG_HELP: &str = "\
Exit code 1 says that the tables differ, or that a function could not be read in
both files: it is damaged in both, or one of so many that share rows that there are
more than one for each byte of rows (and 65,536). A function that only moved is equal where
functions are matched by name; one without a name is matched by address. Of each
stretch of a function that is not the same, `-` is what the first file says, `+`
what the second one does.

JSON: one object with
  schema        1; rises when a field changes its meaning or goes
  old, new      the files
  by            what functions are matched by: `name` or `address`
  functions     those that differ, a list, each with
    change      `added`, `removed`, `changed` or `unread`
    name        its name, or its address
    old, new    start, size and number of rows in the files, or null
    entry       what differs in the function as a whole, if something does
    rows        a list, each with start and end (bytes from the start of the
                function or block), old and new: what is said there, or null
  added, removed, changed, equal, unread    how many functions

`unwind --help` lists the exit codes.";

/// The version of the structure: it rises when a field changes its meaning or
/// goes.
const SCHEMA: u32 = 1;

/// What makes two functions one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Key {
    /// Names, of equal ones the first, the second and so on.
    Name,
    /// Where they start.
    Address,
}

/// Runs `unwind sframe diff`.
///
/// # Errors
///
/// [`Failure`] if a file cannot be read, or the tables differ.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let [old, new] = [Side::read(&args.old, args.form)?, Side::read(&args.new, args.form)?];
    let by = args.by.unwrap_or(match old.has_names() && new.has_names() {
        true => Key::Name,
        false => Key::Address,
    });
    let comparison = Comparison {
        by,
        keys: [old.keys(by), new.keys(by)],
        sides: [old.contents(), new.contents()],
        totals: Totals::default(),
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    match args.json {
        true => write_json(&mut out, args, by, &comparison),
        false => write(&mut out, &comparison),
    }
    .and_then(|()| out.flush())
    .map_err(Failure::output)?;
    for side in [&old, &new] {
        if side.damaged != 0 {
            let (path, count) = (side.path.clone(), side.damaged);
            return Err(SframeError::Damaged { path, count }.into());
        }
    }
    match comparison.totals.differing() {
        0 => Ok(()),
        count => {
            Err(SframeError::Differ { old: args.old.clone(), new: args.new.clone(), count }.into())
        }
    }
}

/// The functions of a file, of an archive those of all members.
struct Side {
    path: PathBuf,
    sections: Vec<SframeSection>,
    functions: Vec<Function>,
    /// How many functions and tables are left out of the comparison.
    damaged: u64,
}

/// Where a function is, and what it is called.
struct Function {
    /// Which table of all sections' it is in, and its index there.
    table: usize,
    index: u32,
    /// The member of an archive.
    member: Option<Untrusted>,
    name: Option<String>,
    start: u64,
    place: String,
}

/// What functions are matched by: the member, the name or place, and which of those
/// that have both.
type FunctionKey<'a> = (Option<&'a Untrusted>, &'a str, usize);

impl Side {
    fn read(path: &Path, form: Form) -> Result<Self, Failure> {
        let mut side = Self {
            path: path.to_path_buf(),
            sections: Vec::new(),
            functions: Vec::new(),
            damaged: 0,
        };
        let mut tables = 0;
        each_image(&[path.to_path_buf()], form, |image| side.add(image, &mut tables))?;
        Ok(side)
    }

    fn add(&mut self, image: &Image, tables: &mut usize) -> Result<(), Failure> {
        let file = SframeFile::open(image)?;
        if file.starts == Starts::Unknown {
            return Err(SframeError::Relocatable { path: file.path }.into());
        }
        let names = file.names();
        // Both sides' archives may have other names.
        let of_archive = image.is_one_of_many.then(|| image.path.as_os_str().as_encoded_bytes());
        let whole = self.path.as_os_str().as_encoded_bytes();
        let member = of_archive.map(|path| path.strip_prefix(whole).unwrap_or(path));
        for section in &file.sections {
            for table in section.tables().tables() {
                let Ok(table) = table else {
                    self.damaged = self.damaged.saturating_add(1);
                    continue;
                };
                for index in 0..table.header().num_fdes {
                    let Some(range) = table.range(index) else { continue };
                    if unresolved_start(section, &table, index).is_some() {
                        self.damaged = self.damaged.saturating_add(1);
                        continue;
                    }
                    self.functions.push(Function {
                        table: *tables,
                        index,
                        member: member.map(Untrusted::from),
                        name: names.at(range.start).map(|name| name.to_string()),
                        start: range.start,
                        place: file.code.place(range.start).to_string(),
                    });
                }
                *tables = tables.saturating_add(1);
            }
        }
        self.sections.extend(file.sections);
        Ok(())
    }

    fn has_names(&self) -> bool {
        self.functions.iter().any(|function| function.name.is_some())
    }

    /// The functions by their keys.
    fn keys(&self, by: Key) -> BTreeMap<FunctionKey<'_>, &Function> {
        let mut sorted: Vec<_> = self
            .functions
            .iter()
            .map(|function| {
                let name = function.name.as_deref().filter(|_| by == Key::Name);
                ((function.member.as_ref(), name.unwrap_or(&function.place)), function)
            })
            .collect();
        sorted.sort_by_key(|&(key, function)| (key, function.start, function.table));
        let mut keys = BTreeMap::new();
        let mut last = None;
        let mut nth = 0_usize;
        for (key, function) in sorted {
            nth = if last == Some(key) { nth.saturating_add(1) } else { 0 };
            last = Some(key);
            keys.insert((key.0, key.1, nth), function);
        }
        keys
    }

    /// The tables, in the order that functions name them by.
    fn contents(&self) -> Contents<'_> {
        let tables: Vec<_> =
            self.sections.iter().flat_map(|section| section.tables().tables().flatten()).collect();
        let rows_left = tables.iter().map(RowsLeft::printed).collect();
        Contents { tables, rows_left: RefCell::new(rows_left) }
    }
}

/// The tables of a side.
struct Contents<'a> {
    tables: Vec<Table<'a>>,
    rows_left: RefCell<Vec<RowsLeft>>,
}

/// What a function is said to be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    size: u32,
    /// The entry of the function without where it is, or what is wrong with it.
    kind: Result<(Abi, bool, u8, Option<sframe::PauthKey>), String>,
    /// Where what is said changes: bytes from the start, ascending.
    rows: Vec<(u32, Result<Row, String>)>,
    /// How many rows there are, with those that repeat others.
    row_count: u64,
}

impl Contents<'_> {
    fn said(&self, function: &Function) -> Said {
        let nothing =
            |size, error: String| Said { size, kind: Err(error), rows: Vec::new(), row_count: 0 };
        let Some(table) = self.tables.get(function.table) else {
            return nothing(0, "no such table".into());
        };
        let size = table.range(function.index).map_or(0, |range| range.size);
        let fde = match table.fde(function.index) {
            Ok(Some(fde)) => fde,
            Ok(None) => return nothing(size, "no such function".into()),
            Err(error) => return nothing(size, error.to_string()),
        };
        let block = if fde.is_mask() { fde.rep_size } else { 0 };
        let kind = Ok((fde.abi(), fde.is_signal(), block, fde.pauth_key()));
        let mut said = Said { size, kind, rows: Vec::new(), row_count: 0 };
        let mut rows_left = self.rows_left.borrow_mut();
        let Some(rows_left) = rows_left.get_mut(function.table) else { return said };
        if let Err(fault) = said.add_rows(table, &fde, rows_left) {
            said.kind = Err(fault);
        }
        said
    }
}

impl Said {
    fn add_rows(
        &mut self,
        table: &Table<'_>,
        fde: &Fde,
        rows_left: &mut RowsLeft,
    ) -> Result<(), String> {
        for fre in rows_left.of(table, fde).map_err(|fault| fault.to_string())? {
            let fre = fre.map_err(|fault| fault.to_string())?;
            let row = fde.row(&fre).map_err(|error| error.to_string());
            self.row_count = self.row_count.saturating_add(1);
            if self.rows.last().is_none_or(|(_, last)| *last != row) {
                self.rows.push((fre.start, row));
            }
        }
        Ok(())
    }

    /// Where the rows end: with the function or its block.
    fn end(&self) -> u32 {
        match self.kind {
            Ok((_, _, block @ 1.., _)) => block.into(),
            _ => self.size,
        }
    }

    /// The row at an offset.
    fn at(&self, offset: u32) -> Option<&Result<Row, String>> {
        if offset >= self.end() {
            return None;
        }
        let behind = self.rows.partition_point(|&(start, _)| start <= offset);
        self.rows.get(behind.checked_sub(1)?).map(|(_, row)| row)
    }

    fn text(&self, row: &Result<Row, String>) -> String {
        match (row, &self.kind) {
            (&Ok(row), &Ok((abi, ..))) => Rules { abi, row }.to_string(),
            (&Ok(row), Err(_)) => Rules { abi: Abi::Unknown(0), row }.to_string(),
            (Err(error), _) => error.clone(),
        }
    }
}

/// Both files.
struct Comparison<'a> {
    by: Key,
    keys: [BTreeMap<FunctionKey<'a>, &'a Function>; 2],
    sides: [Contents<'a>; 2],
    totals: Totals,
}

/// How many functions there are of a kind.
#[derive(Default)]
struct Totals {
    added: Cell<u64>,
    removed: Cell<u64>,
    changed: Cell<u64>,
    equal: Cell<u64>,
    /// As far as either file could be read they are equal.
    unread: Cell<u64>,
}

impl Totals {
    /// How many are not known to be equal.
    fn differing(&self) -> u64 {
        let Self { added, removed, changed, equal: _, unread } = self;
        let counts = [added, removed, changed, unread].map(Cell::get);
        counts.into_iter().fold(0, u64::saturating_add)
    }
}

/// A function that is not in both files, or not the same.
#[derive(Serialize)]
struct Change {
    change: &'static str,
    name: String,
    old: Option<Place>,
    new: Option<Place>,
    /// What differs in the function as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<String>,
    rows: Vec<RowChange>,
}

#[derive(Serialize)]
struct Place {
    start: String,
    size: u32,
    rows: u64,
}

#[derive(Serialize)]
struct RowChange {
    start: u32,
    end: u32,
    old: Option<String>,
    new: Option<String>,
}

impl Comparison<'_> {
    /// The functions that differ, by their keys. Each is counted as it goes by.
    fn changes(&self) -> impl Iterator<Item = Change> {
        let [old, new] = &self.keys;
        let mut keys: Vec<_> = old.keys().chain(new.keys()).copied().collect();
        keys.sort_unstable();
        keys.dedup();
        if self.by == Key::Address {
            // As text, 0x1000 is before 0x200.
            keys.sort_by_key(|key| {
                let function = old.get(key).or_else(|| new.get(key));
                (key.0, function.map(|function| function.start))
            });
        }
        keys.into_iter().filter_map(move |key| {
            let change = self.change(key, old.get(&key).copied(), new.get(&key).copied());
            let total = match change.as_ref().map(|change| change.change) {
                None => &self.totals.equal,
                Some("added") => &self.totals.added,
                Some("removed") => &self.totals.removed,
                Some("unread") => &self.totals.unread,
                Some(_) => &self.totals.changed,
            };
            total.set(total.get().saturating_add(1));
            change
        })
    }

    fn change(
        &self,
        (member, name, nth): FunctionKey<'_>,
        old: Option<&Function>,
        new: Option<&Function>,
    ) -> Option<Change> {
        let [old_side, new_side] = &self.sides;
        let old = old.map(|function| (function, old_side.said(function)));
        let new = new.map(|function| (function, new_side.said(function)));
        let mut change = Change {
            change: "changed",
            name: name.into(),
            old: None,
            new: None,
            entry: None,
            rows: Vec::new(),
        };
        if let Some(member) = member {
            change.name = format!("{member}: {name}");
        }
        if nth != 0 {
            change.name.push_str(&format!(" ({})", nth.saturating_add(1)));
        }
        match (&old, &new) {
            (Some((_, old)), Some((_, new))) => {
                let is_same = (old.size, &old.kind, &old.rows) == (new.size, &new.kind, &new.rows);
                match &old.kind {
                    Ok(_) if is_same => return None,
                    Err(error) if is_same => {
                        change.change = "unread";
                        change.entry = Some(error.clone());
                    }
                    kind if *kind != new.kind => change.entry = Some(entries(old, new)),
                    _ => {}
                }
                change.rows = row_changes(old, new);
            }
            (None, _) => change.change = "added",
            (_, None) => change.change = "removed",
        }
        let place = |(function, said): (&Function, Said)| Place {
            start: function.place.clone(),
            size: said.size,
            rows: said.row_count,
        };
        change.old = old.map(place);
        change.new = new.map(place);
        Some(change)
    }
}

/// What the entries of a function say otherwise.
fn entries(old: &Said, new: &Said) -> String {
    let text = |said: &Said| match &said.kind {
        Err(error) => error.clone(),
        &Ok((abi, is_signal, block, key)) => {
            let mut text = format!("{abi:?}");
            if is_signal {
                text.push_str(", signal frame");
            }
            if block != 0 {
                text.push_str(&format!(", blocks of {}", counted(block, "byte", "bytes")));
            }
            if key == Some(sframe::PauthKey::B) {
                text.push_str(", key B");
            }
            text
        }
    };
    format!("{}, now {}", text(old), text(new))
}

/// The stretches of a function for which its two forms do not say the same.
fn row_changes(old: &Said, new: &Said) -> Vec<RowChange> {
    let ends = [old.end(), new.end()];
    let starts = old.rows.iter().chain(&new.rows).map(|&(start, _)| start);
    let mut places: Vec<_> = starts.chain(ends).chain([0]).collect();
    places.sort_unstable();
    places.dedup();
    let mut changes = Vec::new();
    for (&start, &end) in places.iter().zip(places.iter().skip(1)) {
        let [old_row, new_row] = [old, new].map(|said| said.at(start));
        if old_row != new_row {
            let old = old_row.map(|row| old.text(row));
            let new = new_row.map(|row| new.text(row));
            changes.push(RowChange { start, end, old, new });
        }
    }
    changes
}

fn write(out: &mut impl Write, comparison: &Comparison<'_>) -> io::Result<()> {
    for change in comparison.changes() {
        let place = |place: &Place| format!("{}+{:#x}", place.start, place.size);
        let rows = |place: &Place| counted(place.rows, "row", "rows").to_string();
        let name = &change.name;
        match (&change.old, &change.new) {
            (Some(old), Some(new)) => {
                let kind = change.change;
                writeln!(out, "{kind:<7}  {name}: {}, now {}", place(old), place(new))?;
            }
            (Some(old), None) => {
                writeln!(out, "removed  {name}: {}, {}", place(old), rows(old))?;
            }
            (None, Some(new)) => {
                writeln!(out, "added    {name}: {}, {}", place(new), rows(new))?;
            }
            (None, None) => {}
        }
        if let Some(entry) = &change.entry {
            writeln!(out, "    {entry}")?;
        }
        for RowChange { start, end, old, new } in &change.rows {
            let range = format!("+{start:#x}..+{end:#x}");
            for (sign, row) in [('-', old), ('+', new)] {
                let row = row.as_deref().unwrap_or("no row");
                writeln!(out, "  {sign} {range:<16}  {row}")?;
            }
        }
    }
    let Totals { added, removed, changed, equal, unread } = &comparison.totals;
    write!(
        out,
        "{} changed, {} added, {} removed, {} equal",
        counted(changed.get(), "function", "functions"),
        added.get(),
        removed.get(),
        equal.get()
    )?;
    match unread.get() {
        0 => writeln!(out),
        unread => writeln!(out, ", {unread} unread"),
    }
}

fn write_json(
    out: &mut impl Write,
    args: &Args,
    by: Key,
    comparison: &Comparison<'_>,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Json<'a> {
        schema: u32,
        old: Untrusted,
        new: Untrusted,
        by: Key,
        functions: Changes<'a>,
        // What is counted while the functions are written.
        added: &'a Cell<u64>,
        removed: &'a Cell<u64>,
        changed: &'a Cell<u64>,
        equal: &'a Cell<u64>,
        unread: &'a Cell<u64>,
    }
    let Totals { added, removed, changed, equal, unread } = &comparison.totals;
    let json = Json {
        schema: SCHEMA,
        old: Untrusted::from(&args.old),
        new: Untrusted::from(&args.new),
        by,
        functions: Changes(comparison),
        added,
        removed,
        changed,
        equal,
        unread,
    };
    serde_json::to_writer_pretty(&mut *out, &json)?;
    writeln!(out)
}

/// The functions that differ, which are not held in memory.
struct Changes<'a>(&'a Comparison<'a>);

impl Serialize for Changes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        self.0.changes().try_for_each(|change| list.serialize_element(&change))?;
        list.end()
    }
}

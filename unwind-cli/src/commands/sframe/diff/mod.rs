//! `unwind sframe diff`: what the tables of two files say otherwise.

mod rows;
mod side;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use serde::{Serialize, Serializer, ser::SerializeSeq as _};
use unwind_target::Untrusted;
use unwind_target::counted::counted;

use crate::commands::sframe::diff::rows::{RowChange, entries, row_changes};
use crate::commands::sframe::diff::side::{Contents, Function, FunctionKey, Key, Said, Side};
use crate::commands::sframe::error::SframeError;
use crate::commands::sframe::input::Form;
use crate::failure::Failure;

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
both files: it is damaged in both, or one of many that share rows, of which there are
more than one for each byte of rows (and 65,536). A function that only moved is equal where
functions are matched by name; one without a name is matched by address. Of each
stretch of a function that is not the same, `-` is what the first file says, `+`
what the second one does.

JSON (its JSON Schema: docs/schema/sframe-diff.json): one object with
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

//! The functions of one of the two files, and what its tables say of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;
use sframe::{Abi, Fde, Table};
use unwind_core::Row;
use unwind_target::Untrusted;
use unwind_target::elf::sframe_section::SframeSection;

use crate::commands::sframe::error::SframeError;
use crate::commands::sframe::file::{SframeFile, Starts, unresolved_start};
use crate::commands::sframe::formulas::Rules;
use crate::commands::sframe::input::{Form, Image, each_image};
use crate::commands::sframe::shared_rows::RowsLeft;
use crate::failure::Failure;

/// What makes two functions one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Key {
    /// Names, of equal ones the first, the second and so on.
    Name,
    /// Where they start.
    Address,
}

/// The functions of a file, of an archive those of all members.
pub(super) struct Side {
    pub(super) path: PathBuf,
    pub(super) sections: Vec<SframeSection>,
    pub(super) functions: Vec<Function>,
    /// How many functions and tables are left out of the comparison.
    pub(super) damaged: u64,
}

/// Where a function is, and what it is called.
pub(super) struct Function {
    /// Which table of all sections' it is in, and its index there.
    pub(super) table: usize,
    pub(super) index: u32,
    /// The member of an archive.
    pub(super) member: Option<Untrusted>,
    pub(super) name: Option<String>,
    pub(super) start: u64,
    pub(super) place: String,
}

/// What functions are matched by: the member, the name or place, and which of those
/// that have both.
pub(super) type FunctionKey<'a> = (Option<&'a Untrusted>, &'a str, usize);

impl Side {
    pub(super) fn read(path: &Path, form: Form) -> Result<Self, Failure> {
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

    pub(super) fn add(&mut self, image: &Image, tables: &mut usize) -> Result<(), Failure> {
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

    pub(super) fn has_names(&self) -> bool {
        self.functions.iter().any(|function| function.name.is_some())
    }

    /// The functions by their keys.
    pub(super) fn keys(&self, by: Key) -> BTreeMap<FunctionKey<'_>, &Function> {
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
    pub(super) fn contents(&self) -> Contents<'_> {
        let tables: Vec<_> =
            self.sections.iter().flat_map(|section| section.tables().tables().flatten()).collect();
        let rows_left = tables.iter().map(RowsLeft::printed).collect();
        Contents { tables, rows_left: RefCell::new(rows_left) }
    }
}

/// The tables of a side.
pub(super) struct Contents<'a> {
    pub(super) tables: Vec<Table<'a>>,
    pub(super) rows_left: RefCell<Vec<RowsLeft>>,
}

/// What a function is said to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) size: u32,
    /// The entry of the function without where it is, or what is wrong with it.
    pub(super) kind: Result<(Abi, bool, u8, Option<sframe::PauthKey>), String>,
    /// Where what is said changes: bytes from the start, ascending.
    pub(super) rows: Vec<(u32, Result<Row, String>)>,
    /// How many rows there are, with those that repeat others.
    pub(super) row_count: u64,
}

impl Contents<'_> {
    pub(super) fn said(&self, function: &Function) -> Said {
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
    pub(super) fn add_rows(
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
    pub(super) fn end(&self) -> u32 {
        match self.kind {
            Ok((_, _, block @ 1.., _)) => block.into(),
            _ => self.size,
        }
    }

    /// The row at an offset.
    pub(super) fn at(&self, offset: u32) -> Option<&Result<Row, String>> {
        if offset >= self.end() {
            return None;
        }
        let after = self.rows.partition_point(|&(start, _)| start <= offset);
        self.rows.get(after.checked_sub(1)?).map(|(_, row)| row)
    }

    pub(super) fn text(&self, row: &Result<Row, String>) -> String {
        match (row, &self.kind) {
            (&Ok(row), &Ok((abi, ..))) => Rules { abi, row }.to_string(),
            (&Ok(row), Err(_)) => Rules { abi: Abi::Unknown(0), row }.to_string(),
            (Err(error), _) => error.clone(),
        }
    }
}

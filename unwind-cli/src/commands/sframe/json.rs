//! The tables of a file as JSON, written as they are read.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};

use serde::{Serialize, Serializer, ser::SerializeSeq as _};
use sframe::{Abi, Endian, Fde, FdeType, Fre, Header, PauthKey, Violation};
use unwind_target::Untrusted;
use unwind_target::elf::sframe_section::SframeSection;

use crate::commands::sframe::{
    columns::{Cells, flag_names},
    file::{SframeFile, Starts, unresolved_start},
    names::Names,
    shared_rows::RowsLeft,
};

/// The version of the structure: it rises when a field changes its meaning or
/// goes.
const SCHEMA: u32 = 1;

/// Writes all tables. Returns how many functions and tables could not be
/// written whole.
pub(crate) fn write(
    out: &mut impl Write,
    file: &SframeFile<'_>,
    names: &Names<'_>,
) -> io::Result<u64> {
    let faults = Cell::new(0);
    let json = File {
        schema: SCHEMA,
        file: Untrusted::from(&file.path),
        relocatable: file.starts != Starts::Linked,
        tables: Tables { file, names, faults: &faults },
    };
    serde_json::to_writer_pretty(&mut *out, &json)?;
    writeln!(out)?;
    Ok(faults.get())
}

/// An address as text: JSON's numbers are not good for 64 bits everywhere.
pub(crate) fn hex(addr: u64) -> String {
    format!("{addr:#x}")
}

/// The name of an ABI.
pub(crate) fn abi_name(abi: Abi) -> String {
    match abi {
        Abi::Aarch64Big => "aarch64_be".into(),
        Abi::Aarch64Little => "aarch64".into(),
        Abi::Amd64Little => "amd64".into(),
        Abi::S390xBig => "s390x".into(),
        other => other.id().to_string(),
    }
}

#[derive(Serialize)]
struct File<'a> {
    schema: u32,
    file: Untrusted,
    relocatable: bool,
    tables: Tables<'a>,
}

/// A list that is not held in memory: its entries are counted faults as they go
/// by.
#[derive(Clone, Copy)]
struct Tables<'a> {
    file: &'a SframeFile<'a>,
    names: &'a Names<'a>,
    faults: &'a Cell<u64>,
}

impl Serialize for Tables<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for section in &self.file.sections {
            for table in section.tables().tables() {
                list.serialize_element(&self.table(section, table))?;
            }
        }
        list.end()
    }
}

impl<'a> Tables<'a> {
    fn table(
        self,
        section: &'a SframeSection,
        table: Result<sframe::Table<'a>, sframe::Error>,
    ) -> Table<'a> {
        let name = &section.name;
        match table {
            Ok(table) => {
                let contents = Some(Contents::new(section, table, self));
                Table { section: name, contents, error: None }
            }
            Err(error) => {
                self.fault();
                Table { section: name, contents: None, error: Some(error.to_string()) }
            }
        }
    }

    fn fault(self) {
        self.faults.set(self.faults.get().saturating_add(1));
    }
}

#[derive(Serialize)]
struct Table<'a> {
    section: &'a Untrusted,
    #[serde(flatten)]
    contents: Option<Contents<'a>>,
    error: Option<String>,
}

#[derive(Serialize)]
struct Contents<'a> {
    addr: String,
    version: u8,
    flags: Vec<&'static str>,
    abi: String,
    byte_order: &'static str,
    fixed_fp_offset: Option<i8>,
    fixed_ra_offset: Option<i8>,
    num_fdes: u32,
    num_fres: u32,
    functions: Functions<'a>,
}

impl<'a> Contents<'a> {
    fn new(section: &'a SframeSection, table: sframe::Table<'a>, tables: Tables<'a>) -> Self {
        let header = table.header();
        Self {
            addr: hex(table.addr()),
            version: header.version.number(),
            flags: flag_names(&header),
            abi: abi_name(header.abi),
            byte_order: match header.endian {
                Endian::Little => "little",
                Endian::Big => "big",
            },
            fixed_fp_offset: header.fixed_fp_offset,
            fixed_ra_offset: header.fixed_ra_offset,
            num_fdes: header.num_fdes,
            num_fres: header.num_fres,
            functions: Functions {
                section,
                table,
                tables,
                rows_left: RefCell::new(RowsLeft::printed(&table)),
            },
        }
    }
}

struct Functions<'a> {
    section: &'a SframeSection,
    table: sframe::Table<'a>,
    rows_left: RefCell<RowsLeft>,
    tables: Tables<'a>,
}

impl Serialize for Functions<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for (index, fde) in (0..self.table.header().num_fdes).zip(self.table.fdes()) {
            let rows_left = &mut self.rows_left.borrow_mut();
            let function = Function::new(self, index, fde, rows_left);
            if function.error.is_some() {
                self.tables.fault();
            }
            list.serialize_element(&function)?;
        }
        list.end()
    }
}

#[derive(Serialize)]
struct Function<'a> {
    index: u32,
    name: Option<String>,
    section: Option<&'a Untrusted>,
    pc: String,
    size: u32,
    #[serde(flatten)]
    details: Option<Details>,
    rows: Vec<Row>,
    error: Option<String>,
}

#[derive(Serialize)]
struct Details {
    pc_type: &'static str,
    r#type: String,
    signal: bool,
    pauth_key: Option<&'static str>,
    rep_size: u8,
}

#[derive(Serialize)]
struct Row {
    start: u32,
    info: u8,
    words: Vec<i32>,
    cfa: Option<String>,
    fp: Option<String>,
    ra: Option<String>,
}

impl<'a> Function<'a> {
    fn new(
        of: &Functions<'a>,
        index: u32,
        fde: Result<Fde, sframe::Error>,
        rows_left: &mut RowsLeft,
    ) -> Self {
        let Functions { section, table, tables: Tables { file, names, .. }, .. } = of;
        let range = table.range(index);
        let start = range.map_or(0, |range| range.start);
        let mut function = Self {
            index,
            name: names.at(start).map(|name| name.to_string()),
            section: file.code_section(start),
            pc: hex(file.shown_start(start)),
            size: range.map_or(0, |range| range.size),
            details: None,
            rows: Vec::new(),
            error: None,
        };
        match fde {
            Ok(fde) => {
                function.details = Some(Details::new(&fde));
                let rows = function.read_rows(table, &fde, rows_left);
                function.error = rows.err().map(|error| error.to_string());
            }
            Err(error) => function.error = Some(error.to_string()),
        }
        if let Some(unresolved) = unresolved_start(section, table, index) {
            function.error = Some(unresolved.to_string());
        }
        function
    }

    fn read_rows(
        &mut self,
        table: &sframe::Table<'_>,
        fde: &Fde,
        rows_left: &mut RowsLeft,
    ) -> Result<(), Violation> {
        if let FdeType::Unknown(_) = fde.fde_type() {
            let error = sframe::Error::UnknownFdeType { at: fde.at, info2: fde.info2 };
            return Err(Violation::Malformed(error));
        }
        for fre in rows_left.of(table, fde)? {
            self.rows.push(Row::new(&table.header(), fde, &fre?).map_err(Violation::Malformed)?);
        }
        fde.pc_type().map(|_| ()).map_err(Violation::Malformed)
    }
}

impl Details {
    fn new(fde: &Fde) -> Self {
        Self {
            pc_type: if fde.is_mask() { "mask" } else { "inc" },
            r#type: match fde.fde_type() {
                FdeType::Default => "default".into(),
                FdeType::Flexible => "flex".into(),
                FdeType::Unknown(number) => number.to_string(),
                _ => "unknown".into(),
            },
            signal: fde.is_signal(),
            pauth_key: fde.pauth_key().map(|key| match key {
                PauthKey::A => "a",
                PauthKey::B => "b",
            }),
            rep_size: fde.rep_size,
        }
    }
}

impl Row {
    fn new(header: &Header, fde: &Fde, fre: &Fre) -> Result<Self, sframe::Error> {
        let cells = Cells::new(header, fde, fre)?;
        let (cfa, fp, ra) = match cells {
            Some(Cells { cfa, fp, ra }) => (Some(cfa), Some(fp), Some(ra)),
            None => (None, None, None),
        };
        let words = fre.words().to_vec();
        Ok(Self { start: fre.start, info: fre.info.0, words, cfa, fp, ra })
    }
}

//! A file of Parquet that is written row by row.

use std::io::{self, Write};
use std::mem;
use std::sync::Arc;

use parquet::basic::{Compression, Type};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// Rows that are in memory at a time and form a group in the file: as many as a thread of
/// DuckDB reads.
const GROUP: usize = 122_880;

/// What a row has in a column.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    Nothing,
    Number(i64),
    /// A copy shares its bytes.
    Text(ByteArray),
}

impl Cell {
    /// A count, of which no larger one than fits is known.
    pub(super) fn count(count: impl TryInto<i64>) -> Self {
        Self::Number(count.try_into().unwrap_or(i64::MAX))
    }

    pub(super) fn text(text: &str) -> Self {
        Self::Text(ByteArray::from(text))
    }
}

/// A file that is being written.
pub(super) struct Table<W: Write + Send> {
    out: SerializedFileWriter<W>,
    columns: Vec<Column>,
    /// Rows that are not yet in the file.
    rows: usize,
}

/// The cells of a group of rows. What is `Nothing` is in the levels alone.
struct Column {
    values: Values,
    /// For each row whether it has a value, if it may have none.
    levels: Option<Vec<i16>>,
}

enum Values {
    Numbers(Vec<i64>),
    Texts(Vec<ByteArray>),
}

impl<W: Write + Send> Table<W> {
    /// Begins a file whose columns are those of the message.
    pub(super) fn begin(out: W, message: &str) -> io::Result<Self> {
        let schema = Arc::new(parse_message_type(message).map_err(from_parquet)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("unwind ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let out = SerializedFileWriter::new(out, schema, Arc::new(properties));
        let out = out.map_err(from_parquet)?;
        let columns = out.schema_descr().columns().iter().map(|column| Column {
            values: match column.physical_type() {
                Type::BYTE_ARRAY => Values::Texts(Vec::new()),
                _ => Values::Numbers(Vec::new()),
            },
            levels: (column.max_def_level() > 0).then(Vec::new),
        });
        Ok(Self { columns: columns.collect(), out, rows: 0 })
    }

    /// Adds a row, with a cell for each column.
    pub(super) fn push(&mut self, row: impl IntoIterator<Item = Cell>) -> io::Result<()> {
        let mut cells = row.into_iter();
        for column in &mut self.columns {
            column.push(cells.next().unwrap_or(Cell::Nothing))?;
        }
        self.rows = self.rows.saturating_add(1);
        if self.rows < GROUP { Ok(()) } else { self.write_group() }
    }

    fn write_group(&mut self) -> io::Result<()> {
        let mut group = self.out.next_row_group().map_err(from_parquet)?;
        for column in &mut self.columns {
            let Some(mut out) = group.next_column().map_err(from_parquet)? else { break };
            let levels = column.levels.as_mut().map(mem::take);
            let levels = levels.as_deref();
            match &mut column.values {
                Values::Numbers(numbers) => {
                    let numbers = mem::take(numbers);
                    out.typed::<Int64Type>().write_batch(&numbers, levels, None)
                }
                Values::Texts(texts) => {
                    let texts = mem::take(texts);
                    out.typed::<ByteArrayType>().write_batch(&texts, levels, None)
                }
            }
            .map_err(from_parquet)?;
            out.close().map_err(from_parquet)?;
        }
        group.close().map_err(from_parquet)?;
        self.rows = 0;
        Ok(())
    }

    /// Writes what is left, and the end of the file.
    pub(super) fn finish(mut self) -> io::Result<W> {
        if self.rows > 0 {
            self.write_group()?;
        }
        self.out.into_inner().map_err(from_parquet)
    }
}

impl Column {
    fn push(&mut self, cell: Cell) -> io::Result<()> {
        let level = match (cell, &mut self.values) {
            (Cell::Nothing, _) if self.levels.is_some() => 0,
            (Cell::Number(number), Values::Numbers(numbers)) => {
                numbers.push(number);
                1
            }
            (Cell::Text(text), Values::Texts(texts)) => {
                texts.push(text);
                1
            }
            _ => return Err(io::Error::other("a cell is not of its column's type")),
        };
        self.levels.iter_mut().for_each(|levels| levels.push(level));
        Ok(())
    }
}

fn from_parquet(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}

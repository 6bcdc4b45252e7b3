//! The table as files: Parquet or CSV, with memory for one row group however many rows there are. A file has its name
//! only when it is whole.

use super::columns::{batch, schema};
use super::row::Maker;
use commensal_host::{Host, HostError, LinuxHost};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::properties::WriterProperties;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::{NamedTempFile, PersistError};

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum RowsFormat {
    /// Apache Parquet, compressed with Snappy.
    Parquet,
    /// Text with commas, the names of the columns first.
    Csv,
}

impl RowsFormat {
    fn ending(self) -> &'static str {
        match self {
            RowsFormat::Parquet => "parquet",
            RowsFormat::Csv => "csv",
        }
    }
}

/// What is to be written.
#[derive(Debug, Clone)]
pub struct RowOrder {
    /// Rows in all files together.
    pub rows: u64,
    /// The folder; made if it is not there.
    pub out: PathBuf,
    /// Files: `hits.parquet` when it is one, else `hits_0.parquet` and so on.
    pub files: u32,
    /// How rows are written.
    pub format: RowsFormat,
    /// Rows depend on it.
    pub seed: u64,
    /// Whether files that are there are replaced.
    pub force: bool,
}

/// Why files were not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is one of that name.
    #[error("{} is there already: remove it, choose another folder with --out, or replace it with --force", .0.display())]
    Exists(PathBuf),
    /// The folder cannot be made.
    #[error("cannot make the folder {}: choose another one with --out", .0.display())]
    Folder(PathBuf, #[source] HostError),
    /// A file cannot be made there, or not be given its name.
    #[error("cannot write {}: choose another folder with --out", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// It could not be written to its end, such as on a full disk.
    #[error("cannot write {} to its end; what there was of it is removed: make room, or ask for fewer --rows", .0.display())]
    Parquet(PathBuf, #[source] ParquetError),
    /// The same, of CSV.
    #[error("cannot write {} to its end; what there was of it is removed: make room, or ask for fewer --rows", .0.display())]
    Csv(PathBuf, #[source] ArrowError),
}

/// Rows that are made at a time.
const BATCH: u64 = 8_192;

/// Rows of a row group: the most that are kept in memory, encoded.
const ROW_GROUP: u64 = 131_072;

/// Writes the files and tells after each batch how many rows there are so far. The names of the files.
///
/// # Errors
/// A file is there, or cannot be written; files that were finished before stay.
pub fn write(order: &RowOrder, progress: &dyn Fn(u64)) -> Result<Vec<PathBuf>, WriteError> {
    let paths = paths(order);
    if let Some(there) = paths.iter().find(|path| !order.force && path.exists()) {
        return Err(WriteError::Exists(there.clone()));
    }
    if !order.out.is_dir() {
        let made = LinuxHost::new().state_dir(&order.out);
        made.map_err(|error| WriteError::Folder(order.out.clone(), error))?;
    }
    let (maker, schema) = (Maker::new(order.seed, order.rows), schema());
    let files = u64::from(order.files.max(1));
    let bound = |file: u64| (u128::from(order.rows) * u128::from(file) / u128::from(files)) as u64;
    for (file, path) in (0..).zip(&paths) {
        let (from, to) = (bound(file), bound(file + 1));
        one(order, path, &schema, to - from, &mut |sink| {
            for at in (from..to).step_by(BATCH as usize) {
                let next = to.min(at + BATCH);
                sink.rows(&batch(&maker, &schema, at..next)?)?;
                progress(next);
            }
            Ok(())
        })?;
    }
    Ok(paths)
}

fn paths(order: &RowOrder) -> Vec<PathBuf> {
    let ending = order.format.ending();
    match order.files {
        0 | 1 => vec![order.out.join(format!("hits.{ending}"))],
        files => (0..files).map(|file| order.out.join(format!("hits_{file}.{ending}"))).collect(),
    }
}

/// Why the rows of a file were not written.
#[derive(Debug)]
enum Failed {
    Parquet(ParquetError),
    Csv(ArrowError),
}

impl From<ParquetError> for Failed {
    fn from(error: ParquetError) -> Self {
        Failed::Parquet(error)
    }
}

impl From<ArrowError> for Failed {
    fn from(error: ArrowError) -> Self {
        Failed::Csv(error)
    }
}

/// A file under way.
enum Sink<'a> {
    Parquet(Box<ArrowWriter<&'a File>>),
    Csv(Box<csv::Writer<BufWriter<&'a File>>>),
}

impl Sink<'_> {
    fn rows(&mut self, rows: &RecordBatch) -> Result<(), Failed> {
        match self {
            Sink::Parquet(writer) => writer.write(rows)?,
            Sink::Csv(writer) => writer.write(rows)?,
        }
        Ok(())
    }

    fn end(self) -> Result<(), Failed> {
        match self {
            Sink::Parquet(writer) => {
                writer.close()?;
            }
            // What is left in the buffer may not fit either.
            Sink::Csv(writer) => {
                let flushed = writer.into_inner().into_inner();
                flushed.map_err(|error| ArrowError::from(error.into_error()))?;
            }
        }
        Ok(())
    }
}

type Fill<'a> = &'a mut dyn FnMut(&mut Sink<'_>) -> Result<(), Failed>;

/// Writes a file of `rows` rows beside its place, and puts it there when it is whole. What is not is removed.
fn one(
    order: &RowOrder,
    path: &Path,
    schema: &SchemaRef,
    rows: u64,
    fill: Fill<'_>,
) -> Result<(), WriteError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".hits").suffix(".part").permissions(Permissions::from_mode(0o644));
    let made = builder.tempfile_in(&order.out);
    let file: NamedTempFile = made.map_err(|error| WriteError::File(path.to_owned(), error))?;
    let written = sink(file.as_file(), order.format, schema, rows).and_then(|mut sink| {
        fill(&mut sink)?;
        sink.end()
    });
    written.map_err(|failed| match failed {
        Failed::Parquet(error) => WriteError::Parquet(path.to_owned(), error),
        Failed::Csv(error) => WriteError::Csv(path.to_owned(), error),
    })?;
    let put = if order.force { file.persist(path) } else { file.persist_noclobber(path) };
    put.map(drop).map_err(|PersistError { error, .. }| match error.kind() {
        io::ErrorKind::AlreadyExists => WriteError::Exists(path.to_owned()),
        _ => WriteError::File(path.to_owned(), error),
    })
}

fn sink<'a>(file: &'a File, format: RowsFormat, schema: &SchemaRef, rows: u64) -> Result<Sink<'a>, Failed> {
    match format {
        RowsFormat::Parquet => {
            // Several row groups also in a small file, since what reads them in parallel goes by them.
            let group = rows.div_ceil(4).clamp(BATCH, ROW_GROUP) as usize;
            let properties = WriterProperties::builder()
                .set_compression(Compression::SNAPPY)
                .set_max_row_group_row_count(Some(group))
                .build();
            let writer = ArrowWriter::try_new(file, schema.clone(), Some(properties))?;
            Ok(Sink::Parquet(Box::new(writer)))
        }
        RowsFormat::Csv => {
            let builder = csv::WriterBuilder::new().with_header(true);
            let builder = builder.with_timestamp_format("%Y-%m-%d %H:%M:%S".to_owned());
            Ok(Sink::Csv(Box::new(builder.build(BufWriter::with_capacity(1 << 20, file)))))
        }
    }
}

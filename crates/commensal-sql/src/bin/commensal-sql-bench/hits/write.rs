//! Writes the table as Parquet or CSV files, with at most one row group in memory. A file gets its final name only when
//! it is complete.

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

/// File format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum RowsFormat {
    /// Apache Parquet, compressed with Snappy.
    Parquet,
    /// Comma-separated text, with the names of the columns in the first line.
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

/// Parameters of `generate`.
#[derive(Debug, Clone)]
pub struct RowOrder {
    /// Rows in all files together.
    pub rows: u64,
    /// The folder; created if it does not exist.
    pub out: PathBuf,
    /// Number of files: `hits.parquet` if it is 1, otherwise `hits_0.parquet` and so on.
    pub files: u32,
    /// File format.
    pub format: RowsFormat,
    /// Seed of the rows.
    pub seed: u64,
    /// Whether existing files are replaced.
    pub force: bool,
}

/// The reason why files were not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file of that name exists.
    #[error("{} already exists: remove it, choose another folder with --out, or replace it with --force", .0.display())]
    Exists(PathBuf),
    /// The folder cannot be created.
    #[error("cannot create the folder {}: choose another one with --out", .0.display())]
    Folder(PathBuf, #[source] HostError),
    /// A file cannot be created, or cannot be renamed to its final name.
    #[error("cannot write {}: choose another folder with --out", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// A Parquet file could not be completed, for example because the disk is full.
    #[error("cannot write all of {}; the incomplete file was removed: free some space, or ask for fewer --rows", .0.display())]
    Parquet(PathBuf, #[source] ParquetError),
    /// A CSV file could not be completed.
    #[error("cannot write all of {}; the incomplete file was removed: free some space, or ask for fewer --rows", .0.display())]
    Csv(PathBuf, #[source] ArrowError),
}

/// Number of rows that are generated at a time.
const BATCH: u64 = 8_192;

/// Maximum number of rows in a row group, which is held in memory in encoded form.
const ROW_GROUP: u64 = 131_072;

/// Writes the files, and calls `progress` after each batch with the number of rows so far. Returns the paths of the
/// files.
///
/// # Errors
/// A file exists already or cannot be written. Files completed before the error remain.
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

/// The reason why writing a file failed.
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

/// A file being written.
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
            // Flushing the buffer may fail, too.
            Sink::Csv(writer) => {
                let flushed = writer.into_inner().into_inner();
                flushed.map_err(|error| ArrowError::from(error.into_error()))?;
            }
        }
        Ok(())
    }
}

type Fill<'a> = &'a mut dyn FnMut(&mut Sink<'_>) -> Result<(), Failed>;

/// Writes `rows` rows to a temporary file and renames the file when it is complete. If a write fails, removes the
/// temporary file.
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
            // Small files get several row groups, too, because readers parallelize over row groups.
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

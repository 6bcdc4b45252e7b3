//! Sources of rows: files below the data folder, and the stores and files that a statement refers to with `S3(...)` and
//! `LOCAL(...)`.
//!
//! ```text
//! DATA/hits.parquet             table main.hits
//! DATA/shop/orders.csv          table shop.orders
//! DATA/shop/events/*.parquet    table shop.events, all files of the folder
//! ```
//!
//! Names are resolved when a statement is planned, so that a new file is visible immediately. Reads that determine the
//! columns of a table are charged to the query's group.

use super::confined_store::Below;
use super::error::Error;
use super::partitions::Partitioned;
use commensal_host::{Host, LinuxHost};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::execution::context::SessionState;
use futures::TryStreamExt;
use glob::Pattern;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use url::Url;

/// URL scheme of the data folder's store; no other scheme reads local files.
pub const SCHEME: &str = "data";

/// The database that contains the files directly in the data folder; it is the default database of sessions.
pub const MAIN: &str = "main";

/// The database that contains the system tables.
pub const INFORMATION_SCHEMA: &str = "information_schema";

/// File formats that can be read, chosen by file name extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Apache Parquet.
    Parquet,
    /// Text with separated columns.
    Separated {
        /// Character between columns.
        separator: u8,
        /// Whether the first line contains the column names.
        header: bool,
    },
    /// A JSON object on each line.
    Json,
}

impl Format {
    /// File name extensions, with the format of each.
    pub const ENDINGS: [(&str, Format); 5] = [
        (".parquet", Format::Parquet),
        (".csv", Format::Separated { separator: b',', header: true }),
        (".tsv", Format::Separated { separator: b'\t', header: true }),
        (".json", Format::Json),
        (".ndjson", Format::Json),
    ];

    fn of(name: &str) -> Option<(&str, Format)> {
        let ending = |(ending, format): &(&str, Format)| Some((name.strip_suffix(ending)?, *format));
        Self::ENDINGS.iter().find_map(ending).filter(|(stem, _)| !stem.is_empty())
    }

    fn file_format(self) -> Arc<dyn FileFormat> {
        match self {
            Format::Parquet => Arc::new(ParquetFormat::default()),
            Format::Separated { separator, header } => {
                Arc::new(CsvFormat::default().with_has_header(header).with_delimiter(separator))
            }
            Format::Json => Arc::new(JsonFormat::default()),
        }
    }
}

/// The folder with the server's data.
#[derive(Debug)]
pub struct Data {
    /// Store of the files in the folder.
    pub store: Below,
    /// Store for writing to the folder, if the server may write there.
    pub writer: Option<Arc<LocalFileSystem>>,
    /// Cached columns of the tables in the folder.
    pub known: Known,
}

/// Cached columns of sources. An entry is valid as long as name, size and modification time of the files do not change.
/// Without the cache, planning would read the columns from a Parquet file (a millisecond for a hundred columns), and
/// the data of a CSV or JSON file.
#[derive(Debug, Default)]
pub struct Known(Mutex<HashMap<TableSource, (Files, SchemaRef)>>);

type Files = Vec<(ObjectPath, u64, SystemTime)>;

/// Maximum number of cached sources; the cache is cleared when it is full.
const MOST_KNOWN: usize = 10_000;

impl Known {
    fn lock(&self) -> MutexGuard<'_, HashMap<TableSource, (Files, SchemaRef)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, place: &TableSource, files: &Files) -> Option<SchemaRef> {
        self.lock().get(place).filter(|(seen, _)| seen == files).map(|(_, schema)| Arc::clone(schema))
    }

    fn keep(&self, place: &TableSource, files: Files, schema: &SchemaRef) {
        let mut all = self.lock();
        if all.len() >= MOST_KNOWN {
            all.clear();
        }
        all.insert(place.clone(), (files, Arc::clone(schema)));
    }
}

impl Data {
    /// Opens the data folder.
    ///
    /// # Errors
    /// The folder does not exist, or is not a folder.
    pub fn open(folder: &Path, writable: bool) -> Result<Data, Error> {
        let cannot = |error: object_store::Error| {
            let folder = folder.display();
            Error::Engine(format!("cannot open the data folder {folder}: {error}: name a folder with --data"))
        };
        let store = Below::new(folder).map_err(cannot)?;
        let writer = writable.then(|| LocalFileSystem::new_with_prefix(store.root()));
        let writer = writer.transpose().map_err(cannot)?.map(Arc::new);
        Ok(Data { store, writer, known: Known::default() })
    }

    /// Whether a table with this name can be written: its folder is inside the database's folder, or does not exist
    /// yet.
    #[must_use]
    pub fn may_be_table(&self, database: &str, table: &str) -> bool {
        let plain = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
        let named = !table.is_empty() && table.chars().all(plain);
        let Some(folder) = self.folder(database).filter(|_| named) else { return false };
        let place = folder.join(table);
        place.symlink_metadata().map_or(true, |found| found.is_dir())
    }

    fn names(&self, folder: &Path) -> Vec<String> {
        let mut names = LinuxHost::new().list(folder).unwrap_or_default();
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        names
    }

    /// Returns the canonical path of the folder of a database, whose name is a single path component.
    fn folder(&self, database: &str) -> Option<std::path::PathBuf> {
        if database == MAIN {
            return Some(self.store.root().to_owned());
        }
        if database.is_empty() || database.starts_with('.') || database.contains('/') {
            return None;
        }
        let place = self.store.root().join(database).canonicalize().ok()?;
        (place.is_dir() && place.starts_with(self.store.root())).then_some(place)
    }

    /// Returns the names of the databases: `main` and every folder in the data folder.
    #[must_use]
    pub fn databases(&self) -> Vec<String> {
        let mut databases = vec![MAIN.to_owned()];
        let folders = self.names(self.store.root());
        databases.extend(folders.into_iter().filter(|name| name != MAIN && self.folder(name).is_some()));
        databases
    }

    /// Whether this database exists.
    #[must_use]
    pub fn has_database(&self, database: &str) -> bool {
        self.folder(database).is_some()
    }

    /// Returns the names of the tables in a database, sorted.
    #[must_use]
    pub fn tables(&self, database: &str) -> Vec<String> {
        let Some(folder) = self.folder(database) else { return Vec::new() };
        let table = |name: &String| match Format::of(name) {
            Some((stem, _)) => Some(stem.to_owned()),
            None => {
                let is_table = database != MAIN && self.format_of_folder(&folder.join(name)).is_some();
                is_table.then(|| name.clone())
            }
        };
        let mut tables: Vec<String> = self.names(&folder).iter().filter_map(table).collect();
        tables.dedup();
        tables
    }

    /// Returns the extension and the format of the first file in a folder that has a known extension.
    fn format_of_folder(&self, folder: &Path) -> Option<(&'static str, Format)> {
        let inside = folder.canonicalize().is_ok_and(|place| place.starts_with(self.store.root()));
        if !inside || !folder.is_dir() {
            return None;
        }
        let ending = |name: &String| Format::ENDINGS.into_iter().find(|(ending, _)| name.ends_with(ending));
        self.names(folder).iter().find_map(ending)
    }

    /// Returns the source of a table; `None` if the table does not exist.
    #[must_use]
    pub fn locate(&self, database: &str, table: &str) -> Option<TableSource> {
        if table.is_empty() || table.contains('/') || table.starts_with('.') {
            return None;
        }
        let folder = self.folder(database)?;
        let prefix = if database == MAIN { String::new() } else { format!("{database}/") };
        for (ending, format) in Format::ENDINGS {
            let name = format!("{table}{ending}");
            if folder.join(&name).is_file() {
                return Some(TableSource {
                    url: url(&format!("{prefix}{name}")),
                    format,
                    ending: ending.to_owned(),
                    partitions: Vec::new(),
                });
            }
        }
        if database == MAIN {
            return None;
        }
        let (ending, format) = self.format_of_folder(&folder.join(table))?;
        Some(TableSource {
            url: url(&format!("{prefix}{table}/")),
            format,
            ending: ending.to_owned(),
            partitions: Vec::new(),
        })
    }
}

/// Returns the URL of a name below the data folder.
fn url(name: &str) -> String {
    format!("{SCHEME}://files/{}", encode(name))
}

/// Percent-encodes the bytes that a URL's path cannot contain.
fn encode(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The source of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableSource {
    /// A file, or a folder if the URL ends with a slash.
    pub url: String,
    /// Format of the files.
    pub format: Format,
    /// File name extension of the files in a folder.
    pub ending: String,
    /// Columns whose values are in the names of folders, such as `city` for `city=Ulm`, in the order of the folders.
    pub partitions: Vec<String>,
}

impl TableSource {
    /// Returns the source of a file below the data folder, named as in `LOCAL(...)`.
    ///
    /// # Errors
    /// The name leads out of the folder, or the file's format is unknown.
    pub fn local(name: &str, format: Option<Format>) -> Result<TableSource, Error> {
        let relative = name.trim_start_matches("./");
        let steps = relative.split('/').any(|step| step == ".." || step == ".");
        if steps || relative.is_empty() || relative.starts_with('/') {
            return Err(Error::Denied(format!(
                "{name:?} is not the name of a file below the data folder: write it relative to the folder, without \
                 \"..\""
            )));
        }
        let ending = Format::ENDINGS.into_iter().find(|(ending, _)| relative.ends_with(ending));
        let Some(format) = format.or(ending.map(|(_, format)| format)) else {
            return Err(Error::Rule(format!(
                "the format of {name:?} is unknown: add \"format\" = \"csv\" or \"parquet\""
            )));
        };
        Ok(TableSource { url: url(relative), format, ending: String::new(), partitions: Vec::new() })
    }

    /// Returns the table with its columns. If the columns are not in `known`, the function reads them through the
    /// stores of `state`.
    ///
    /// # Errors
    /// The file does not exist, or does not have the source's format.
    pub async fn table(&self, state: &SessionState, known: &Known) -> Result<Arc<dyn TableProvider>, Error> {
        let url = self.listed()?;
        let partitions = self.partitions.iter().map(|column| (column.clone(), DataType::Utf8));
        let options = ListingOptions::new(self.format.file_format())
            .with_file_extension(&self.ending)
            .with_table_partition_cols(partitions.collect());
        // Only tables of the data folder are cached, because the same URL may refer to another store in the next
        // statement.
        let schema = match url.scheme() {
            SCHEME => {
                let files = self.files(state, &url).await?;
                match known.get(self, &files) {
                    Some(schema) => schema,
                    None => {
                        let schema = options.infer_schema(state, &url).await?;
                        known.keep(self, files, &schema);
                        schema
                    }
                }
            }
            _ => options.infer_schema(state, &url).await?,
        };
        let config = ListingTableConfig::new(url).with_listing_options(options).with_schema(schema);
        let cache = state.runtime_env().cache_manager.get_file_statistic_cache();
        let table = ListingTable::try_new(config)?.with_cache(cache);
        if self.partitions.is_empty() {
            return Ok(Arc::new(table));
        }
        Ok(Arc::new(Partitioned(table)))
    }

    /// Splits the URL at the first component with a `*` or with a partition: the part before it is a folder, the rest is a
    /// pattern for names below that folder.
    fn listed(&self) -> Result<ListingTableUrl, Error> {
        let partition = self.partitions.first().and_then(|key| self.url.find(&format!("/{key}=")));
        let Some(split) = partition.map(|slash| slash + 1).or_else(|| self.url.find('*')) else {
            // Files in partitions are below a folder.
            let slash = if self.partitions.is_empty() || self.url.ends_with('/') { "" } else { "/" };
            return Ok(ListingTableUrl::parse(format!("{}{slash}", self.url))?);
        };
        let folder = self.url.get(..split).and_then(|before| before.rfind('/')).map_or(0, |slash| slash + 1);
        let (folder, pattern) = self.url.split_at(folder);
        let pattern = if partition.is_some() { self.within_partitions(pattern)? } else { pattern };
        let bad =
            |why: String| Error::Rule(format!("{pattern:?} is not a valid pattern for file names: {why}"));
        let folder = Url::parse(folder).map_err(|error| bad(error.to_string()))?;
        if pattern.is_empty() {
            return Ok(ListingTableUrl::try_new(folder, None)?);
        }
        // A pattern is matched with plain names, but in a URL some letters are encoded.
        let plain = ObjectPath::from_url_path(pattern).map_err(|error| bad(error.to_string()))?;
        let names = Pattern::new(plain.as_ref()).map_err(|error| bad(error.to_string()))?;
        Ok(ListingTableUrl::try_new(folder, Some(names))?)
    }

    /// Returns the part of a pattern after its partitions. Only `key=*` is a partition there, because DataFusion matches
    /// patterns with the names of files alone.
    fn within_partitions<'a>(&self, pattern: &'a str) -> Result<&'a str, Error> {
        let mut rest = pattern;
        for key in &self.partitions {
            let after = rest.strip_prefix(key.as_str()).and_then(|rest| rest.strip_prefix("=*"));
            rest = match after {
                Some("") => "",
                Some(after) if after.starts_with('/') => after.trim_start_matches('/'),
                _ => {
                    return Err(Error::Rule(format!(
                        "{pattern:?} does not have the partitions {}: write {key}=* in the address, and select with \
                         WHERE {key} = …",
                        self.partitions.join(", ")
                    )));
                }
            };
        }
        Ok(rest)
    }

    async fn files(&self, state: &SessionState, url: &ListingTableUrl) -> Result<Files, Error> {
        let store = state.runtime_env().object_store(url)?;
        let found = url.list_all_files(state, store.as_ref(), &self.ending).await?;
        let mut files: Files =
            found.map_ok(|meta| (meta.location, meta.size, meta.last_modified.into())).try_collect().await?;
        files.sort();
        Ok(files)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test makes files and links")]
mod tests {
    use super::*;

    #[test]
    fn names_become_tables() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("shop/events")).unwrap();
        for file in ["hits.parquet", ".hidden.csv", "notes.txt", "shop/orders.csv", "shop/events/1.parquet"] {
            std::fs::write(at(file), "").unwrap();
        }
        std::fs::create_dir(at("shop/empty")).unwrap();
        std::os::unix::fs::symlink("/etc", at("etc")).unwrap();
        let data = Data::open(folder.path(), false).unwrap();
        assert_eq!(data.databases(), ["main", "shop"]);
        assert_eq!(data.tables("main"), ["hits"]);
        assert_eq!(data.tables("shop"), ["events", "orders"]);
        assert_eq!(data.locate("main", "hits").unwrap().url, "data://files/hits.parquet");
        assert_eq!(data.locate("shop", "events").unwrap().url, "data://files/shop/events/");
        for (database, table) in
            [("main", "notes"), ("main", "events"), ("..", "hits"), ("etc", "passwd"), ("shop", "../hits")]
        {
            assert_eq!(data.locate(database, table), None, "{database}.{table}");
        }
    }

    #[test]
    fn addresses_have_patterns_and_partitions() {
        let listed = |path: &str, keys: &[&str]| {
            let partitions = keys.iter().map(|key| (*key).to_owned()).collect();
            let url = format!("hdfs://h/{path}");
            let place = TableSource { url, format: Format::Json, ending: String::new(), partitions };
            let listed = place.listed().map_err(|error| error.to_string())?;
            let pattern = listed.get_glob().as_ref().map_or("", Pattern::as_str).to_owned();
            Ok::<_, String>((listed.prefix().to_string(), listed.is_collection(), pattern))
        };
        let is = |folder: &str, pattern: &str| Ok((folder.to_owned(), true, pattern.to_owned()));
        assert_eq!(listed("t/k.csv", &[]), Ok(("t/k.csv".to_owned(), false, String::new())));
        assert_eq!(listed("t/*.csv", &[]), is("t", "*.csv"));
        assert_eq!(listed("t/a=1/*.csv", &[]), is("t/a=1", "*.csv"));
        assert_eq!(listed("t/1%20K%C3%B6ln*.csv", &[]), is("t", "1 Köln*.csv"));
        for path in ["t", "t/", "t/a=*", "t/a=*/"] {
            assert_eq!(listed(path, &["a"]), is("t", ""), "{path}");
        }
        assert_eq!(listed("t/*.csv", &["a"]), is("t", "*.csv"));
        assert_eq!(listed("t/a=*/b=*/*.csv", &["a", "b"]), is("t", "*.csv"));
        // Whatever would be matched with nothing.
        for path in ["t/a=1/k.csv", "t/a=1*/k.csv", "t/a=*/k.csv", "t/a=*/c=*/k.csv", "t/a=*k/b=*/k.csv"] {
            let text = listed(path, &["a", "b"]).unwrap_err();
            assert!(text.contains("=* in the address"), "{path}: {text}");
        }
    }

    #[test]
    fn local_names_stay_inside() {
        for bad in ["../x.csv", "/etc/passwd", "a/../../x.csv", "", "./../x.csv", "a/./x.csv"] {
            assert!(TableSource::local(bad, Some(Format::Json)).is_err(), "{bad}");
        }
        assert_eq!(TableSource::local("a b.csv", None).unwrap().url, "data://files/a%20b.csv");
        assert!(TableSource::local("x.bin", None).is_err());
    }
}

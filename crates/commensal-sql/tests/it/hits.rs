//! The generated table: its columns, the same rows every time, shares like ClickBench's, and files that are whole or not
//! there.
#![allow(
    clippy::disallowed_methods,
    reason = "tests make data, start the program and look at the machine themselves"
)]
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]

use commensal_sql::hits::{COUNTER, FIRST_DAY, Maker, batch, schema};
use datafusion::arrow::array::{
    Array, AsArray, Date32Array, Int16Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

/// Names and types of ClickBench's `create.sql`: BIGINT, INTEGER, SMALLINT, TEXT, TIMESTAMP and DATE.
const CLICKBENCH: &str = "\
     WatchID:l JavaEnable:s Title:t GoodEvent:s EventTime:T EventDate:D CounterID:i ClientIP:i RegionID:i \
     UserID:l CounterClass:s OS:s UserAgent:s URL:t Referer:t IsRefresh:s RefererCategoryID:s \
     RefererRegionID:i URLCategoryID:s URLRegionID:i ResolutionWidth:s ResolutionHeight:s ResolutionDepth:s \
     FlashMajor:s FlashMinor:s FlashMinor2:t NetMajor:s NetMinor:s UserAgentMajor:s UserAgentMinor:t \
     CookieEnable:s JavascriptEnable:s IsMobile:s MobilePhone:s MobilePhoneModel:t Params:t IPNetworkID:i \
     TraficSourceID:s SearchEngineID:s SearchPhrase:t AdvEngineID:s IsArtifical:s WindowClientWidth:s \
     WindowClientHeight:s ClientTimeZone:s ClientEventTime:T SilverlightVersion1:s SilverlightVersion2:s \
     SilverlightVersion3:i SilverlightVersion4:s PageCharset:t CodeVersion:i IsLink:s IsDownload:s \
     IsNotBounce:s FUniqID:l OriginalURL:t HID:i IsOldCounter:s IsEvent:s IsParameter:s DontCountHits:s \
     WithHash:s HitColor:t LocalEventTime:T Age:s Sex:s Income:s Interests:s Robotness:s RemoteIP:i \
     WindowName:i OpenerName:i HistoryLength:s BrowserLanguage:t BrowserCountry:t SocialNetwork:t \
     SocialAction:t HTTPError:s SendTiming:i DNSTiming:i ConnectTiming:i ResponseStartTiming:i \
     ResponseEndTiming:i FetchTiming:i SocialSourceNetworkID:s SocialSourcePage:t ParamPrice:l ParamOrderID:t \
     ParamCurrency:t ParamCurrencyID:s OpenstatServiceName:t OpenstatCampaignID:t OpenstatAdID:t \
     OpenstatSourceID:t UTMSource:t UTMMedium:t UTMCampaign:t UTMContent:t UTMTerm:t FromTag:t HasGCLID:s \
     RefererHash:l URLHash:l CLID:i \
     ";

const ROWS: u64 = 40_000;

fn rows(seed: u64, all: u64, from: u64, to: u64) -> RecordBatch {
    batch(&Maker::new(seed, all), &schema(), from..to).unwrap()
}

#[test]
fn the_columns_are_clickbenchs() {
    let schema = schema();
    let letter = |kind: &DataType| match kind {
        DataType::Int64 => "l",
        DataType::Int32 => "i",
        DataType::Int16 => "s",
        DataType::Utf8 => "t",
        DataType::Timestamp(TimeUnit::Millisecond, None) => "T",
        DataType::Date32 => "D",
        other => panic!("{other}"),
    };
    let got: Vec<String> = schema
        .fields()
        .iter()
        .map(|field| format!("{}:{}", field.name(), letter(field.data_type())))
        .collect();
    assert_eq!(got, CLICKBENCH.split_whitespace().collect::<Vec<_>>());
    assert!(schema.fields().iter().all(|field| !field.is_nullable()));
}

#[test]
fn a_seed_gives_the_same_rows_in_any_pieces() {
    let whole = rows(7, 3_000, 0, 3_000);
    let pieces: Vec<RecordBatch> =
        [(0, 1), (1, 2_000), (2_000, 3_000)].map(|(from, to)| rows(7, 3_000, from, to)).into();
    assert_eq!(whole, concat_batches(&schema(), &pieces).unwrap());
    assert_ne!(whole, rows(8, 3_000, 0, 3_000));
}

/// Share of the rows of which something holds.
fn share(number: usize) -> f64 {
    number as f64 / ROWS as f64
}

fn check(what: &str, got: f64, from: f64, to: f64) {
    assert!((from..=to).contains(&got), "{what}: {got} is not within {from} to {to}");
}

#[test]
fn shares_are_like_clickbenchs() {
    let rows = rows(1, ROWS, 0, ROWS);
    let column = |name: &str| rows.column_by_name(name).unwrap().clone();
    let texts = |name: &str| column(name).as_string::<i32>().clone();
    let filled = |texts: &StringArray| texts.iter().flatten().filter(|text| !text.is_empty()).count();
    let distinct = |texts: &StringArray| texts.iter().flatten().collect::<BTreeSet<_>>().len();

    // ClickBench: 13 % of the rows have a phrase, 0.6 % an advertisement, 0.7 % are of counter 62.
    let phrases = texts("SearchPhrase");
    check("phrases", share(filled(&phrases)), 0.08, 0.2);
    check("distinct phrases", distinct(&phrases) as f64 / filled(&phrases) as f64, 0.2, 0.9);
    let referers = texts("Referer");
    check("referers", share(filled(&referers)), 0.72, 0.88);
    let length: usize = referers.iter().flatten().map(str::len).sum();
    check("bytes of a referer", length as f64 / filled(&referers) as f64, 50.0, 140.0);
    check("distinct pages", share(distinct(&texts("URL"))), 0.1, 0.7);
    check("phones", share(filled(&texts("MobilePhoneModel"))), 0.02, 0.12);
    let adverts = column("AdvEngineID");
    let adverts = adverts.as_any().downcast_ref::<Int16Array>().unwrap();
    check(
        "advertisements",
        share(adverts.values().iter().filter(|engine| **engine != 0).count()),
        0.002,
        0.02,
    );

    let counters = column("CounterID");
    let counters = counters.as_any().downcast_ref::<Int32Array>().unwrap().values().to_vec();
    check("counter", share(counters.iter().filter(|counter| **counter == COUNTER).count()), 0.006, 0.009);
    assert!(counters.is_sorted(), "rows of a counter are beside each other");
    let mut sizes: Vec<usize> = counters.chunk_by(|a, b| a == b).map(<[i32]>::len).collect();
    sizes.sort_unstable();
    check("counters", sizes.len() as f64, 1_000.0, 5_000.0);
    check("largest counter", share(sizes[sizes.len() - 1]), 0.03, 0.3);

    let users = column("UserID");
    let users = users.as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec();
    let distinct_users: BTreeSet<i64> = users.into_iter().collect();
    check("users", share(distinct_users.len()), 0.1, 0.3);
    let regions = column("RegionID");
    let regions = regions.as_any().downcast_ref::<Int32Array>().unwrap();
    check("region 229", share(regions.values().iter().filter(|region| **region == 229).count()), 0.1, 0.3);
    let days = column("EventDate");
    let days: BTreeSet<i32> =
        days.as_any().downcast_ref::<Date32Array>().unwrap().values().iter().copied().collect();
    assert_eq!(days, (FIRST_DAY..FIRST_DAY + 31).collect());
    for (name, word) in [("URL", "google"), ("Title", "Google")] {
        let some = texts(name).iter().flatten().filter(|text| text.contains(word)).count();
        check(name, share(some), 0.000_1, 0.01);
    }
}

fn generate(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_commensal-sql"));
    command.arg("generate").arg("--out").arg(folder).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn read(path: &Path) -> (usize, RecordBatch) {
    let builder = ParquetRecordBatchReaderBuilder::try_new(std::fs::File::open(path).unwrap()).unwrap();
    let groups = builder.metadata().num_row_groups();
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
    (groups, concat_batches(&batches[0].schema(), &batches).unwrap())
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn files_hold_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("data");
    let done = generate(&out, &["--rows", "20000", "--seed", "5"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(said(&done), "", "no progress bar without a terminal");
    let (groups, whole) = read(&out.join("hits.parquet"));
    assert!(groups > 1, "{groups} row group");
    assert_eq!(whole.columns(), rows(5, 20_000, 0, 20_000).columns());

    let done = generate(&out.join("x/hits"), &["--rows", "20000", "--seed", "5", "--files", "3"]);
    assert!(done.status.success(), "{}", said(&done));
    let parts: Vec<RecordBatch> =
        (0..3).map(|file| read(&out.join(format!("x/hits/hits_{file}.parquet"))).1).collect();
    assert!(parts.iter().all(|part| part.num_rows() > 6_000), "all files have their part");
    assert_eq!(concat_batches(&whole.schema(), &parts).unwrap(), whole);

    let done = generate(&out, &["--rows", "100", "--format", "csv"]);
    assert!(done.status.success(), "{}", said(&done));
    let text = std::fs::read_to_string(out.join("hits.csv")).unwrap();
    assert_eq!(text.lines().count(), 101);
    assert!(text.starts_with("WatchID,JavaEnable,Title,"), "{}", &text[..80]);
    assert!(text.lines().nth(1).unwrap().contains(",2013-07-"), "{:?}", text.lines().nth(1));
}

#[test]
fn a_file_that_is_there_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hits.parquet");
    std::fs::write(&file, "mine").unwrap();
    let refused = generate(folder.path(), &["--rows", "10"]);
    assert!(!refused.status.success());
    assert!(
        said(&refused).contains("hits.parquet is there already") && said(&refused).contains("--force"),
        "{}",
        said(&refused)
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    let done = generate(folder.path(), &["--rows", "10", "--force"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(read(&file).1.num_rows(), 10);
    assert_eq!(names(folder.path()), ["hits.parquet"]);
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("data");
    for (arguments, what) in [
        (&["--rows", "0"][..], "--rows"),
        (&["--rows", "-5"], "-5"),
        (&["--rows", "many"], "many"),
        (&["--rows", "10", "--files", "0"], "--files"),
        (&["--rows", "10", "--format", "orc"], "orc"),
        (&[], "--rows"),
    ] {
        let refused = generate(&out, arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(said(&refused).contains(what), "{arguments:?}: {}", said(&refused));
    }
    assert!(!out.exists());
    std::fs::write(&out, "a file").unwrap();
    let refused = generate(&out, &["--rows", "10"]);
    assert!(!refused.status.success() && said(&refused).contains("--out"), "{}", said(&refused));
}

/// Runs `generate` where no more than a megabyte can be written, in each format; nothing may be left of it.
fn without_room(folder: &Path, script: &str) {
    for format in ["parquet", "csv"] {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh", env!("CARGO_BIN_EXE_commensal-sql"), format]).arg(folder);
        let failed = shell.output().unwrap();
        let text = said(&failed);
        assert!(!failed.status.success(), "{format}: {text}");
        assert!(
            text.contains(&format!("hits.{format} to its end")) && text.contains("--rows"),
            "{format}: {text}"
        );
        assert_eq!(String::from_utf8_lossy(&failed.stdout), "", "{format}: something is left: {text}");
    }
}

#[test]
fn what_does_not_fit_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let run = "\"$1\" generate --rows 100000 --format \"$2\" --out \"$3\"; s=$?; ls -A \"$3\"; exit $s";
    // A file that may not grow, which the kernel says with EFBIG.
    without_room(folder.path(), &format!("trap '' XFSZ; ulimit -f 1000; {run}"));
    assert!(names(folder.path()).is_empty());
    // A disk that is full, in a mount namespace of its own.
    let mount = "mount -t tmpfs -o size=1m none \"$3\"";
    let probe =
        Command::new("unshare").args(["-m", "sh", "-c", mount, "sh", "", ""]).arg(folder.path()).output();
    if !probe.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: what_does_not_fit_is_removed: no tmpfs can be mounted here: {probe:?}");
        return;
    }
    let script = format!("exec unshare -m sh -c '{mount} && {run}' \"$0\" \"$@\"");
    without_room(folder.path(), &script);
}

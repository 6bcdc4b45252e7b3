//! Tests of the generated table: its columns, the same rows for the same seed, shares like ClickBench's, and the rows
//! in the files.
#![allow(clippy::disallowed_methods, reason = "tests read what was written themselves")]

use super::draw::hash;
use super::row::{COUNTER, FIRST_DAY, HOME_REFERER, LOYAL_USER, Maker};
use super::{RowOrder, RowsFormat, batch, schema, write};
use crate::queries::shape;
use datafusion::arrow::array::{
    Array, AsArray, Date32Array, Int16Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::collections::BTreeSet;

/// Names and types of ClickBench's `create.sql`; the letters stand for BIGINT, INTEGER, SMALLINT, TEXT, TIMESTAMP and
/// DATE.
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

/// Converts a number of rows to a share of all rows.
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

    // ClickBench: 13 % of the rows have a search phrase, 0.6 % an advertisement, and 0.7 % belong to counter 62.
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

#[test]
fn files_hold_the_rows() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("data");
    let order = RowOrder { rows: 20_000, out, files: 3, format: RowsFormat::Parquet, seed: 5, force: false };
    let parts: Vec<RecordBatch> = write(&order, &|_| {})
        .unwrap()
        .into_iter()
        .flat_map(|path| {
            let file = std::fs::File::open(path).unwrap();
            ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap().map(Result::unwrap)
        })
        .collect();
    let whole = concat_batches(&parts[0].schema(), &parts).unwrap();
    assert_eq!(whole.columns(), rows(5, 20_000, 0, 20_000).columns());
}

/// The start page of [`COUNTER`]'s site.
const START_PAGE: &str = "http://site62.example/";

#[test]
fn the_queries_look_for_what_is_in_the_table() {
    for (number, what) in [
        (20, LOYAL_USER.to_string()),
        (37, format!("CounterID = {COUNTER}")),
        (41, hash(HOME_REFERER).to_string()),
        (42, hash(START_PAGE).to_string()),
    ] {
        assert!(shape(number).unwrap().sql.contains(&what), "{number}: {what}");
    }
}

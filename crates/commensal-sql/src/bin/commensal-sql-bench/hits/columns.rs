//! The columns of the table: name, type and value of each, in ClickBench's order.

use super::COLUMNS;
use super::draw::hash;
use super::row::{Hit, Maker};
use Value::{Day, Int, Long, Short, Text, Time};
use datafusion::arrow::array::{
    ArrayRef, Date32Array, Int16Array, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampMillisecondArray,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::arrow::error::ArrowError;
use std::ops::Range;
use std::sync::Arc;

/// A column's type, with the function that computes its value.
#[derive(Clone, Copy)]
enum Value {
    Long(fn(&Hit) -> i64),
    Int(fn(&Hit) -> i32),
    Short(fn(&Hit) -> i16),
    Text(fn(&Hit) -> &str),
    /// Seconds since 1970.
    Time(fn(&Hit) -> i64),
    /// Days since 1970.
    Day(fn(&Hit) -> i32),
}

fn days(time: i64) -> i32 {
    i32::try_from(time.div_euclid(86_400)).unwrap_or_default()
}

/// Returns a number below `n` that depends only on the visitor.
fn of(h: &Hit, shift: u32, n: u64) -> i16 {
    i16::try_from((h.visitor.bits >> shift) % n).unwrap_or_default()
}

fn digit(number: i64) -> &'static str {
    const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    DIGITS[number.unsigned_abs() as usize % 10]
}

fn charset(h: &Hit) -> &'static str {
    if h.counter % 3 == 0 { "utf-8" } else { "windows" }
}

fn color(h: &Hit) -> &'static str {
    ["5", "D", "F", "W"][h.draw(39, 4) as usize]
}

/// Returns the URL of the page if it is shown in a frame, otherwise an empty string.
fn original(h: &Hit) -> &str {
    if h.draw(40, 5) == 0 { &h.page.url } else { "" }
}

fn advertised(h: &Hit, text: &'static str) -> &'static str {
    if h.referral.adv_engine != 0 { text } else { "" }
}

#[rustfmt::skip]
const TABLE: [(&str, Value); COLUMNS] = [
    ("WatchID", Long(|h| h.watch)),
    ("JavaEnable", Short(|h| h.flag(1, 750))),
    ("Title", Text(|h| &h.page.title)),
    ("GoodEvent", Short(|_| 1)),
    ("EventTime", Time(|h| h.time)),
    ("EventDate", Day(|h| days(h.time))),
    ("CounterID", Int(|h| h.counter)),
    ("ClientIP", Int(|h| h.visitor.ip)),
    ("RegionID", Int(|h| h.visitor.region)),
    ("UserID", Long(|h| h.user)),
    ("CounterClass", Short(|h| h.flag(2, 300))),
    ("OS", Short(|h| h.visitor.browser.os)),
    ("UserAgent", Short(|h| h.visitor.browser.agent)),
    ("URL", Text(|h| &h.page.url)),
    ("Referer", Text(|h| &h.referral.referer)),
    ("IsRefresh", Short(|h| i16::from(h.kind.refresh))),
    ("RefererCategoryID", Short(|h| h.draw(3, 12_000) as i16)),
    ("RefererRegionID", Int(|h| h.draw(4, 300) as i32)),
    ("URLCategoryID", Short(|h| h.draw(5, 12_000) as i16)),
    ("URLRegionID", Int(|h| h.draw(6, 300) as i32)),
    ("ResolutionWidth", Short(|h| h.visitor.device.width)),
    ("ResolutionHeight", Short(|h| h.visitor.device.height)),
    ("ResolutionDepth", Short(|_| 24)),
    ("FlashMajor", Short(|h| of(h, 0, 12))),
    ("FlashMinor", Short(|h| of(h, 4, 8))),
    ("FlashMinor2", Text(|h| digit(h.draw(7, 10)))),
    ("NetMajor", Short(|h| h.flag(8, 60))),
    ("NetMinor", Short(|h| h.flag(9, 30))),
    ("UserAgentMajor", Short(|h| h.visitor.browser.agent_major)),
    ("UserAgentMinor", Text(|h| digit(i64::from(of(h, 8, 10))))),
    ("CookieEnable", Short(|h| h.flag(10, 990))),
    ("JavascriptEnable", Short(|h| h.flag(11, 985))),
    ("IsMobile", Short(|h| i16::from(h.visitor.device.phone != 0))),
    ("MobilePhone", Short(|h| h.visitor.device.phone)),
    ("MobilePhoneModel", Text(|h| h.visitor.device.phone_model)),
    ("Params", Text(|h| &h.page.params)),
    ("IPNetworkID", Int(|h| h.visitor.ip.rem_euclid(4_000_000))),
    ("TraficSourceID", Short(|h| h.referral.source)),
    ("SearchEngineID", Short(|h| h.referral.search_engine)),
    ("SearchPhrase", Text(|h| &h.referral.phrase)),
    ("AdvEngineID", Short(|h| h.referral.adv_engine)),
    ("IsArtifical", Short(|h| h.flag(12, 5))),
    ("WindowClientWidth", Short(|h| h.visitor.device.width - h.draw(13, 40) as i16)),
    ("WindowClientHeight", Short(|h| h.visitor.device.height - 100 - h.draw(14, 60) as i16)),
    ("ClientTimeZone", Short(|h| 60 * of(h, 12, 12))),
    ("ClientEventTime", Time(|h| h.time + h.draw(15, 7_200) - 3_600)),
    ("SilverlightVersion1", Short(|h| 5 * h.flag(16, 300))),
    ("SilverlightVersion2", Short(|h| h.flag(16, 300))),
    ("SilverlightVersion3", Int(|h| 20_513 * i32::from(h.flag(16, 300)))),
    ("SilverlightVersion4", Short(|_| 0)),
    ("PageCharset", Text(charset)),
    ("CodeVersion", Int(|h| 200 + h.draw(17, 1_500) as i32)),
    ("IsLink", Short(|h| i16::from(h.kind.link))),
    ("IsDownload", Short(|h| i16::from(h.kind.download))),
    ("IsNotBounce", Short(|h| h.flag(18, 200))),
    ("FUniqID", Long(|h| h.visitor.bits.cast_signed())),
    ("OriginalURL", Text(original)),
    ("HID", Int(|h| h.draw(19, 1 << 30) as i32)),
    ("IsOldCounter", Short(|_| 0)),
    ("IsEvent", Short(|h| h.flag(20, 40))),
    ("IsParameter", Short(|h| h.flag(21, 20))),
    ("DontCountHits", Short(|h| i16::from(h.kind.dont_count))),
    ("WithHash", Short(|h| h.flag(22, 10))),
    ("HitColor", Text(color)),
    ("LocalEventTime", Time(|h| h.time + 3_600 * h.draw(23, 4))),
    ("Age", Short(|h| h.visitor.age)),
    ("Sex", Short(|h| h.visitor.sex)),
    ("Income", Short(|h| of(h, 16, 5))),
    ("Interests", Short(|h| h.visitor.bits as i16)),
    ("Robotness", Short(|h| h.flag(24, 3))),
    ("RemoteIP", Int(|h| h.visitor.ip ^ h.draw(25, 256) as i32)),
    ("WindowName", Int(|_| -1)),
    ("OpenerName", Int(|_| -1)),
    ("HistoryLength", Short(|h| h.draw(26, 50) as i16)),
    ("BrowserLanguage", Text(|h| h.visitor.browser.language)),
    ("BrowserCountry", Text(|h| h.visitor.browser.language)),
    ("SocialNetwork", Text(|_| "")),
    ("SocialAction", Text(|_| "")),
    ("HTTPError", Short(|h| 404 * h.flag(27, 2))),
    ("SendTiming", Int(|h| h.draw(28, 3_000) as i32)),
    ("DNSTiming", Int(|h| h.draw(29, 60) as i32)),
    ("ConnectTiming", Int(|h| h.draw(30, 200) as i32)),
    ("ResponseStartTiming", Int(|h| h.draw(31, 900) as i32)),
    ("ResponseEndTiming", Int(|h| h.draw(32, 1_500) as i32)),
    ("FetchTiming", Int(|h| h.draw(33, 4_000) as i32)),
    ("SocialSourceNetworkID", Short(|h| h.draw(34, 100) as i16 / 98)),
    ("SocialSourcePage", Text(|_| "")),
    ("ParamPrice", Long(|h| h.draw(35, 200) / 199 * h.draw(36, 100_000))),
    ("ParamOrderID", Text(|_| "")),
    ("ParamCurrency", Text(|_| "")),
    ("ParamCurrencyID", Short(|_| 0)),
    ("OpenstatServiceName", Text(|h| advertised(h, "direct.example"))),
    ("OpenstatCampaignID", Text(|h| advertised(h, "612049"))),
    ("OpenstatAdID", Text(|h| advertised(h, "1097733"))),
    ("OpenstatSourceID", Text(|h| advertised(h, "search:premium"))),
    ("UTMSource", Text(|h| advertised(h, "network"))),
    ("UTMMedium", Text(|h| advertised(h, "cpc"))),
    ("UTMCampaign", Text(|h| advertised(h, "summer"))),
    ("UTMContent", Text(|_| "")),
    ("UTMTerm", Text(|_| "")),
    ("FromTag", Text(|_| "")),
    ("HasGCLID", Short(|h| h.flag(37, 2))),
    ("RefererHash", Long(|h| hash(&h.referral.referer))),
    ("URLHash", Long(|h| hash(&h.page.url))),
    ("CLID", Int(|h| h.draw(38, 1_000) as i32 / 990 * 7)),
];

/// Returns the schema; no column is nullable.
#[must_use]
pub fn schema() -> SchemaRef {
    let field = |(name, value): &(&str, Value)| {
        let kind = match value {
            Long(_) => DataType::Int64,
            Int(_) => DataType::Int32,
            Short(_) => DataType::Int16,
            Text(_) => DataType::Utf8,
            Time(_) => DataType::Timestamp(TimeUnit::Millisecond, None),
            Day(_) => DataType::Date32,
        };
        Field::new(*name, kind, false)
    };
    Arc::new(Schema::new(TABLE.iter().map(field).collect::<Vec<_>>()))
}

/// Generates the rows with these numbers.
///
/// Fails only if this program has a bug.
pub fn batch(maker: &Maker, schema: &SchemaRef, numbers: Range<u64>) -> Result<RecordBatch, ArrowError> {
    let hits: Vec<Hit> = numbers.map(|number| maker.row(number)).collect();
    let column = |(_, value): &(&str, Value)| -> ArrayRef {
        match value {
            Long(of) => Arc::new(Int64Array::from_iter_values(hits.iter().map(of))),
            Int(of) => Arc::new(Int32Array::from_iter_values(hits.iter().map(of))),
            Short(of) => Arc::new(Int16Array::from_iter_values(hits.iter().map(of))),
            Text(of) => Arc::new(StringArray::from_iter_values(hits.iter().map(of))),
            Time(of) => {
                Arc::new(TimestampMillisecondArray::from_iter_values(hits.iter().map(|hit| of(hit) * 1_000)))
            }
            Day(of) => Arc::new(Date32Array::from_iter_values(hits.iter().map(of))),
        }
    };
    RecordBatch::try_new(Arc::clone(schema), TABLE.iter().map(column).collect())
}

//! One row of the table: its visitor, its page and its referrer. Percentages in comments are shares of the rows of
//! ClickBench's table.

use super::draw::{happens, hash, latin, mix, one_of, sentence, skewed};
use commensal_core::rng::Rng;
use std::fmt::Write;

/// 2013-07-01 in days since 1970; the table covers that month.
pub const FIRST_DAY: i32 = 15_887;
const DAYS: u64 = 31;
const DAY_S: u64 = 86_400;

/// The counter (number of a web site) that some of the queries filter on; 0.74 % of the rows have this counter.
pub const COUNTER: i32 = 62;
const COUNTER_SHARE: f64 = 0.007_4;

/// A user that one of the queries filters on.
pub const LOYAL_USER: i64 = 4_350_909_328_996_404_493;

/// A frequent referrer, which one of the queries looks up by its hash.
pub const HOME_REFERER: &str = "http://portal.example/catalog/popular?from=start";

/// Number of sites other than [`COUNTER`]'s.
const SITES: usize = 3_000;

/// A generated row. Columns that are independent of others are drawn with [`Hit::draw`].
#[derive(Debug)]
pub struct Hit {
    pub watch: i64,
    pub bits: u64,
    /// Seconds since 1970.
    pub time: i64,
    pub counter: i32,
    pub user: i64,
    pub visitor: Visitor,
    pub page: Page,
    pub referral: Referral,
    pub kind: HitKind,
}

/// The page that was opened.
#[derive(Debug)]
pub struct Page {
    pub url: String,
    pub title: String,
    pub params: String,
}

/// How the visitor came to the page.
#[derive(Debug, Default)]
pub struct Referral {
    pub referer: String,
    pub phrase: String,
    pub search_engine: i16,
    pub source: i16,
    pub adv_engine: i16,
}

/// What kind of hit the row is.
#[derive(Debug)]
pub struct HitKind {
    pub refresh: bool,
    pub link: bool,
    pub download: bool,
    pub dont_count: bool,
}

/// Columns that are the same for all rows of a user.
#[derive(Debug)]
pub struct Visitor {
    pub bits: u64,
    pub ip: i32,
    pub region: i32,
    pub browser: Browser,
    pub device: VisitorDevice,
    pub age: i16,
    pub sex: i16,
}

/// A visitor's browser.
#[derive(Debug)]
pub struct Browser {
    pub os: i16,
    pub agent: i16,
    pub agent_major: i16,
    pub language: &'static str,
}

/// A visitor's screen and, if the visitor uses a phone, the phone.
#[derive(Debug)]
pub struct VisitorDevice {
    pub phone: i16,
    pub phone_model: &'static str,
    pub width: i16,
    pub height: i16,
}

impl Hit {
    /// Returns a number below `n` for a column that is independent of others; `salt` identifies the column.
    pub fn draw(&self, salt: u64, n: u64) -> i64 {
        (mix(self.bits ^ salt.wrapping_mul(0x9e37)) % n).cast_signed()
    }

    /// Returns 1 in `thousandths` of every thousand rows on average, otherwise 0.
    pub fn flag(&self, salt: u64, thousandths: i64) -> i16 {
        i16::from(self.draw(salt, 1_000) < thousandths)
    }
}

/// Generates rows.
#[derive(Debug)]
pub struct Maker {
    seed: u64,
    rows: u64,
    /// Number of users to draw from.
    users: u64,
    /// Counters in ascending order, each with the cumulative share of the rows.
    counters: Vec<(i32, f64)>,
}

impl Maker {
    /// Creates a generator for a table of `rows` rows.
    #[must_use]
    pub fn new(seed: u64, rows: u64) -> Maker {
        // Site sizes follow Zipf's law. They are shuffled, so that the size does not depend on the site's number.
        let mut sizes: Vec<f64> = (1..=SITES).map(|rank| 1.0 / rank as f64).collect();
        Rng::new(seed).shuffle(&mut sizes);
        let sum: f64 = sizes.iter().sum::<f64>() / (1.0 - COUNTER_SHARE);
        let mut shares: Vec<(i32, f64)> = (0i32..)
            .zip(&sizes)
            .map(|(site, size)| (3 + 7 * site + i32::from(3 + 7 * site == COUNTER), size / sum))
            .collect();
        shares.push((COUNTER, COUNTER_SHARE));
        shares.sort_by_key(|(counter, _)| *counter);
        let mut total = 0.0;
        for (_, share) in &mut shares {
            total += *share;
            *share = total;
        }
        // In ClickBench the number of distinct users is 17.6 % of the number of rows.
        Maker { seed, rows: rows.max(1), users: (rows * 18 / 100).max(1), counters: shares }
    }

    /// Returns the row with this number, counted from 0. As in ClickBench's file, the rows of one counter are adjacent
    /// and ordered by date.
    pub(super) fn row(&self, number: u64) -> Hit {
        let mut rng = Rng::new(mix(self.seed ^ mix(number)));
        let place = (number as f64 + 0.5) / self.rows as f64;
        let at = self.counters.partition_point(|(_, end)| *end < place).min(self.counters.len() - 1);
        let (counter, end) = self.counters[at];
        let begin = at.checked_sub(1).map_or(0.0, |before| self.counters[before].1);
        let day = ((place - begin) / (end - begin) * DAYS as f64).clamp(0.0, DAYS as f64 - 1.0) as u64;
        let time =
            i64::from(FIRST_DAY) * DAY_S.cast_signed() + (day * DAY_S + second(&mut rng)).cast_signed();
        // The order of the draws must not change, because another order gives other rows for the same seed.
        let user = self.user(&mut rng);
        let watch = (rng.u64() >> 1).cast_signed();
        let bits = rng.u64();
        let url = url(&mut rng, counter);
        let kind = HitKind {
            // 14 % in ClickBench.
            refresh: happens(&mut rng, 0.14),
            link: happens(&mut rng, 0.08),
            download: happens(&mut rng, 0.01),
            dont_count: happens(&mut rng, 0.05),
        };
        let referral = referral(&mut rng);
        let title = title(&mut rng, &url, counter);
        let mut params = String::new();
        if happens(&mut rng, 0.1) {
            let _ = write!(params, "{{\"goods\":{},\"price\":{}}}", rng.below(50_000), rng.below(9_999));
        }
        let page = Page { url, title, params };
        Hit { watch, bits, time, counter, user, visitor: visitor(user), page, referral, kind }
    }

    /// Draws a user: most users are drawn uniformly, some appear very often.
    fn user(&self, rng: &mut Rng) -> i64 {
        if happens(rng, 0.000_3) {
            return LOYAL_USER;
        }
        let number = if happens(rng, 0.05) { skewed(rng, self.users) } else { rng.below(self.users) };
        (mix(self.seed ^ number.wrapping_mul(0x5851_f42d_4c95_7f2d)) >> 1).cast_signed()
    }
}

/// Draws a second of the day; few rows are at night.
fn second(rng: &mut Rng) -> u64 {
    let noon = 15.0 * 3_600.0 + rng.normal() * 5.0 * 3_600.0;
    (noon.rem_euclid(DAY_S as f64) as u64).min(DAY_S - 1)
}

fn visitor(user: i64) -> Visitor {
    let mut rng = Rng::new(user.cast_unsigned());
    // Region 229 has 18 % of the rows.
    let region = if happens(&mut rng, 0.18) { 229 } else { skewed(&mut rng, 9_040) as i32 + 1 };
    let (width, height) = one_of(
        &mut rng,
        &[
            (28, (1_366, 768)),
            (18, (1_920, 1_080)),
            (14, (1_280, 1_024)),
            (10, (1_600, 900)),
            (8, (1_024, 768)),
            (8, (1_680, 1_050)),
            (6, (1_440, 900)),
            (4, (2_560, 1_440)),
            (4, (768, 1_024)),
        ],
    );
    let (phone, phone_model) = one_of(
        &mut rng,
        &[
            (945, (0, "")),
            (38, (1, "iPad")),
            (8, (1, "iPhone")),
            (4, (6, "A500")),
            (3, (5, "N8")),
            (2, (26, "GT")),
        ],
    );
    let bits = rng.u64();
    let ip = rng.u64() as i32;
    let os = one_of(&mut rng, &[(50, 44), (25, 2), (8, 104), (6, 17), (6, 42), (5, 7)]);
    let agent = one_of(&mut rng, &[(35, 2), (25, 3), (20, 7), (10, 4), (10, 82)]);
    let agent_major = 5 + skewed(&mut rng, 25) as i16;
    let age = one_of(&mut rng, &[(40, 0), (10, 16), (20, 22), (20, 31), (10, 50)]);
    let sex = one_of(&mut rng, &[(40, 0), (30, 1), (30, 2)]);
    let language = one_of(&mut rng, &[(80, "ru"), (12, "en"), (4, "uk"), (2, "de"), (2, "tr")]);
    let browser = Browser { os, agent, agent_major, language };
    let device = VisitorDevice { phone, phone_model, width, height };
    Visitor { bits, ip, region, browser, device, age, sex }
}

/// Returns a URL: a start page, a popular page, or a page that only one visitor sees. In ClickBench 18 % of the URLs
/// are distinct. A large table here has about the same share. A small table has a larger share, because it has as many
/// sites.
fn url(rng: &mut Rng, counter: i32) -> String {
    let mut url = String::with_capacity(96);
    let start = |url: &mut String| {
        let _ = write!(url, "http://site{counter}.example/");
    };
    match rng.below(1_000) {
        0..=119 => start(&mut url),
        // These URLs are 0.016 % in ClickBench, which would be less than one row of a small table.
        120 => {
            let _ =
                write!(url, "http://site{counter}.example/go?to=www.google.com/maps/{}", rng.below(1_000));
        }
        121..=879 => {
            start(&mut url);
            let page = skewed(rng, 500);
            latin(&mut url, page % 50);
            url.push('/');
            latin(&mut url, page);
            let _ = write!(url, "/{page}.html");
        }
        _ => {
            start(&mut url);
            latin(&mut url, rng.below(50));
            let (item, session) = (rng.below(100_000), rng.u64());
            let _ = write!(url, "/view?item={item}&sid={session:016x}&sort=price_asc&page={}", item % 9);
        }
    }
    url
}

/// Draws a referrer: 19 % of the rows have no referrer, 13 % have a search engine, and 0.6 % an advertisement.
fn referral(rng: &mut Rng) -> Referral {
    let mut from = Referral::default();
    if happens(rng, 0.13) {
        from.search_engine = one_of(rng, &[(60, 2), (30, 3), (6, 13), (4, 28)]);
        from.source = 2;
        let words = 1 + rng.below(5);
        // Half of all search phrases are drawn from the popular ones.
        let popular = happens(rng, 0.5);
        let rank = skewed(rng, 5_000);
        let mut of_phrase = if popular { Rng::new(rank) } else { Rng::new(rng.u64()) };
        let words = if popular { 1 + rank % 4 } else { words };
        sentence(&mut from.phrase, &mut of_phrase, words);
        from.referer.push_str("http://search.example/yandsearch?text=");
        from.phrase.bytes().take(40).for_each(|byte| {
            let _ = write!(from.referer, "%{byte:02X}");
        });
        return from;
    }
    if happens(rng, 0.22) {
        from.source = if happens(rng, 0.1) { -1 } else { 0 };
        return from;
    }
    from.source = one_of(rng, &[(60, 1), (25, -1), (10, 6), (5, 3)]);
    if happens(rng, 0.007_5) {
        from.adv_engine = one_of(rng, &[(60, 2), (20, 27), (12, 13), (8, 45)]);
        from.source = 3;
    }
    if happens(rng, 0.1) {
        from.referer.push_str(HOME_REFERER);
        return from;
    }
    let site = skewed(rng, 20_000);
    let secure = if site.is_multiple_of(5) { "https" } else { "http" };
    let www = if site.is_multiple_of(3) { "www." } else { "" };
    let _ = write!(from.referer, "{secure}://{www}");
    latin(&mut from.referer, site);
    from.referer.push_str(".example/");
    let page = if happens(rng, 0.4) { skewed(rng, 3_000) } else { rng.below(30_000_000) };
    latin(&mut from.referer, page % 500);
    let _ = write!(from.referer, "/{page}?ref=");
    latin(&mut from.referer, mix(page));
    let _ = write!(from.referer, "&utm={:x}", mix(page) >> 40);
    from
}

/// Draws a title; 15 % of the rows have none.
fn title(rng: &mut Rng, url: &str, counter: i32) -> String {
    let mut title = String::new();
    if happens(rng, 0.15) {
        return title;
    }
    // Its words depend only on the URL.
    let mut of_page = Rng::new(hash(url).cast_unsigned());
    let words = 3 + of_page.below(6);
    sentence(&mut title, &mut of_page, words);
    let _ = write!(title, " - site{counter}");
    if happens(rng, 0.003) {
        title.push_str(" - Google");
    }
    title
}

//! The technical terms of a page: each is linked at its first use to its meaning at the end of the page. The meanings
//! are those of `docs/glossary.md`; a test compares them.

use crate::report::charts::escape;
use std::fmt::Write as _;

/// The row in `docs/glossary.md`, the forms in which a page writes it (longest first), and the meaning.
pub(super) struct Word {
    pub row: &'static str,
    pub forms: &'static [&'static str],
    pub meaning: &'static str,
}

const fn word(row: &'static str, forms: &'static [&'static str], meaning: &'static str) -> Word {
    Word { row, forms, meaning }
}

/// The terms, in the order of the glossary.
pub(super) const WORDS: [Word; 27] = [
    word("online", &["online work", "online"], "latency-critical work that must not notice its neighbours"),
    word("offline", &["offline work", "offline"], "batch work that takes what is left"),
    word("arm", &["arms", "arm"], "one condition of an experiment: baseline, baseline2, contended, isolated"),
    word(
        "baseline",
        &["baselines", "baseline"],
        "the service alone, before any isolation: what harm is measured against",
    ),
    word("contended", &["contended"], "the arm with offline work and without isolation"),
    word("isolated", &["isolated"], "an arm with offline work under a policy: what the verdict is about"),
    word("round", &["rounds", "round"], "every arm once, in random order"),
    word("block", &["blocks", "block"], "one arm in one round: settle, warm up, measure"),
    word("noise floor", &["noise floor"], "half-width of the interval between the two identical arms"),
    word("harm", &["harm"], "relative worsening against the baseline, positive is worse"),
    word(
        "interval",
        &["95 % intervals", "95 % interval", "intervals", "interval"],
        "where the true value lies with the stated certainty: a 95 % interval misses it in one of twenty runs",
    ),
    word(
        "gate",
        &["gates", "gate"],
        "a metric that takes part in the verdict, with the harm that is still called none",
    ),
    word(
        "percentile, P50 to P99.9",
        &["P99.9", "P50", "P75", "P90", "P95", "P99", "median"],
        "the latency that this share of the requests stays within; P50 is the median",
    ),
    word("QPS", &["QPS"], "requests answered per second"),
    word(
        "pp",
        &["pp", "percentage points"],
        "percentage points: the difference of two shares, not their ratio",
    ),
    word("open loop", &["open loop"], "requests are due by a schedule that never looks at answers"),
    word(
        "closed loop",
        &["closed loop"],
        "a request comes when the one before was answered, so latencies understate stalls",
    ),
    word("lateness", &["lateness"], "how much later than due the generator itself sent"),
    word("steal", &["steal"], "time the hypervisor gave to somebody else"),
    word(
        "foreign CPU",
        &["programs that take no part"],
        "what programs of neither side and not of the load use",
    ),
    word("blame", &["blamed", "blame"], "wait of online threads by who had the CPU meanwhile"),
    word(
        "wait per CPU-second",
        &["CPU-second"],
        "time that threads waited for a CPU, per second that they had one",
    ),
    word(
        "preemption delay",
        &["preemption delay", "preemption"],
        "from the wake-up of an online thread on a CPU that offline work has, to that work gone",
    ),
    word(
        "PSI",
        &["PSI"],
        "pressure stall information: the share of time in which some task waited for a resource",
    ),
    word(
        "CPI",
        &["CPI", "cycles per instruction"],
        "cycles per instruction: it rises when caches or memory are shared",
    ),
    word("objective", &["objective"], "a latency that a percentile of every window must stay within"),
    word("settle", &["settle"], "the pause after offline work starts or stops, in which nothing is measured"),
];

/// Elements whose text is not linked.
const CLOSED: [&str; 9] = ["svg", "pre", "code", "a", "h1", "h2", "h3", "summary", "title"];

fn anchor(word: &Word) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    format!("word-{}", word.row.chars().map(plain).collect::<String>())
}

/// The body with each term linked at its first use in running text, and in column titles, which a phone does not show;
/// then the glossary of the terms used.
pub(super) fn linked(body: &str) -> String {
    let mut out = String::with_capacity(body.len() + 8_192);
    let (mut in_text, mut in_titles) = ([false; WORDS.len()], [false; WORDS.len()]);
    let (mut closed, mut titles) = (Vec::<&str>::new(), false);
    let mut rest = body;
    while let Some(at) = rest.find('<') {
        let (text, tag) = rest.split_at(at);
        let end = tag.find('>').map_or(tag.len(), |end| end + 1);
        if closed.is_empty() {
            link(text, if titles { &mut in_titles } else { &mut in_text }, &mut out);
        } else {
            out.push_str(text);
        }
        let (tag, after) = tag.split_at(end);
        out.push_str(tag);
        rest = after;
        let name = tag.trim_start_matches(['<', '/']).split(|c: char| !c.is_ascii_alphanumeric()).next();
        let name = name.unwrap_or_default();
        if name == "thead" {
            titles = !tag.starts_with("</");
        }
        if !CLOSED.contains(&name) || tag.ends_with("/>") {
            continue;
        }
        if tag.starts_with("</") {
            if closed.last() == Some(&name) {
                closed.pop();
            }
        } else {
            closed.push(name);
        }
    }
    out.push_str(rest);
    let used: Vec<&Word> = WORDS
        .iter()
        .enumerate()
        .filter(|(at, _)| in_text[*at] || in_titles[*at])
        .map(|(_, word)| word)
        .collect();
    if !used.is_empty() {
        out.push_str("<h2 id=\"glossary\">What the words mean</h2>\n<dl class=\"glossary\">\n");
        for word in used {
            let _ = writeln!(
                out,
                "<dt id=\"{}\">{}</dt><dd>{}</dd>",
                anchor(word),
                escape(word.row),
                escape(word.meaning)
            );
        }
        out.push_str("</dl>\n");
    }
    out
}

/// Copies text, and links each term that is not linked yet.
fn link(text: &str, seen: &mut [bool; WORDS.len()], out: &mut String) {
    let inside = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '&' | '/' | '.');
    let (mut at, mut copied) = (0, 0);
    while at < text.len() {
        let before = text[..at].chars().next_back();
        if before.is_none_or(|c| !inside(c)) {
            let found = WORDS.iter().enumerate().filter(|(nth, _)| !seen[*nth]).find_map(|(nth, word)| {
                let form = word.forms.iter().find(|form| starts(&text[at..], form))?;
                Some((nth, form.len()))
            });
            if let Some((nth, len)) = found {
                seen[nth] = true;
                out.push_str(&text[copied..at]);
                let _ = write!(
                    out,
                    "<a class=\"word\" href=\"#{}\">{}</a>",
                    anchor(&WORDS[nth]),
                    &text[at..at + len]
                );
                at += len;
                copied = at;
                continue;
            }
        }
        at += text[at..].chars().next().map_or(1, char::len_utf8);
    }
    out.push_str(&text[copied..]);
}

/// Whether text begins with a form as a whole word; the first letter may be capitalised.
fn starts(text: &str, form: &str) -> bool {
    let same = text.get(..form.len()).is_some_and(|head| {
        let first =
            head.chars().zip(form.chars()).next().is_some_and(|(a, b)| a == b || a.to_ascii_lowercase() == b);
        first && head.get(1..) == form.get(1..)
    });
    let after = text.get(form.len()..).and_then(|rest| rest.chars().next());
    same && after.is_none_or(|c| !(c.is_alphanumeric() || matches!(c, '_' | '-')))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests damage files, and look at the documents")]
mod tests {
    use super::*;

    #[test]
    fn the_first_use_is_linked_and_only_that() {
        let page =
            linked("<p>Harm in a round.</p><p>harm, rounds, an alarm, isolated:x, unharmed, p_harm</p>");
        let body = page.split("<h2 id=\"glossary\">").next().unwrap();
        assert_eq!(body.matches("<a ").count(), 3, "{body}");
        assert!(body.starts_with("<p><a class=\"word\" href=\"#word-harm\">Harm</a> in a <a "), "{body}");
        assert_eq!(page.matches("<dt ").count(), 3);
    }

    #[test]
    fn pictures_commands_and_marks_stay_as_they_are() {
        for text in [
            "<svg><text>harm</text></svg>",
            "<pre>harm</pre>",
            "<p title=\"harm\">x &harm; y</p>",
            "<h2>harm</h2>",
        ] {
            assert_eq!(linked(text), text);
        }
        assert!(linked("<svg><text>harm</text></svg><p>harm</p>").contains("<p><a "));
        let cut = "<p>a < b harm";
        assert!(linked(cut).starts_with("<p>a "));
    }

    #[test]
    fn the_meanings_are_those_of_the_document() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/glossary.md");
        let Ok(text) = std::fs::read_to_string(file) else {
            println!("skipped: the_meanings_are_those_of_the_document: {file} is not here");
            return;
        };
        for word in WORDS {
            let row = format!("| {} | {} |", word.row, word.meaning);
            assert!(text.contains(&row), "docs/glossary.md has no row that begins {row:?}");
        }
    }
}

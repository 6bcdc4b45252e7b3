//! The glossary of a page. The first use of each technical term links to the term's meaning at the end of the page. The
//! meanings are those of `docs/glossary.md`; a test compares the two.

use crate::report::charts::escape;
use std::fmt::Write as _;

/// A technical term: its row in `docs/glossary.md`, its forms on a page (longest first), and its meaning.
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
    word(
        "online",
        &["online work", "online"],
        "latency-critical work, which other work on the machine must not slow down",
    ),
    word(
        "offline",
        &["offline work", "offline"],
        "batch work, which gets the CPU time and other resources that online work leaves",
    ),
    word("arm", &["arms", "arm"], "one condition of an experiment: baseline, baseline2, contended, isolated"),
    word(
        "baseline",
        &["baselines", "baseline"],
        "the service alone, without offline work and isolation; harm is measured against it",
    ),
    word("contended", &["contended"], "the arm with offline work and without isolation"),
    word(
        "isolated",
        &["isolated"],
        "an arm with offline work under an isolation policy; the verdict is about these arms",
    ),
    word("round", &["rounds", "round"], "one measurement of every arm, in random order"),
    word("block", &["blocks", "block"], "the measurement of one arm in one round: settle, warm up, measure"),
    word(
        "noise floor",
        &["noise floor"],
        "half-width of the 95 % interval of the difference between the two identical arms",
    ),
    word("harm", &["harm"], "relative worsening of a metric against the baseline; positive means worse"),
    word(
        "interval",
        &["95 % intervals", "95 % interval", "intervals", "interval"],
        "confidence interval: a 95 % interval misses the true value in one of twenty runs",
    ),
    word(
        "gate",
        &["gates", "gate"],
        "a metric that takes part in the verdict, with a threshold: harm below it counts as no harm",
    ),
    word(
        "percentile, P50 to P99.9",
        &["P99.9", "P50", "P75", "P90", "P95", "P99", "median"],
        "the latency that this share of the requests does not exceed; P50 is the median",
    ),
    word("QPS", &["QPS"], "requests answered per second"),
    word("pp", &["pp", "percentage points"], "percentage points: the difference of two percentages"),
    word(
        "open loop",
        &["open loop"],
        "each request is due at a time that is fixed in advance and does not depend on responses",
    ),
    word(
        "closed loop",
        &["closed loop"],
        "each connection sends its next request after the previous response, so latencies understate stalls",
    ),
    word("lateness", &["lateness"], "how late the load generator itself sent a request that was due"),
    word("steal", &["steal"], "CPU time that the hypervisor gave to other guests"),
    word(
        "foreign CPU",
        &["programs outside the experiment"],
        "CPU use of programs that are not part of the experiment",
    ),
    word(
        "blame",
        &["blamed", "blame"],
        "wait of online threads for a CPU, attributed to the task that occupied the CPU meanwhile",
    ),
    word(
        "wait per CPU-second",
        &["CPU-second"],
        "time that threads waited for a CPU, per second of CPU time that they got",
    ),
    word(
        "preemption delay",
        &["preemption delay", "preemption"],
        "time from the wake-up of an online thread on a CPU that runs offline work until that work has left the CPU",
    ),
    word(
        "PSI",
        &["PSI"],
        "pressure stall information: the share of time in which at least one task waited for a resource",
    ),
    word(
        "CPI",
        &["CPI", "cycles per instruction"],
        "cycles per instruction; the value rises when tasks compete for caches or memory",
    ),
    word(
        "objective",
        &["objective"],
        "a service level objective: the maximum of a latency percentile in every window",
    ),
    word("settle", &["settle"], "the pause after offline work starts or stops, in which nothing is measured"),
];

/// Elements whose text is not linked.
const CLOSED: [&str; 9] = ["svg", "pre", "code", "a", "h1", "h2", "h3", "summary", "title"];

fn anchor(word: &Word) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    format!("word-{}", word.row.chars().map(plain).collect::<String>())
}

/// Returns the body of a page with links to the glossary, followed by a glossary of the terms used. Each term is linked
/// at its first use in running text, and again at its first use in a column title, because column titles are hidden on
/// a phone.
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
        out.push_str("<h2 id=\"glossary\">Glossary</h2>\n<dl class=\"glossary\">\n");
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

/// Copies text, and links each term that has not been linked yet.
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

/// Returns whether the text starts with this form of a term as a whole word; the first letter may be capitalised.
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
        let file = "../../docs/glossary.md";
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

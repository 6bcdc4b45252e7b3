//! What a cell's program and the conductor say to each other, by lines.
//!
//! ```text
//! program                                conductor
//! port 40123      (where it listens)  ─►
//! ready                               ─►
//!                                     ◄─ go 40123 40124 …   (the ports of all cells, its own included)
//! warn NAME COUNT                     ─►
//! result KEY DIGEST                   ─►
//! fail WORDS      (a unit failed)     ─►
//! steal SECONDS   (a guest's count)   ─►
//! done SECONDS                        ─►
//!                                     ◄─ end of input: it may end
//! ```
//! A program goes on to answer its peers until its input ends, because others may not be done yet. The serial line of a VM has
//! no end, so a VM is sent a last line instead.

/// A line of a program.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// The port on which it listens.
    Port(u16),
    /// It is ready to start.
    Ready,
    /// A number of warnings with this name.
    Warn(String, u64),
    /// The result of a unit of work.
    Result(String, String),
    /// Steal of all vCPUs between `go` and `done`, as the guest's kernel counts it, seconds.
    Steal(f64),
    /// A unit of work failed.
    Fail(String),
    /// All sessions have ended, this many seconds after `go`.
    Done(f64),
    /// Anything else: kept as evidence.
    Other(String),
}

/// Parses a line.
#[must_use]
pub fn line(text: &str) -> Said {
    let text = text.trim_end();
    let other = || Said::Other(text.to_owned());
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match word {
        "ready" if rest.is_empty() => Said::Ready,
        "port" => rest.parse().map_or_else(|_| other(), Said::Port),
        "done" => seconds(rest).map_or_else(other, Said::Done),
        "steal" => seconds(rest).map_or_else(other, Said::Steal),
        "fail" if !rest.is_empty() => Said::Fail(rest.to_owned()),
        "warn" => match rest.split_once(' ').map(|(name, count)| (name, count.parse())) {
            Some((name, Ok(count))) => Said::Warn(name.to_owned(), count),
            _ => other(),
        },
        "result" => match rest.split_once(' ') {
            Some((key, digest)) => Said::Result(key.to_owned(), digest.to_owned()),
            None => other(),
        },
        _ => other(),
    }
}

fn seconds(text: &str) -> Option<f64> {
    text.parse().ok().filter(|seconds: &f64| seconds.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_noise_is_kept() {
        let check = |text: &str, want: Said| assert_eq!(line(text), want);
        check("ready\n", Said::Ready);
        check("port 4711", Said::Port(4711));
        check("warn net 3", Said::Warn("net".to_owned(), 3));
        check("result q01 abc", Said::Result("q01".to_owned(), "abc".to_owned()));
        check("fail q14: out of memory", Said::Fail("q14: out of memory".to_owned()));
        check("done 12.5", Said::Done(12.5));
        // A serial line ends its lines with two characters.
        check("steal 0.07\r\n", Said::Steal(0.07));
        for noise in ["done x", "done NaN", "port 70000", "warn net", "ready to go", "fail", ""] {
            check(noise, Said::Other(noise.to_owned()));
        }
    }
}

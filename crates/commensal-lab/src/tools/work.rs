//! Counts the work that an offline program has done, from the program's output. The caller passes the output in pieces,
//! and can read the total at any time.
//!
//! | kind | what is counted | when the count is available |
//! |---|---|---|
//! | `lines` | lines on standard output | immediately |
//! | `ffmpeg` | frames, from `ffmpeg -progress pipe:1` | twice a second |
//! | `stress-ng` | bogo operations, from `--metrics-brief` or `--yaml` | only when the program exits |
//! | `cpu-seconds` | CPU time of the group, which the caller reads from the kernel | immediately |
//!
//! The work in a measured interval is the difference between two totals. So a program that reports only when it exits
//! (stress-ng) gives one number for its whole run, and none for a shorter interval; use `cpu-seconds` in that case.

use std::fmt;
use std::str::FromStr;

/// Maximum length of a line in bytes. The reader drops the rest of a longer line.
const MAX_LINE: usize = 4096;
/// Largest count that a float represents exactly.
const MAX_WORK: f64 = 9e15;

/// Kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// Bogo operations of stress-ng, summed over all stressors.
    StressNg,
    /// Frames that ffmpeg has encoded.
    Ffmpeg,
    /// Lines of output.
    Lines,
    /// CPU time. The reader parses nothing, and [`WorkReader::total`] stays `None`.
    CpuSeconds,
}

impl WorkKind {
    /// Names accepted by [`WorkKind::from_str`], with the kinds and the names of their units.
    pub const NAMES: [(&'static str, Self, &'static str); 4] = [
        ("stress-ng", Self::StressNg, "bogo-ops"),
        ("ffmpeg", Self::Ffmpeg, "frames"),
        ("lines", Self::Lines, "lines"),
        ("cpu-seconds", Self::CpuSeconds, "CPU-seconds"),
    ];

    /// Returns the name of the unit.
    #[must_use]
    pub fn unit(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind, _)| *kind == self).map_or("units", |(_, _, unit)| unit)
    }
}

impl fmt::Display for WorkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES.iter().find(|(_, kind, _)| kind == self).map_or("work", |(name, ..)| name))
    }
}

impl FromStr for WorkKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(known, ..)| *known == name).map(|(_, kind, _)| *kind);
        let names: Vec<&str> = Self::NAMES.iter().map(|(name, ..)| *name).collect();
        found.ok_or_else(|| format!("no kind of work {name:?}; the choices are {}", names.join(", ")))
    }
}

/// Parses a program's output as it arrives.
#[derive(Debug, Clone)]
pub struct WorkReader {
    kind: WorkKind,
    /// The last line, which has no line end yet.
    partial: String,
    /// Work of earlier runs of the program: ffmpeg's frame count restarts when a shell loop starts ffmpeg again.
    finished: f64,
    /// Work of the current run; `None` until the program has reported a number.
    current: Option<f64>,
    /// Work per second of real time, summed over stressors.
    per_s: Option<f64>,
}

impl WorkReader {
    /// Creates a reader that has no input yet.
    #[must_use]
    pub fn new(kind: WorkKind) -> Self {
        let current = (kind == WorkKind::Lines).then_some(0.0);
        Self { kind, partial: String::new(), finished: 0.0, current, per_s: None }
    }

    /// Adds the next piece of output, which may end in the middle of a line.
    pub fn feed(&mut self, piece: &str) {
        if self.kind == WorkKind::CpuSeconds {
            return;
        }
        for part in piece.split_inclusive('\n') {
            let (text, ended) = part.strip_suffix('\n').map_or((part, false), |text| (text, true));
            let room = MAX_LINE.saturating_sub(self.partial.len());
            self.partial.extend(text.chars().take(room));
            if ended {
                let line = std::mem::take(&mut self.partial);
                self.line(line.trim_end());
            }
        }
    }

    /// Returns the total work since the program started; `None` until the program has reported a number.
    #[must_use]
    pub fn total(&self) -> Option<f64> {
        self.current.map(|current| self.finished + current)
    }

    /// Returns the work per second of real time if the program reports it (stress-ng).
    #[must_use]
    pub fn per_s(&self) -> Option<f64> {
        self.per_s
    }

    fn line(&mut self, line: &str) {
        match self.kind {
            WorkKind::Lines => self.add(1.0),
            WorkKind::Ffmpeg => self.progress(line),
            WorkKind::StressNg => self.metrics(line),
            WorkKind::CpuSeconds => {}
        }
    }

    fn add(&mut self, work: f64) {
        self.current = Some((self.current.unwrap_or(0.0) + work).min(MAX_WORK));
    }

    fn progress(&mut self, line: &str) {
        if line == "progress=end" {
            self.finish();
        } else if let Some(frames) = line.strip_prefix("frame=").and_then(amount) {
            if self.current.is_some_and(|before| frames < before) {
                self.finish();
            }
            self.current = Some(frames);
        }
    }

    /// Marks the end of one run of the program: adds the run's frames to the total, because the next run counts from
    /// zero.
    fn finish(&mut self) {
        if let Some(current) = self.current {
            self.finished = (self.finished + current).min(MAX_WORK);
            self.current = Some(0.0);
        }
    }

    /// Parses a row of `--metrics-brief`, or a key of `--yaml`. A row has a name, the number of bogo operations, the
    /// real, user and system time, and two rates.
    fn metrics(&mut self, line: &str) {
        let (work, rate) = if let Some((key, value)) =
            line.trim_start().split_once(": ").filter(|(key, _)| key.starts_with("bogo-ops"))
        {
            match key {
                "bogo-ops" => (amount(value), None),
                "bogo-ops-per-second-real-time" => (None, amount(value)),
                _ => return,
            }
        } else {
            let Some((_, row)) = line.split_once("] ").filter(|(head, _)| head.starts_with("stress-ng: "))
            else {
                return;
            };
            let words: Vec<&str> = row.split_whitespace().collect();
            let [_, bogo, rest @ ..] = &words[..] else { return };
            let numbers: Vec<f64> = rest.iter().map_while(|word| amount(word)).collect();
            // Real, user and system seconds precede the rate.
            let (Some(bogo), true) = (amount(bogo), numbers.len() >= 5 && numbers.len() == rest.len()) else {
                return;
            };
            (Some(bogo), Some(numbers[3]))
        };
        if let Some(work) = work {
            self.add(work);
        }
        if let Some(rate) = rate {
            self.per_s = Some(self.per_s.unwrap_or(0.0) + rate);
        }
    }
}

/// Parses a number that is plausible as an amount of work.
fn amount(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|value: &f64| (0.0..=MAX_WORK).contains(value))
}

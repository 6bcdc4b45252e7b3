//! Progress bar, periodic saving of the record and final messages of a lab run or of a ladder.

use commensal_host::{Host, LinuxHost};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Interval of progress lines where standard error is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Part of the steps from which their speed tells how long the others take.
const TELLING: f64 = 0.1;
/// What is left of a run that is behind its own plan.
const BEHIND: Duration = Duration::from_secs(1);

/// The user-visible side of a run: progress bar, messages and the saved record.
pub struct Frame {
    bar: ProgressBar,
    /// File of the record; `None` if it is not saved.
    out: Option<PathBuf>,
    files: LinuxHost,
    saved: bool,
    left: bool,
    expected: Expected,
    /// Dropping it ends the thread that prints progress lines.
    _lines: Option<Sender<()>>,
}

impl Frame {
    /// Creates the frame of a run with this number of steps, such as `blocks`, and the time that the run takes if that is
    /// known.
    pub fn new(steps: u64, what: &str, expected: Option<Duration>, out: Option<&Path>) -> Frame {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let template = format!("{{bar:30}} {{pos}}/{{len}} {what}  {{msg}}  {{times}}");
        let expected = Expected(Arc::new(Mutex::new((expected, false))));
        let clock = expected.clone();
        let times = move |state: &ProgressState, text: &mut dyn Write| {
            let _ = text.write_str(&clock.times(state.elapsed(), f64::from(state.fraction())));
        };
        let style = ProgressStyle::with_template(&template).map(|style| style.with_key("times", times));
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(500));
        let lines =
            (!std::io::stderr().is_terminal()).then(|| lines(bar.clone(), what.to_owned(), expected.clone()));
        let out = out.map(Path::to_owned);
        Frame { bar, out, files: LinuxHost::new(), saved: false, left: false, expected, _lines: lines }
    }

    /// Prints lines to standard error without disturbing the progress bar.
    pub fn say<S: AsRef<str>>(&self, lines: impl IntoIterator<Item = S>) {
        self.bar.suspend(|| lines.into_iter().for_each(|line| eprintln!("{}", line.as_ref())));
    }

    /// Reports what an earlier run left behind and this run has removed.
    pub fn cleaned(&self, lines: &[String]) {
        self.say(lines.iter().map(|line| format!("cleaned up after an earlier run: {line}")));
    }

    /// Shows the beginning of a step: `done` of `steps` are complete, and `what` runs now. `left` is the time that the run
    /// still takes if its plan tells that; otherwise the speed of the steps does.
    pub fn step(&self, (done, steps): (usize, usize), what: String, left: Option<Duration>) {
        if let Some(left) = left {
            self.expected.plan(self.bar.elapsed() + left);
        }
        self.bar.set_length(steps as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(what);
    }

    /// Saves the record so far. A failure is not reported here, because the record is saved again at the end.
    pub fn save(&mut self, record: Option<String>) {
        let written = self.out.as_ref().zip(record).map(|(out, json)| self.files.state_replace(out, &json));
        self.saved |= matches!(written, Some(Ok(())));
    }

    /// Reports objects that could not be removed; `words` is a closing sentence about all of them.
    pub fn left(&mut self, lines: &[String], words: &str) {
        if lines.is_empty() {
            return;
        }
        self.left = true;
        self.say(lines.iter().map(String::as_str).chain([words]).map(|line| format!("commensal: {line}")));
    }

    /// Finishes the run. After an error, prints the text that `kept` returns for the path of the saved record, because
    /// the user can continue the run from that record. The second value is whether some object could not be removed.
    pub fn end<R, E: Into<anyhow::Error>>(
        self,
        result: Result<R, E>,
        kept: impl Fn(&str) -> String,
    ) -> anyhow::Result<(R, bool)> {
        self.bar.finish_and_clear();
        if let (true, true, Some(out)) = (result.is_err(), self.saved, &self.out) {
            eprintln!("commensal: {}", kept(&out.display().to_string()));
        }
        Ok((result.map_err(Into::into)?, self.left))
    }
}

/// Starts a thread that prints the progress from time to time, until the returned value is dropped.
fn lines(bar: ProgressBar, what: String, expected: Expected) -> Sender<()> {
    let (sender, ended) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LINE_EVERY) {
            let (done, all) = (bar.position(), bar.length().unwrap_or(0));
            let times = expected.times(bar.elapsed(), done as f64 / all.max(1) as f64);
            eprintln!("{done}/{all} {what}  {}  {times}", bar.message());
        }
    });
    sender
}

/// The time that a run takes if that is known, and whether the run keeps it up to date.
#[derive(Clone)]
struct Expected(Arc<Mutex<(Option<Duration>, bool)>>);

impl Expected {
    fn plan(&self, whole: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (Some(whole), true);
    }

    fn times(&self, elapsed: Duration, fraction: f64) -> String {
        let (expected, planned) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        times((expected, planned), elapsed, fraction)
    }
}

/// Formats the time that has passed and the time that is left: `14 s of about 164 s, 150 s left`.
fn times((expected, planned): (Option<Duration>, bool), elapsed: Duration, fraction: f64) -> String {
    let about = expected.map_or(String::new(), |expected| format!(" of about {} s", expected.as_secs()));
    let left = left((expected, planned), elapsed, fraction)
        .map_or(String::new(), |left| format!(", {} s left", left.as_secs()));
    format!("{} s{about}{left}", elapsed.as_secs())
}

/// Estimates the time that a run still takes; `None` if nothing tells it. Until some steps are done, the plan tells it, and
/// later the speed of the steps, unless the run keeps its plan up to date. A run that is behind its plan is not said to be
/// finished.
fn left((expected, planned): (Option<Duration>, bool), elapsed: Duration, fraction: f64) -> Option<Duration> {
    if let (Some(expected), true) = (expected, planned) {
        let least = if fraction < 1.0 { BEHIND } else { Duration::ZERO };
        return Some(expected.saturating_sub(elapsed).max(least));
    }
    if fraction >= TELLING {
        return Some(elapsed.mul_f64((1.0 - fraction).max(0.0) / fraction));
    }
    expected.map(|expected| expected.saturating_sub(elapsed).max(expected.mul_f64(TELLING)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_never_nothing_while_steps_are_left() {
        let check = |expected: Option<u64>, elapsed: u64, fraction: f64, said: &str| {
            let expected = expected.map(Duration::from_secs);
            assert_eq!(times((expected, false), Duration::from_secs(elapsed), fraction), said);
        };
        check(Some(164), 0, 0.0, "0 s of about 164 s, 164 s left");
        check(Some(164), 14, 0.0, "14 s of about 164 s, 150 s left");
        check(Some(164), 160, 0.0, "160 s of about 164 s, 16 s left");
        check(Some(164), 400, 0.05, "400 s of about 164 s, 16 s left");
        check(Some(164), 40, 0.25, "40 s of about 164 s, 120 s left");
        check(Some(164), 164, 1.0, "164 s of about 164 s, 0 s left");
        check(None, 14, 0.0, "14 s");
        check(None, 40, 0.5, "40 s, 40 s left");
    }

    #[test]
    fn a_run_that_changes_its_plan_tells_the_time_by_the_new_one() {
        let expected = Expected(Arc::new(Mutex::new((Some(Duration::from_secs(170)), false))));
        let check = |elapsed: u64, fraction: f64, said: &str| {
            assert_eq!(expected.times(Duration::from_secs(elapsed), fraction), said);
        };
        check(20, 0.05, "20 s of about 170 s, 150 s left");
        // The run began again with longer windows: few of its steps are done, although much time has passed.
        expected.plan(Duration::from_secs(240));
        check(60, 0.05, "60 s of about 240 s, 180 s left");
        check(210, 0.3, "210 s of about 240 s, 30 s left");
        check(250, 0.9, "250 s of about 240 s, 1 s left");
        check(250, 1.0, "250 s of about 240 s, 0 s left");
    }
}

//! Progress bar, periodic saving of the record and final messages of a lab run or of a ladder.

use commensal_host::{Host, LinuxHost};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The user-visible side of a run: progress bar, messages and the saved record.
pub struct Frame {
    bar: ProgressBar,
    /// File of the record; `None` if it is not saved.
    out: Option<PathBuf>,
    files: LinuxHost,
    saved: bool,
    left: bool,
}

impl Frame {
    /// Creates the frame of a run with this number of steps; `template` is the format of the progress bar.
    pub fn new(steps: u64, template: &str, out: Option<&Path>) -> Frame {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(500));
        Frame { bar, out: out.map(Path::to_owned), files: LinuxHost::new(), saved: false, left: false }
    }

    /// Prints lines to standard error without disturbing the progress bar.
    pub fn say<S: AsRef<str>>(&self, lines: impl IntoIterator<Item = S>) {
        self.bar.suspend(|| lines.into_iter().for_each(|line| eprintln!("{}", line.as_ref())));
    }

    /// Reports what an earlier run left behind and this run has removed.
    pub fn cleaned(&self, lines: &[String]) {
        self.say(lines.iter().map(|line| format!("cleaned up after an earlier run: {line}")));
    }

    /// Shows the beginning of a step: `done` of `steps` are complete, and `what` runs now.
    pub fn step(&self, done: usize, steps: usize, what: String) {
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

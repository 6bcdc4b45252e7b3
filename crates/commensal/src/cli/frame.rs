//! The frame of a run of the lab or of a ladder: its progress, its record saved as it goes on, and what is told of its end.

use commensal_host::{Host, LinuxHost};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A run as its user sees it.
pub struct Frame {
    bar: ProgressBar,
    /// The record, if it is saved.
    out: Option<PathBuf>,
    files: LinuxHost,
    saved: bool,
    left: bool,
}

impl Frame {
    /// A run of so many steps; the template is that of its progress bar.
    pub fn new(steps: u64, template: &str, out: Option<&Path>) -> Frame {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(500));
        Frame { bar, out: out.map(Path::to_owned), files: LinuxHost::new(), saved: false, left: false }
    }

    /// Prints lines, with and without a visible bar.
    pub fn say<S: AsRef<str>>(&self, lines: impl IntoIterator<Item = S>) {
        self.bar.suspend(|| lines.into_iter().for_each(|line| eprintln!("{}", line.as_ref())));
    }

    /// What an earlier run had left and was removed first.
    pub fn cleaned(&self, lines: &[String]) {
        self.say(lines.iter().map(|line| format!("left by an earlier run: {line}")));
    }

    /// A step begins.
    pub fn step(&self, done: usize, steps: usize, what: String) {
        self.bar.set_length(steps as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(what);
    }

    /// Saves the record so far. A failure is reported at the end, when saving is tried again.
    pub fn save(&mut self, record: Option<String>) {
        let written = self.out.as_ref().zip(record).map(|(out, json)| self.files.state_replace(out, &json));
        self.saved |= matches!(written, Some(Ok(())));
    }

    /// What could not be removed; `words` say so of the whole.
    pub fn left(&mut self, lines: &[String], words: &str) {
        if lines.is_empty() {
            return;
        }
        self.left = true;
        self.say(lines.iter().map(String::as_str).chain([words]).map(|line| format!("commensal: {line}")));
    }

    /// The end: what was recorded before an error can be gone on with, as `kept` says of the file. The answer also has
    /// whether something could not be removed.
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

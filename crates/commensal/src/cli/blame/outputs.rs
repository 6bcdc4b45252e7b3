//! Outputs of a measurement in addition to its final report: live lines, a live screen, files.

use super::{Blame, Look, on_a_terminal};
use crate::context::Context;
use anyhow::{Context as _, bail};
use commensal_blame::exposition::prometheus;
use commensal_blame::{Figures, Report};
use commensal_host::Host;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval at which the file for Prometheus is rewritten.
const EXPOSE: Duration = Duration::from_secs(5);
/// Moves the cursor to the top left corner and clears the screen from there, which avoids flicker.
const HOME: &str = "\x1b[H\x1b[J";

/// The requested outputs.
#[derive(Debug)]
pub struct Outputs {
    lines: bool,
    top: bool,
    svg: Option<PathBuf>,
    html: Option<PathBuf>,
    prometheus: Option<PathBuf>,
    exposed: Instant,
}

impl Outputs {
    /// Prepares the outputs, and checks that their files are writable before the measurement starts.
    pub fn new(context: &mut Context, options: &Blame) -> anyhow::Result<Outputs> {
        if options.top && !on_a_terminal() {
            bail!("--top needs a terminal, and standard output is not one");
        }
        let mut file = |path: &Option<PathBuf>| match path {
            Some(path) if path.as_os_str() != "-" => writable(context, path).map(Some),
            other => Ok(other.clone()),
        };
        let (svg, html, prometheus) = (file(&options.svg)?, file(&options.html)?, file(&options.prometheus)?);
        let on_stdout =
            [&svg, &html, &prometheus].into_iter().flatten().filter(|path| is_stdout(path)).count();
        if on_stdout + usize::from(options.json) > 1 {
            bail!("only one format can go to standard output; name files for the others");
        }
        let lines = on_stdout == 0 && !options.json && !options.top && on_a_terminal();
        Ok(Outputs { lines, top: options.top, svg, html, prometheus, exposed: Instant::now() })
    }

    /// Whether there is live output.
    pub fn live(&self) -> bool {
        self.lines || self.top || self.prometheus.as_ref().is_some_and(|path| !is_stdout(path))
    }

    /// Whether one of the files is standard output.
    pub fn takes_stdout(&self) -> bool {
        [&self.svg, &self.html, &self.prometheus].into_iter().flatten().any(|path| is_stdout(path))
    }

    /// Prints the measurements since the last call (`came`) and the totals (`all`).
    pub fn show(
        &mut self,
        context: &mut Context,
        came: &Figures,
        all: &Figures,
        look: &Look,
    ) -> anyhow::Result<()> {
        if self.lines {
            println!("{}", look.report(came).line());
        }
        if self.top {
            let seconds = look.started.elapsed().as_secs();
            crate::output::paint(HOME);
            print!("the last second\n\n{}\n", look.report(came).text());
            print!(
                "since the start, {seconds} s (Ctrl-C ends the measurement)\n\n{}",
                look.report(all).text()
            );
            crate::output::flush();
        }
        if let Some(path) = self.prometheus.as_ref().filter(|path| !is_stdout(path))
            && self.exposed.elapsed() >= EXPOSE
        {
            self.exposed = Instant::now();
            put(context, path, &prometheus(all, &look.labels, &|id| look.name(id)))?;
        }
        Ok(())
    }

    /// Writes the outputs that are only written at the end.
    pub fn close(
        &self,
        context: &mut Context,
        all: &Figures,
        report: &Report,
        look: &Look,
    ) -> anyhow::Result<()> {
        if let Some(path) = &self.svg {
            put(context, path, &report.svg())?;
        }
        if let Some(path) = &self.html {
            put(context, path, &report.html())?;
        }
        if let Some(path) = &self.prometheus {
            put(context, path, &prometheus(all, &look.labels, &|id| look.name(id)))?;
        }
        Ok(())
    }
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn put(context: &mut Context, path: &Path, text: &str) -> anyhow::Result<()> {
    if is_stdout(path) {
        print!("{text}");
        return Ok(());
    }
    context.host.state_replace(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

/// Returns the absolute path, after checking that the file can be written.
fn writable(context: &mut Context, path: &Path) -> anyhow::Result<PathBuf> {
    let path = std::path::absolute(path).with_context(|| format!("{} is not a path", path.display()))?;
    context.writable(&path)?;
    Ok(path)
}

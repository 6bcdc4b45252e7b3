//! The environment of the programs that a run starts: a private directory, free ports, and placeholders such as
//! `{port}`, which the run replaces in commands by their values.

use super::error::RunError;
use crate::experiment::{Experiment, Offline};
use crate::site::{Side, Testbed};
use crate::workload::antagonist::Kind;
use commensal_host::{Host, SpawnSpec};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// Directory and placeholders of one run.
#[derive(Debug)]
pub(super) struct RunDir {
    /// The run's own directory.
    pub dir: PathBuf,
    /// Port of the service.
    pub port: u16,
    words: BTreeMap<&'static str, String>,
}

impl RunDir {
    /// Removes the files of a killed run, creates the directory, writes the experiment's files and chooses free ports.
    pub fn make(
        host: &mut dyn Host,
        experiment: &Experiment,
        site: &Testbed,
        program: &Path,
        (state_dir, port): (&Path, u16),
    ) -> Result<RunDir, RunError> {
        // Only one run at a time uses the directory, because a run holds the lock of the state directory.
        let dir = state_dir.join("lab-files");
        host.state_remove_all(&dir)?;
        let (listeners, port) = ports(port)?;
        let mut words = BTreeMap::from([
            ("dir", dir.display().to_string()),
            ("port", port.to_string()),
            ("cpus", site.survey.machine.topology.threads().to_string()),
            ("program", program.display().to_string()),
            ("seconds", format!("{}", experiment.design.block_s.ceil())),
            ("concurrency", experiment.design.concurrency.unwrap_or(1).to_string()),
            ("online-group", site.path(Side::Online).as_str().to_owned()),
            ("offline-group", site.path(Side::Offline).as_str().to_owned()),
            ("client-group", site.path(Side::Client).as_str().to_owned()),
        ]);
        for (name, listener) in ["port2", "port3"].into_iter().zip(&listeners) {
            words.insert(
                name,
                listener.local_addr().map_err(|error| RunError::port(0, error))?.port().to_string(),
            );
        }
        let mut place = RunDir { dir, port, words };
        place.files(host, experiment)?;
        drop(listeners);
        Ok(place)
    }

    fn files(&mut self, host: &mut dyn Host, experiment: &Experiment) -> Result<(), RunError> {
        let mut written = experiment.files().peekable();
        let needs = experiment.has_programs() || experiment.arms.iter().any(|arm| arm.offline.is_some());
        if written.peek().is_some()
            || needs
            || matches!(experiment.offline, Offline::BuiltIn(kind) if kind != Kind::Cpu)
        {
            host.state_dir(&self.dir)?;
        }
        for (name, text) in written {
            host.state_replace(&self.dir.join(name), &self.fill(text))?;
        }
        Ok(())
    }

    /// Returns the address of the service on the loopback interface.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Sets the value of a placeholder.
    pub fn set(&mut self, name: &'static str, value: String) {
        self.words.insert(name, value);
    }

    /// Replaces placeholders, such as `{port}`, by their values; leaves unknown placeholders unchanged.
    pub fn fill(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find('{') {
            let (before, from) = rest.split_at(start);
            out.push_str(before);
            let word = from.find('}').and_then(|end| Some((end, self.words.get(&from[1..end])?)));
            match word {
                Some((end, value)) => {
                    out.push_str(value);
                    rest = &from[end + 1..];
                }
                None => {
                    out.push('{');
                    rest = &from[1..];
                }
            }
        }
        out + rest
    }

    /// Creates a command, and replaces the placeholders in its words.
    pub fn command(&self, command: &[String]) -> SpawnSpec {
        let mut words = command.iter().map(|word| self.fill(word));
        let mut spec = SpawnSpec::new(words.next().unwrap_or_default());
        spec.args.extend(words.map(Into::into));
        spec.folder = Some(self.dir.clone());
        spec
    }
}

/// Returns listeners on free ports, and the port of the service. The listeners stay open so that all ports differ. The
/// service's port is `wanted`, or any free port if `wanted` is 0.
fn ports(wanted: u16) -> Result<(Vec<TcpListener>, u16), RunError> {
    let bind =
        |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| RunError::port(port, error));
    let mut listeners = vec![bind(wanted)?, bind(0)?, bind(0)?];
    let first = listeners.remove(0);
    let port = first.local_addr().map_err(|error| RunError::port(0, error))?.port();
    Ok((listeners, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_braces() {
        let place = RunDir {
            dir: PathBuf::from("/d"),
            port: 80,
            words: BTreeMap::from([("port", "80".to_owned()), ("dir", "/d".to_owned())]),
        };
        let check = |text: &str, want: &str| assert_eq!(place.fill(text), want);
        check("http { listen {port}; root {dir}/x; }", "http { listen 80; root /d/x; }");
        check("{{port}}", "{80}");
        check("{prot} {", "{prot} {");
        check("", "");
    }
}

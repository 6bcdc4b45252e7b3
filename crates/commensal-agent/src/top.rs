//! The live view: draws a snapshot, and handles keys. Independent of the terminal and the clock, which `commensal top`
//! provides.

mod draw;
#[cfg(test)]
mod tests;

use crate::snapshot::{Group, Snapshot};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

pub use draw::draw;

/// The smallest screen that fits everything. A smaller screen leaves out columns and cuts off text, but no figure.
pub const SCREEN: (u16, u16) = (80, 24);

/// Order in which the groups are listed. The key that selects an order is the first letter of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// By CPUs used, highest first.
    Cpu,
    /// By memory, highest first.
    Memory,
    /// By run delay, longest first.
    Delay,
    /// By share of throttled periods, highest first.
    Throttled,
    /// By CPU pressure, highest first.
    Pressure,
    /// By bytes read from and written to disks, highest first.
    Io,
    /// By name.
    Name,
}

impl Sort {
    const ALL: [Sort; 7] =
        [Sort::Cpu, Sort::Memory, Sort::Delay, Sort::Throttled, Sort::Pressure, Sort::Io, Sort::Name];

    /// Name of the order. Its first letter is the key that selects it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Sort::Cpu => "cpu",
            Sort::Memory => "memory",
            Sort::Delay => "delay",
            Sort::Throttled => "throttled",
            Sort::Pressure => "pressure",
            Sort::Io => "io",
            Sort::Name => "name",
        }
    }

    fn value(self, group: &Group) -> Option<f64> {
        match self {
            Sort::Cpu => group.cpus,
            Sort::Memory => group.memory_bytes.map(|bytes| bytes as f64),
            Sort::Delay => group.run_delay_ms_per_s,
            Sort::Throttled => group.throttled_pct,
            Sort::Pressure => group.pressure.cpu_pct,
            Sort::Io => match (group.read_per_s, group.write_per_s) {
                (None, None) => None,
                (read, write) => Some(read.unwrap_or(0.0) + write.unwrap_or(0.0)),
            },
            Sort::Name => None,
        }
    }
}

/// State of the live view.
#[derive(Debug, Clone)]
pub struct Top {
    /// The last snapshot received, and its age.
    pub latest: Option<(Arc<Snapshot>, Duration)>,
    /// Why there is no newer snapshot, as readable text.
    pub gone: Option<String>,
    /// Order in which the groups are listed.
    pub sort: Sort,
    /// Whether the order is reversed.
    pub reversed: bool,
    /// Number of groups scrolled past.
    pub skip: usize,
    /// Only groups whose names contain this text are listed.
    pub filter: String,
    /// Whether keys add to the filter.
    pub filtering: bool,
    /// Whether the view keeps its snapshot although there are newer ones.
    pub held: bool,
    /// Whether help is shown.
    pub help: bool,
    /// Whether the screen has colours.
    pub colour: bool,
}

/// The effect of a key that the caller must handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Draw the screen again.
    Draw,
    /// Nothing.
    Nothing,
    /// Quit.
    Quit,
}

impl Top {
    /// Creates a view without a snapshot.
    #[must_use]
    pub fn new(colour: bool) -> Top {
        Top {
            latest: None,
            gone: None,
            sort: Sort::Cpu,
            reversed: false,
            skip: 0,
            filter: String::new(),
            filtering: false,
            held: false,
            help: false,
            colour,
        }
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Asked {
        if key.kind == KeyEventKind::Release {
            return Asked::Nothing;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Asked::Quit,
            code if self.filtering => return self.filter_key(code),
            KeyCode::Char('/') => (self.filtering, self.help) = (true, false),
            KeyCode::Char(' ') => self.held = !self.held,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('q') | KeyCode::Esc => return Asked::Quit,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Down => self.skip = (self.skip + 1).min(self.last()),
            KeyCode::Up => self.skip = self.skip.saturating_sub(1),
            KeyCode::PageDown => self.skip = (self.skip + 10).min(self.last()),
            KeyCode::PageUp => self.skip = self.skip.saturating_sub(10),
            KeyCode::Home => self.skip = 0,
            KeyCode::End => self.skip = self.last(),
            KeyCode::Char(letter) => {
                let found = Sort::ALL.into_iter().find(|sort| sort.name().starts_with(letter));
                let Some(sort) = found else { return Asked::Nothing };
                self.reversed = self.sort == sort && !self.reversed;
                self.sort = sort;
            }
            _ => return Asked::Nothing,
        }
        Asked::Draw
    }

    /// Handles a key while the filter is typed: Enter keeps the filter, Esc drops it.
    fn filter_key(&mut self, code: KeyCode) -> Asked {
        match code {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.filtering = false,
            KeyCode::Esc => (self.filtering, self.filter) = (false, String::new()),
            _ => return Asked::Nothing,
        }
        self.skip = 0;
        Asked::Draw
    }

    fn last(&self) -> usize {
        let groups = self.latest.as_ref().map_or(0, |(snapshot, _)| self.listed(snapshot).count());
        groups.saturating_sub(1)
    }

    /// The groups that the filter lets through.
    fn listed<'a>(&'a self, snapshot: &'a Snapshot) -> impl Iterator<Item = &'a Group> {
        snapshot.groups.iter().filter(|group| group.name.contains(&self.filter))
    }

    /// The groups in the selected order; groups with an unknown value always come last.
    fn sorted<'a>(&'a self, snapshot: &'a Snapshot) -> Vec<&'a Group> {
        let mut groups: Vec<&Group> = self.listed(snapshot).collect();
        groups.sort_by(|a, b| {
            let order = match (self.sort.value(a), self.sort.value(b)) {
                (Some(a), Some(b)) if self.reversed => a.total_cmp(&b),
                (Some(a), Some(b)) => b.total_cmp(&a),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => Ordering::Equal,
            };
            let by_name = a.name.cmp(&b.name);
            let named = if self.sort == Sort::Name && self.reversed { by_name.reverse() } else { by_name };
            order.then(named)
        });
        groups
    }

    /// The whole view as text, without colours: as many lines as necessary to show every group.
    #[must_use]
    pub fn once(&self, width: u16) -> String {
        let groups = self.latest.as_ref().map_or(0, |(snapshot, _)| snapshot.groups.len());
        let height = SCREEN.1.saturating_add(u16::try_from(groups).unwrap_or(u16::MAX)).min(5_000);
        let plain = Top { colour: false, ..self.clone() };
        plain.screen(width.max(20), height)
    }

    /// A screen of this size as text, without the empty lines at its end.
    fn screen(&self, width: u16, height: u16) -> String {
        let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
        let Ok(frame) = terminal.draw(|frame| draw(frame, self));
        let mut text = String::new();
        for y in 0..height {
            let line: String = (0..width).filter_map(|x| Some(frame.buffer.cell((x, y))?.symbol())).collect();
            text += line.trim_end();
            text.push('\n');
        }
        let mut text = text.trim_end().to_owned();
        text.push('\n');
        text
    }
}

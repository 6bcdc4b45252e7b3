//! Lays out a snapshot on a screen: header, groups, problems, actions, keys.

use super::{SCREEN, Sort, Top};
use crate::explain::action;
use crate::snapshot::{Drift, Group, Snapshot};
use crate::status::{bytes, canary_line, cpus, duration, percent, problems};
use commensal_core::text::{printable, visible};
use commensal_core::units::Bytes;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Paragraph, Row, Table};
use std::time::Duration;

/// Maximum number of lines for problems.
const PROBLEMS: usize = 3;
/// Maximum number of lines for drift.
const DRIFT: usize = 3;
/// Maximum number of lines for actions.
const ACTIONS: usize = 5;
/// Number of groups that get space before the parts below the groups get any.
const GROUPS: usize = 5;

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, top: &Top) {
    let area = frame.area();
    let Some((snapshot, age)) = &top.latest else {
        let words = printable(top.gone.as_deref().unwrap_or("waiting for the agent's data"));
        frame.render_widget(Paragraph::new(words.as_ref()).wrap(ratatui::widgets::Wrap { trim: true }), area);
        return;
    };
    let head = head(top, snapshot, *age);
    let below = below(top, snapshot, area);
    let parts = Layout::vertical([
        Constraint::Length(head.len() as u16),
        Constraint::Min(1),
        Constraint::Length(below.len() as u16),
        Constraint::Length(1),
    ]);
    let [above, middle, under, foot] = parts.areas(area);
    frame.render_widget(Paragraph::new(head), above);
    groups(frame, top, snapshot, middle);
    frame.render_widget(Paragraph::new(below), under);
    frame.render_widget(Paragraph::new(keys(top)), foot);
    if top.help {
        help(frame, top, area);
    }
}

fn style(top: &Top, colour: Color) -> Style {
    if top.colour { Style::new().fg(colour) } else { Style::new() }
}

fn bold(top: &Top) -> Style {
    // Bold text is used on coloured screens only. Bold is not a colour, but plain text must have no escape sequences.
    if top.colour { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() }
}

/// The lines above the groups, including the problems. They must be visible on the smallest screen.
fn head<'a>(top: &'a Top, snapshot: &'a Snapshot, age: Duration) -> Vec<Line<'a>> {
    let machine = &snapshot.machine;
    let guard = match &snapshot.lease {
        Some(lease) => lease.guard_pid.map_or("guard gone".to_owned(), |pid| format!("guard {pid}")),
        None => "no guard".to_owned(),
    };
    let mut lines = vec![
        Line::styled(
            format!(
                "commensal {}  up {}  generation {}  {guard}  tick {:.1} ms of {}",
                snapshot.version,
                duration(snapshot.uptime_s),
                snapshot.config.generation,
                snapshot.tick_ms,
                duration(snapshot.interval_ms as f64 / 1e3),
            ),
            bold(top),
        ),
        Line::raw(format!(
            "CPUs {}: online {}  offline {}  other {}  busy {}  steal {}",
            machine.cpus,
            cpus(machine.online),
            cpus(machine.offline),
            cpus(machine.other),
            cpus(machine.busy),
            cpus(machine.steal),
        )),
        Line::raw(format!(
            "memory {} free of {}   PSI: CPU {}  memory {}  disk {}",
            bytes(machine.memory_available_bytes),
            Bytes(machine.memory_bytes),
            percent(machine.pressure.cpu_pct, 1),
            percent(machine.pressure.memory_pct, 1),
            percent(machine.pressure.io_pct, 1),
        )),
    ];
    lines.extend(snapshot.canary.as_ref().map(|canary| Line::raw(canary_line(canary))));
    let gone = top.gone.iter().map(|gone| format!("no new data: {gone}"));
    let mut wrong: Vec<String> =
        gone.chain(problems(snapshot, age)).map(|text| visible(&text).into_owned()).collect();
    let hidden = wrong.len().saturating_sub(PROBLEMS);
    wrong.truncate(PROBLEMS);
    if let (true, Some(last)) = (hidden > 0, wrong.last_mut()) {
        *last = format!("(and {hidden} more: commensal status) {last}");
    }
    lines.extend(wrong.into_iter().map(|text| Line::styled(format!("! {text}"), style(top, Color::Red))));
    lines.push(Line::raw(""));
    lines
}

/// The columns: title, width, and whether values are numbers, which are aligned to the right.
const COLUMNS: [(&str, u16, bool); 11] = [
    ("GROUP", 10, false),
    ("CLASS", 7, false),
    ("CPUS", 5, true),
    ("LIMIT", 6, true),
    ("MEMORY", 9, true),
    ("DELAY", 5, true),
    ("BLAME", 5, true),
    ("THR%", 4, true),
    ("PSI%", 4, true),
    ("IO", 4, true),
    ("", 11, false),
];
/// Index of the column of names.
const NAME: usize = 0;
/// Maximum width of the names' column on a wide screen: a name has at most 64 characters.
const NAME_MOST: u16 = 64;

fn groups(frame: &mut Frame<'_>, top: &Top, snapshot: &Snapshot, area: Rect) {
    let mut columns = COLUMNS;
    columns[NAME].1 = (columns[NAME].1 + area.width.saturating_sub(SCREEN.0) / 2).min(NAME_MOST);
    let title = |(name, width, figure): (&'static str, u16, bool)| {
        let sorted = match top.sort {
            Sort::Cpu => "CPUS",
            Sort::Memory => "MEMORY",
            Sort::Delay => "DELAY",
            Sort::Throttled => "THR%",
            Sort::Pressure => "PSI%",
            Sort::Io => "IO",
            Sort::Name => "GROUP",
        };
        let cell = cell(name.to_owned(), width, figure);
        if name == sorted { cell.style(style(top, Color::Cyan)) } else { cell }
    };
    let header = Row::new(columns.map(title)).style(bold(top));
    let all = top.sorted(snapshot);
    let rows = all.iter().skip(top.skip).map(|group| {
        let cells = figures(snapshot, group).into_iter().zip(columns);
        let colour = match (group.frozen, group.class.as_str()) {
            (true, _) => Color::Blue,
            (false, "online") => Color::Green,
            _ => Color::Reset,
        };
        Row::new(cells.map(|(text, (_, width, figure))| cell(text, width, figure))).style(style(top, colour))
    });
    let widths = columns.map(|(name, width, _)| match name {
        "" => Constraint::Fill(1),
        _ => Constraint::Length(width),
    });
    let table = Table::new(rows, widths).header(header).column_spacing(1);
    frame.render_widget(table, area);
    if all.is_empty() && area.height > 1 {
        let line = Rect { y: area.y + 1, height: 1, ..area };
        frame.render_widget(Paragraph::new("no groups in the configuration"), line);
    }
}

fn cell(text: String, width: u16, figure: bool) -> Cell<'static> {
    let width = usize::from(width);
    // Mark text that was cut off.
    if text.chars().count() > width {
        return Cell::new(text.chars().take(width - 1).chain(['~']).collect::<String>());
    }
    if figure { Cell::new(format!("{text:>width$}")) } else { Cell::new(text) }
}

/// The texts of a group's cells, one per column.
fn figures(snapshot: &Snapshot, group: &Group) -> [String; COLUMNS.len()] {
    let limit = |key: &str| group.limits.iter().find(|limit| limit.key == key);
    let cpu = limit("cpu.max").or_else(|| limit("cpuset")).or_else(|| limit("cpuset.cpus"));
    let whole = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
    let disk = match (group.read_per_s, group.write_per_s) {
        (None, None) => "-".to_owned(),
        (read, write) => short_bytes(read.unwrap_or(0.0) + write.unwrap_or(0.0)),
    };
    let drifts = snapshot.drift.iter().filter(|drift| crate::explain::is_of(group, drift)).count();
    let mut notes = Vec::new();
    if group.frozen {
        notes.push("frozen".to_owned());
    }
    if group.freezing_since.is_some() {
        notes.push("FREEZING".to_owned());
    }
    if group.starved_since.is_some() {
        notes.push("starved".to_owned());
    }
    if let Some(queue) = &group.queue {
        let held = if queue.held.is_some() { "!" } else { "" };
        notes.push(format!("q{}+{}{held}", queue.running, queue.waiting));
    }
    if drifts > 0 {
        notes.push(format!("d{drifts}"));
    }
    let memory = match (group.memory_bytes, group.memory_max_bytes) {
        (Some(used), Some(max)) => format!("{}/{}", short_bytes(used as f64), short_bytes(max as f64)),
        (used, _) => used.map_or("-".to_owned(), |used| short_bytes(used as f64)),
    };
    [
        group.name.clone(),
        group.class.clone(),
        cpus(group.cpus),
        cpu.map_or("-", |limit| limit.value.strip_suffix(" CPUs").unwrap_or(&limit.value)).to_owned(),
        memory,
        whole(group.run_delay_ms_per_s),
        whole(group.blamed_ms_per_cpu_s),
        whole(group.throttled_pct),
        whole(group.pressure.cpu_pct),
        disk,
        notes.join(" "),
    ]
}

/// Formats a number of bytes in at most four characters, such as `7.2G`.
fn short_bytes(value: f64) -> String {
    let mut value = value.max(0.0);
    for unit in ["", "K", "M", "G", "T"] {
        if value < 999.5 || unit == "T" {
            let digits = usize::from(!unit.is_empty() && value < 9.95);
            return format!("{value:.digits$}{unit}");
        }
        value /= 1_024.0;
    }
    String::new()
}

/// Drift and the last actions, in the space below the groups.
fn below<'a>(top: &'a Top, snapshot: &'a Snapshot, area: Rect) -> Vec<Line<'a>> {
    let mut lines = Vec::new();
    if !snapshot.unmet.is_empty() {
        let text = format!("unmet settings: {} (commensal status)", snapshot.unmet.len());
        lines.push(Line::styled(text, style(top, Color::Yellow)));
    }
    for drift in snapshot.drift.iter().rev().take(DRIFT) {
        lines.push(Line::styled(drifting(drift), style(top, Color::Yellow)));
    }
    let first = snapshot.actions.len().saturating_sub(ACTIONS);
    for one in &snapshot.actions[first..] {
        // Show the time of day only: 2026-11-22T06:15:29.250Z.
        let time = one.at.split('T').nth(1).unwrap_or(&one.at);
        let time = time.get(..8).unwrap_or(time);
        lines.push(Line::raw(format!("{time} {}", action(one))));
    }
    // Header, problems, column titles, the line above these, and the keys.
    let wanted = 4 + PROBLEMS + 1 + GROUPS.min(snapshot.groups.len().max(1)) + 1 + 1;
    let room = usize::from(area.height).saturating_sub(wanted);
    // Keep the newest actions, which are the last lines.
    lines.drain(..lines.len().saturating_sub(room));
    if lines.is_empty() {
        return lines;
    }
    lines.insert(0, Line::raw(""));
    lines
}

fn drifting(drift: &Drift) -> String {
    let by = drift.by.as_deref().unwrap_or("somebody");
    let next = if drift.back_off_ms.is_none() { ", left alone" } else { "" };
    let text = format!(
        "drift {}/{}: {} wanted, {} found by {by}, {} times{next}",
        drift.path, drift.file, drift.want, drift.found, drift.times
    );
    visible(&text).into_owned()
}

fn keys(top: &Top) -> Line<'_> {
    let reversed = if top.reversed { ", reversed" } else { "" };
    let text = format!("by {}{reversed}   q quit  ? help  c m d t p i n order  r reverse", top.sort.name());
    Line::from(Span::styled(text, style(top, Color::DarkGray)))
}

const HELP: [&str; 18] = [
    "CPUS     CPUs used during the last tick",
    "LIMIT    quota or CPU set in force",
    "MEMORY   used / hard limit",
    "DELAY    wait for a CPU, ms per second",
    "BLAME    part of it due to offline work,",
    "         ms per second on a CPU (the probe)",
    "THR%     quota periods that were throttled",
    "PSI%     time in which some task waited for a CPU",
    "IO       bytes per second from and to disks",
    "q4+17!   4 run, 17 wait; ! queue held closed",
    "d1       knobs that other programs write",
    "",
    "c m d t p i n  order by cpu, memory, delay,",
    "               throttled, pressure, io, name;",
    "               again: reverse the order",
    "r  reverse the order    arrows  scroll",
    "?  this page             q  quit",
    "why a number is what it is: commensal explain GROUP",
];

fn help(frame: &mut Frame<'_>, top: &Top, area: Rect) {
    let width = 56.min(area.width);
    let height = (HELP.len() as u16 + 2).min(area.height);
    let at = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    let block = ratatui::widgets::Block::bordered().title(" help ").border_style(style(top, Color::Cyan));
    let lines: Vec<Line<'_>> = HELP.into_iter().map(Line::raw).collect();
    frame.render_widget(Clear, at);
    frame.render_widget(Paragraph::new(lines).block(block), at);
}

//! Lays out a snapshot on a screen: header, groups, problems, actions, keys.

use super::{Sort, Top};
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
    let head = head(top, snapshot, *age, area.width);
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
    frame.render_widget(Paragraph::new(keys(top, foot.width)), foot);
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

/// Joins as many of the parts as fit, with two spaces between them: a part is a figure with its name, and half a figure
/// would be a wrong one.
fn whole(parts: &[String], width: u16) -> String {
    let mut text = String::new();
    for part in parts {
        let more = if text.is_empty() { part.clone() } else { format!("{text}  {part}") };
        if !text.is_empty() && more.chars().count() > usize::from(width) {
            break;
        }
        text = more;
    }
    cut(text, width)
}

/// Shortens the text to the width, and marks that it was cut off.
fn cut(text: String, width: u16) -> String {
    let width = usize::from(width);
    match text.chars().count() > width {
        true => text.chars().take(width.saturating_sub(1)).chain(['~']).collect(),
        false => text,
    }
}

/// The lines above the groups, including the problems. They must be visible on the smallest screen.
fn head<'a>(top: &'a Top, snapshot: &'a Snapshot, age: Duration, width: u16) -> Vec<Line<'a>> {
    let machine = &snapshot.machine;
    let guard = match &snapshot.lease {
        Some(lease) => lease.guard_pid.map_or("guard gone".to_owned(), |pid| format!("guard {pid}")),
        None => "no guard".to_owned(),
    };
    let about = [
        format!("commensal {}", snapshot.version),
        format!("up {}", duration(snapshot.uptime_s)),
        format!("generation {}", snapshot.config.generation),
        guard,
        format!("tick {:.1} ms of {}", snapshot.tick_ms, duration(snapshot.interval_ms as f64 / 1e3)),
    ];
    let use_of_cpus = [
        format!("CPUs {}: online {}", machine.cpus, cpus(machine.online)),
        format!("offline {}", cpus(machine.offline)),
        format!("other {}", cpus(machine.other)),
        format!("busy {}", cpus(machine.busy)),
        format!("steal {}", cpus(machine.steal)),
    ];
    let memory = [
        format!("memory {} free of {}", bytes(machine.memory_available_bytes), Bytes(machine.memory_bytes)),
        format!(" PSI: CPU {}", percent(machine.pressure.cpu_pct, 1)),
        format!("memory {}", percent(machine.pressure.memory_pct, 1)),
        format!("disk {}", percent(machine.pressure.io_pct, 1)),
    ];
    let mut lines = vec![
        Line::styled(whole(&about, width), bold(top)),
        Line::raw(whole(&use_of_cpus, width)),
        Line::raw(whole(&memory, width)),
    ];
    lines.extend(snapshot.canary.as_ref().map(|canary| Line::raw(cut(canary_line(canary), width))));
    let gone = top.gone.iter().map(|gone| format!("no new data: {gone}"));
    let mut wrong: Vec<String> = gone
        .chain(problems(snapshot, age))
        .map(|text| visible(&text.replace('\n', " ")).into_owned())
        .collect();
    let hidden = wrong.len().saturating_sub(PROBLEMS);
    wrong.truncate(PROBLEMS);
    if let (true, Some(last)) = (hidden > 0, wrong.last_mut()) {
        *last = format!("(and {hidden} more: commensal status) {last}");
    }
    let wrong = wrong.into_iter().map(|text| cut(format!("! {text}"), width));
    lines.extend(wrong.map(|text| Line::styled(text, style(top, Color::Red))));
    lines.push(Line::raw(""));
    lines
}

/// A column of the groups.
struct Column {
    title: &'static str,
    /// The least width, and the greatest: a column of figures is as wide as its longest figure.
    width: [u16; 2],
    /// Whether the values are figures, which are aligned to the right.
    figure: bool,
    /// On a narrow screen, the column with the highest rank goes first.
    rank: u8,
}

const fn column(title: &'static str, width: [u16; 2], figure: bool, rank: u8) -> Column {
    Column { title, width, figure, rank }
}

/// Minimum wait from which the group that caused most of it is named (ms per second).
const SHOWN_WAIT_MS: f64 = 5.0;

const COLUMNS: [Column; 11] = [
    column("GROUP", [10, 64], false, 0),
    column("CLASS", [7, 7], false, 5),
    column("CPUS", [5, 20], true, 1),
    column("LIMIT", [6, 12], true, 2),
    column("MEMORY", [9, 20], true, 3),
    column("DELAY", [5, 20], true, 4),
    column("BLAME", [5, 20], true, 7),
    column("THR%", [4, 20], true, 8),
    column("PSI%", [4, 20], true, 9),
    column("IO", [4, 20], true, 10),
    column("", [11, 11], false, 6),
];
/// Index of the column of names.
const NAME: usize = 0;

/// The title of the column by which the groups are sorted.
pub(super) fn title_of(sort: Sort) -> &'static str {
    match sort {
        Sort::Cpu => "CPUS",
        Sort::Memory => "MEMORY",
        Sort::Delay => "DELAY",
        Sort::Throttled => "THR%",
        Sort::Pressure => "PSI%",
        Sort::Io => "IO",
        Sort::Name => "GROUP",
    }
}

/// The columns that fit on the screen with all their figures, and their widths. The names and the column by which the
/// groups are sorted stay.
fn fitting(top: &Top, rows: &[[String; COLUMNS.len()]], width: u16) -> Vec<(usize, u16)> {
    let needed = |index: usize, [least, most]: [u16; 2]| match COLUMNS[index].figure {
        true => {
            let widest = rows.iter().map(|row| row[index].chars().count()).max().unwrap_or(0);
            u16::try_from(widest).unwrap_or(u16::MAX).clamp(least, most)
        }
        false => least,
    };
    let mut chosen: Vec<(usize, u16)> =
        COLUMNS.iter().enumerate().map(|(index, column)| (index, needed(index, column.width))).collect();
    let all = |chosen: &[(usize, u16)]| chosen.iter().map(|(_, width)| width + 1).sum::<u16>() - 1;
    let rank = |(index, _): &(usize, u16)| match COLUMNS[*index].title == title_of(top.sort) {
        true => 0,
        false => COLUMNS[*index].rank,
    };
    while all(&chosen) > width
        && let Some(at) = (0..chosen.len()).max_by_key(|at| rank(&chosen[*at]))
        && rank(&chosen[at]) > 0
    {
        chosen.remove(at);
    }
    let (left, missing) = (width.saturating_sub(all(&chosen)), all(&chosen).saturating_sub(width));
    if missing >= chosen[NAME].1 {
        return vec![(NAME, width)];
    }
    chosen[NAME].1 = (chosen[NAME].1 + left / 2 - missing).min(COLUMNS[NAME].width[1]);
    chosen
}

fn groups(frame: &mut Frame<'_>, top: &Top, snapshot: &Snapshot, area: Rect) {
    let all = top.sorted(snapshot);
    let shown: Vec<&Group> = all.iter().skip(top.skip).take(usize::from(area.height)).copied().collect();
    let texts: Vec<_> = shown.iter().map(|group| figures(snapshot, group)).collect();
    let columns = fitting(top, &texts, area.width);
    let title = |(index, width): &(usize, u16)| {
        let column = &COLUMNS[*index];
        let cell = cell(column.title, *width, column.figure);
        if column.title == title_of(top.sort) { cell.style(style(top, Color::Cyan)) } else { cell }
    };
    let header = Row::new(columns.iter().map(title)).style(bold(top));
    let rows = shown.iter().zip(&texts).map(|(group, texts)| {
        let colour = match (group.frozen, group.class.as_str()) {
            (true, _) => Color::Blue,
            (false, "online") => Color::Green,
            _ => Color::Reset,
        };
        let cells = columns.iter().map(|(index, width)| cell(&texts[*index], *width, COLUMNS[*index].figure));
        Row::new(cells).style(style(top, colour))
    });
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let table = Table::new(rows, widths).header(header).column_spacing(1);
    frame.render_widget(table, area);
    if all.is_empty() && area.height > 1 {
        let line = Rect { y: area.y + 1, height: 1, ..area };
        let words = match snapshot.groups.is_empty() {
            true => "no groups in the configuration".to_owned(),
            false => format!("no group has {:?} in its name", top.filter),
        };
        frame.render_widget(Paragraph::new(cut(words, area.width)), line);
    }
}

fn cell(text: &str, width: u16, figure: bool) -> Cell<'static> {
    let text = cut(text.to_owned(), width);
    let width = usize::from(width);
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
    if let Some(part) = group.waits.first().filter(|part| part.ms_per_s >= SHOWN_WAIT_MS) {
        notes.push(format!("<{}", part.group.as_ref().unwrap_or(&part.kind)));
    }
    if let Some(queue) = &group.queue {
        let held = if queue.held.is_some() { "!" } else { "" };
        notes.push(format!("q{}+{}{held}", queue.running, queue.waiting));
    }
    if drifts > 0 {
        notes.push(format!("d{drifts}"));
    }
    let waits = group.waits.iter().any(|part| part.kind == "offline" && part.ms_per_s >= SHOWN_WAIT_MS);
    let blame = match group.blamed_ms_per_cpu_s {
        // It waits for offline work and has no CPU time at all.
        None if waits => "inf".to_owned(),
        blamed => whole(blamed),
    };
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
        blame,
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
        lines.push(Line::styled(cut(text, area.width), style(top, Color::Yellow)));
    }
    for drift in snapshot.drift.iter().rev().take(DRIFT) {
        lines.push(Line::styled(cut(drifting(drift), area.width), style(top, Color::Yellow)));
    }
    let first = snapshot.actions.len().saturating_sub(ACTIONS);
    for one in &snapshot.actions[first..] {
        // Show the time of day only: 2026-11-22T06:15:29.250Z.
        let time = one.at.split('T').nth(1).unwrap_or(&one.at);
        let time = time.get(..8).unwrap_or(time);
        lines.push(Line::raw(cut(format!("{time} {}", action(one)), area.width)));
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
    let next = match (drift.back, drift.back_off_ms) {
        (true, _) => "",
        (false, None) => ", left alone",
        (false, Some(_)) => ", NOT in force",
    };
    let times = if drift.times == 1 { "once".to_owned() } else { format!("{} times", drift.times) };
    let text = format!(
        "drift {}/{}: {} wanted, {} found by {by}, {times}{next}",
        drift.path, drift.file, drift.want, drift.found
    );
    visible(&text).into_owned()
}

fn keys(top: &Top, width: u16) -> Line<'_> {
    let reversed = if top.reversed { ", reversed" } else { "" };
    let mut parts = vec![format!("by {}{reversed}", top.sort.name())];
    match top.filtering {
        true => parts.push(format!("/{}_", top.filter)),
        false if !top.filter.is_empty() => parts.push(format!("/{}", top.filter)),
        false => {}
    }
    if top.held {
        parts.push("HELD".to_owned());
    }
    let keys = [" q quit", "? help", "c m d t p i n order", "r reverse", "/ filter", "space hold"];
    parts.extend(keys.map(str::to_owned));
    Line::from(Span::styled(whole(&parts, width), style(top, Color::DarkGray)))
}

const HELP: [&str; 21] = [
    "CPUS     CPUs used during the last tick",
    "LIMIT    quota or CPU set in force",
    "MEMORY   used / hard limit",
    "DELAY    wait for a CPU, ms per second",
    "BLAME    part of it due to offline work,",
    "         ms per second on a CPU (the probe)",
    "<etl     the group or kind that it waited for most",
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
    "/  list only groups with this text in their names",
    "   (Enter keeps it, Esc drops it)   space  hold",
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

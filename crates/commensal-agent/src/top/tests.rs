//! Tests of screens, keys and sizes.

use super::*;
use crate::{fixture, golden};

fn top() -> Top {
    let mut top = Top::new(false);
    top.latest = Some((Arc::new(fixture::snapshot()), Duration::from_millis(250)));
    top
}

fn press(top: &mut Top, code: KeyCode) -> Asked {
    top.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn names(top: &Top) -> Vec<&str> {
    let (snapshot, _) = top.latest.as_ref().unwrap();
    top.sorted(snapshot).into_iter().map(|group| group.name.as_str()).collect()
}

#[test]
fn golden_top() {
    let mut help = top();
    press(&mut help, KeyCode::Char('?'));
    let mut gone = top();
    gone.gone = Some("no agent answers at /var/lib/commensal/control.sock".to_owned());
    gone.latest = gone.latest.map(|(snapshot, _)| (snapshot, Duration::from_secs(75)));
    let screens = [
        ("80x24", top().screen(80, 24)),
        ("120x40", top().screen(120, 40)),
        ("200x24", top().screen(200, 24)),
        ("60x24", top().screen(60, 24)),
        ("40x16", top().screen(40, 16)),
        ("help", help.screen(80, 24)),
        ("gone", gone.screen(80, 24)),
        ("before the first", Top::new(false).screen(80, 24)),
    ];
    let text: String = screens.iter().map(|(name, screen)| format!("=== {name}\n{screen}")).collect();
    golden::check("top.txt", &text);
}

/// On an 80 x 24 screen, nothing important is cut off.
#[test]
fn all_is_there_at_80_by_24() {
    let screen = top().screen(80, 24);
    assert!(screen.lines().count() <= 24);
    for part in [
        "web",
        "etl",
        "report",
        "7.2G/8.0G",
        "1830",
        "41",
        "q4+17!",
        "frozen",
        "drift",
        "30000 -> 40000",
        "q quit",
        "!",
    ] {
        assert!(screen.contains(part), "{part}\n{screen}");
    }
}

/// A screen of any width shows each figure whole or not at all: every word of a line is one of the widest screen, or is
/// marked as cut off. Also with figures that are longer than usual, in every order.
#[test]
fn no_figure_is_cut() {
    let mut long = fixture::snapshot();
    for group in &mut long.groups {
        group.run_delay_ms_per_s = group.run_delay_ms_per_s.map(|ms| ms * 1e6);
        group.throttled_pct = group.throttled_pct.map(|pct| pct * 1e3);
        group.cpus = group.cpus.map(|cpus| cpus * 1e5);
    }
    let mut long_figures = top();
    long_figures.latest = Some((Arc::new(long), Duration::ZERO));
    for mut view in [top(), long_figures] {
        for sort in Sort::ALL {
            view.sort = sort;
            let wide = view.screen(1_000, 40);
            let words: std::collections::BTreeSet<&str> = wide.split_whitespace().collect();
            let titles = |screen: &str| -> usize {
                let line = screen.lines().find(|line| line.starts_with("GROUP"));
                line.map_or(0, |line| line.split_whitespace().count())
            };
            let mut columns = 0;
            for width in 12..200 {
                let screen = view.screen(width, 40);
                for word in screen.split_whitespace() {
                    assert!(words.contains(word) || word.ends_with('~'), "{width}: {word:?}\n{screen}");
                }
                let now = titles(&screen);
                assert!(now >= columns, "{width}: a wider screen lost a column\n{screen}");
                columns = now;
                if width >= 40 {
                    let title = draw::title_of(sort);
                    assert!(screen.contains(title) && screen.contains("CPUS"), "{width}: {title}\n{screen}");
                }
            }
            assert_eq!(columns, titles(&wide), "{}", sort.name());
        }
    }
}

/// The filter lists only the groups whose names contain its text, while typing and after it.
#[test]
fn groups_are_filtered() {
    let mut top = top();
    press(&mut top, KeyCode::Char('/'));
    for letter in "ep".chars() {
        assert_eq!(press(&mut top, KeyCode::Char(letter)), Asked::Draw);
    }
    assert_eq!(names(&top), ["report"]);
    assert!(top.screen(80, 24).contains("/ep_"));
    // Keys that order or quit are text here.
    press(&mut top, KeyCode::Char('q'));
    assert!(names(&top).is_empty() && top.screen(80, 24).contains("no group has \"epq\" in its name"));
    press(&mut top, KeyCode::Backspace);
    press(&mut top, KeyCode::Enter);
    press(&mut top, KeyCode::Char('n'));
    assert_eq!((names(&top), top.sort), (vec!["report"], Sort::Name));
    press(&mut top, KeyCode::End);
    assert_eq!(top.skip, 0, "one group, so there is nothing to scroll");
    press(&mut top, KeyCode::Char('/'));
    press(&mut top, KeyCode::Esc);
    assert_eq!(names(&top).len(), 3);
    assert_eq!((press(&mut top, KeyCode::Char(' ')), top.held), (Asked::Draw, true));
    assert!(top.screen(80, 24).contains("HELD"));
}

/// Screens of any size, from none to huge, with any number of groups.
#[test]
fn every_size_can_be_drawn() {
    let mut many = fixture::snapshot();
    many.groups = (0..300)
        .map(|n| Group { name: format!("group-with-a-long-name-{n}-é"), ..many.groups[n % 3].clone() })
        .collect();
    let mut many_groups = top();
    many_groups.latest = Some((Arc::new(many), Duration::ZERO));
    let mut empty = top();
    empty.latest = Some((Arc::new(Snapshot::default()), Duration::from_secs(100)));
    for mut one in [top(), many_groups, empty, Top::new(false)] {
        for help in [false, true] {
            one.help = help;
            for (width, height) in
                [(1, 1), (2, 2), (5, 3), (20, 5), (79, 23), (80, 1), (1, 24), (80, 24), (400, 200)]
            {
                let _ = one.screen(width, height);
            }
        }
    }
}

#[test]
fn once_shows_every_group() {
    let mut many = fixture::snapshot();
    many.groups = (0..300).map(|n| Group { name: format!("g{n}"), ..many.groups[n % 3].clone() }).collect();
    let mut top = top();
    top.latest = Some((Arc::new(many), Duration::ZERO));
    let text = top.once(80);
    for n in 0..300 {
        assert!(text.lines().any(|line| line.split(' ').next() == Some(&format!("g{n}"))), "g{n}\n{text}");
    }
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn keys_order_scroll_and_quit() {
    let mut top = top();
    assert_eq!(names(&top), ["etl", "web", "report"]);
    assert_eq!(press(&mut top, KeyCode::Char('r')), Asked::Draw);
    assert_eq!(names(&top), ["report", "web", "etl"]);
    press(&mut top, KeyCode::Char('n'));
    assert_eq!(names(&top), ["etl", "report", "web"]);
    press(&mut top, KeyCode::Char('n'));
    assert_eq!(names(&top), ["web", "report", "etl"]);
    // Unknown values are last in both directions.
    press(&mut top, KeyCode::Char('d'));
    assert_eq!(names(&top), ["etl", "web", "report"]);
    press(&mut top, KeyCode::Char('d'));
    assert_eq!(names(&top), ["web", "etl", "report"]);
    for (key, first) in [('m', "etl"), ('t', "etl"), ('p', "report"), ('i', "etl"), ('c', "etl")] {
        press(&mut top, KeyCode::Char(key));
        assert_eq!(names(&top)[0], first, "{key}");
    }
    for _ in 0..10 {
        press(&mut top, KeyCode::Down);
    }
    assert_eq!(top.skip, 2);
    press(&mut top, KeyCode::PageUp);
    assert_eq!(top.skip, 0);
    assert_eq!(press(&mut top, KeyCode::Char('x')), Asked::Nothing);
    press(&mut top, KeyCode::Char('?'));
    assert_eq!((press(&mut top, KeyCode::Esc), top.help), (Asked::Draw, false));
    assert_eq!(press(&mut top, KeyCode::Esc), Asked::Quit);
    assert_eq!(press(&mut top, KeyCode::Char('q')), Asked::Quit);
    assert_eq!(top.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Asked::Quit);
}

#[test]
fn colours_only_where_they_are_wanted() {
    let coloured = |colour| {
        let mut top = top();
        top.colour = colour;
        let Ok(mut terminal) = Terminal::new(TestBackend::new(80, 24));
        let Ok(frame) = terminal.draw(|frame| draw(frame, &top));
        frame.buffer.content().iter().any(|cell| cell.fg != ratatui::style::Color::Reset)
    };
    assert!(coloured(true));
    assert!(!coloured(false));
}

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
            for (width, height) in [(1, 1), (5, 3), (20, 5), (79, 23), (80, 1), (1, 24), (80, 24), (400, 200)]
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

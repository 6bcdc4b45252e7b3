//! Latency by the time since the run last switched between arms (ways of running the service). It shows whether one
//! window affects the next.

use crate::format::latency;
use crate::record::{Role, Run, SinceSwitch};

/// Returns a table of P50 and P90, with one row for the service alone and one for each arm with offline work. Returns
/// `None` if the run does not alternate short windows.
pub fn table(run: &Run) -> Option<Vec<Vec<String>>> {
    let shown = |role: Role| matches!(role, Role::Baseline | Role::Contended | Role::Isolated);
    let arms: Vec<&str> =
        run.arms.iter().filter(|arm| shown(arm.role)).map(|arm| arm.name.as_str()).collect();
    let mut edges: Vec<[u32; 2]> = run.since_switch.iter().map(|one| one.ms).collect();
    edges.sort_unstable();
    edges.dedup();
    if edges.is_empty() {
        return None;
    }
    let title = |[from, to]: &[u32; 2]| match to {
        &u32::MAX => format!("from {from}"),
        to => format!("{from}–{to}"),
    };
    let mut rows = vec![
        ["P50 / P90 by ms since the switch".to_owned()].into_iter().chain(edges.iter().map(title)).collect(),
    ];
    for arm in arms {
        let cell = |ms: &[u32; 2]| {
            let found = run.since_switch.iter().find(|one| one.arm == arm && one.ms == *ms);
            found.map_or("–".to_owned(), both)
        };
        rows.push([arm.to_owned()].into_iter().chain(edges.iter().map(cell)).collect::<Vec<String>>());
    }
    Some(rows)
}

fn both(one: &SinceSwitch) -> String {
    format!("{} / {}", latency(one.p50_us), latency(one.p90_us))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn a_row_for_each_arm_that_matters() {
        let mut run = fixture::small_run();
        assert_eq!(table(&run), None);
        let seen = |arm: &str, ms, p50_us| SinceSwitch {
            arm: arm.to_owned(),
            ms,
            requests: 9,
            p50_us,
            p90_us: 2.0 * p50_us,
        };
        run.since_switch = vec![
            seen("baseline", [0, 10], 200.0),
            seen("baseline2", [0, 10], 200.0),
            seen("contended", [0, 10], 2_000.0),
            seen("contended", [5_000, u32::MAX], 900.0),
        ];
        let table = table(&run).unwrap();
        assert_eq!(table[0][1..], ["0–10", "from 5000"]);
        assert_eq!(table[1], ["baseline", "200 µs / 400 µs", "–"]);
        assert_eq!(table[2], ["contended", "2.00 ms / 4.00 ms", "900 µs / 1.80 ms"]);
        assert_eq!(table[3], ["isolated", "–", "–"]);
        assert_eq!(table.len(), 4);
    }
}

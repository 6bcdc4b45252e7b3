//! A sensitivity profile: a matrix of the effect that each antagonist has on one service. An antagonist is an offline
//! program that stresses one resource.

use crate::format::{change_pct, quantum, signed_pct};
use crate::record::{Arm, Metric, Role, Run};
use crate::verdict::against_baseline;
use commensal_core::text::{Align, columns};

/// The metrics that are columns of the matrix.
const COLUMNS: [Metric; 4] = [Metric::Qps, Metric::P50, Metric::P90, Metric::P99];

/// Formats the matrix: one row per antagonist, with the change of each metric from the baseline. `n.s.` means not
/// significant: the two-sided 95 % interval includes zero.
#[must_use]
pub fn profile(run: &Run) -> String {
    let mut titles = vec![String::new()];
    titles.extend(COLUMNS.map(|metric| metric.label().to_owned()));
    titles.extend(["blamed".to_owned(), "offline CPUs".to_owned(), "offline work".to_owned()]);
    let mut table = vec![titles];
    let shown = |arm: &&Arm| matches!(arm.role, Role::Contended | Role::Isolated);
    table.extend(run.arms.iter().filter(shown).map(|arm| row(run, arm)));
    let mut out = columns(&table, Align::Figures);
    out.push_str(
        "Changes from the service alone; n.s. means not significant (95 %). The column blamed \
         has the wait caused by offline work, in ms per CPU-second.\n",
    );
    out
}

fn row(run: &Run, arm: &Arm) -> Vec<String> {
    let mut cells = vec![arm.name.clone()];
    cells.extend(COLUMNS.map(|metric| cell(run, arm, metric)));
    let nothing = || "–".to_owned();
    let blame = run.blame.iter().find(|blame| blame.arm == arm.name);
    cells.push(blame.map_or_else(nothing, |blame| format!("{:.1} ms", blame.offline_ms_per_cpu_s)));
    let blocks = || run.blocks_of(&arm.name).filter(|block| block.valid);
    let used: Vec<f64> = blocks().filter_map(|block| block.cpu.offline).collect();
    cells.push(crate::stats::median(&used).map_or_else(nothing, |cpus| format!("{cpus:.2}")));
    let work: Vec<f64> = blocks().filter_map(|block| block.work.offline).collect();
    let unit = blocks().find_map(|block| block.work.unit.clone()).unwrap_or_default();
    let unit = unit.split_whitespace().next().unwrap_or_default().to_owned();
    cells.push(crate::stats::median(&work).map_or_else(nothing, |work| format!("{work:.0} {unit}/s")));
    cells
}

fn cell(run: &Run, arm: &Arm, metric: Metric) -> String {
    let Some(result) = against_baseline(run, &arm.name, metric) else { return "–".to_owned() };
    match result.ci95 {
        None => "too few rounds".to_owned(),
        Some([lo, hi]) if lo <= 0.0 && hi >= 0.0 => "n.s.".to_owned(),
        Some(_) => {
            let step = quantum(run.noise_floor_pct.get(&metric).copied());
            signed_pct(change_pct(metric, result.harm_pct), step)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn a_row_per_antagonist() {
        let mut run = fixture::small_run();
        let other = Arm { name: "memory".into(), offline: Some("memory".into()), ..run.arms[2].clone() };
        run.arms[2].offline = Some("cpu".into());
        run.arms.push(other);
        let memory: Vec<_> = run.blocks_of("baseline2").cloned().collect();
        run.blocks
            .extend(memory.into_iter().map(|block| crate::record::Block { arm: "memory".into(), ..block }));
        crate::analysis::conclude(&mut run);
        let text = profile(&run);
        let row = |name: &str| {
            text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}")).to_owned()
        };
        assert!(row("contended").contains("+50") && row("memory").contains("n.s."), "{text}");
        assert_eq!(text.lines().count(), 5, "{text}");
    }
}

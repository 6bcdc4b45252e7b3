//! The keys for short windows in an experiment file, and the reasons against short windows. An arm is one condition
//! that an experiment compares. In a run with short windows, arms alternate within milliseconds; otherwise, a run has
//! long blocks of seconds each.

use super::values::seconds;
use super::{Load, Restart, Short};
use crate::isolation::Isolation;
use crate::record::{Design, Windows};
use commensal_core::toml_reader::{Reader, Section};

/// The keys that only apply to short windows.
const KEYS: [&str; 6] = ["for", "window", "guard", "per-round", "contended", "contended-every"];

/// Checks a value of the key `carry-over`; returns an error if it is neither `short` nor `long`.
pub(super) fn carry_over(text: &str) -> Result<(), String> {
    match text {
        "short" | "long" => Ok(()),
        _ => Err("the choices are \"short\", if the effects of an arm on the machine end within milliseconds, and \"long\", if they last longer (page cache, memory, controllers)".to_owned()),
    }
}

/// Returns the plan with short windows, or why this experiment needs long blocks.
pub(super) fn plan(
    keys: &Section,
    (load, restart, isolations, design): (&Load, Option<Restart>, &[Isolation], &Design),
    reader: &mut Reader,
) -> Result<Short, String> {
    let carry_over = keys.text("design.carry-over");
    let given: Vec<&str> = KEYS.into_iter().filter(|key| keys.given(&format!("design.{key}"))).collect();
    let of_blocks = keys.given("design.rounds") || keys.given("design.block");
    let obstacle = match (load, restart) {
        (Load::Tool { tool, .. }, _) => Some(format!(
            "{tool} prints its results only when it exits, and does not print when each request was due"
        )),
        (_, Some(Restart::Block | Restart::Round)) => {
            Some("the file requests restarts of the service during the run (restart)".to_owned())
        }
        _ if !design.queries.is_empty() => Some(
            "the file has a Prometheus metric, and short windows are shorter than a scrape interval"
                .to_owned(),
        ),
        // With `carry-over = "short"`, arms with slow mechanisms do not force long blocks; the experiment omits those
        // arms later.
        _ if carry_over == Some("short") => None,
        _ => isolations.iter().find_map(Isolation::carries_over),
    };
    let long = match (carry_over, obstacle) {
        (None, None) if of_blocks && given.is_empty() => {
            Some("the file has rounds or block, but not carry-over = \"short\"".to_owned())
        }
        (None, obstacle) => obstacle,
        (Some("short"), None) => None,
        (Some("short"), Some(obstacle)) => {
            reader.note(
                keys.at("design.carry-over"),
                format!("design.carry-over = \"short\" requests short windows, but {obstacle}"),
            );
            return Err(obstacle);
        }
        (Some(_), _) => Some("the file has carry-over = \"long\"".to_owned()),
    };
    if let Some(long) = long {
        for key in given {
            reader.note(
                keys.at(&format!("design.{key}")),
                format!("design.{key} applies to short windows, but this experiment has long blocks: {long}"),
            );
        }
        return Err(long);
    }
    let default = Short::default();
    let time = |key: &str, default: f64| keys.with(key, seconds).unwrap_or(default);
    let within_s = time("design.for", default.within_s);
    let window_s = time("design.window", default.windows.window_s);
    let guard_s = time("design.guard", default.windows.guard_s);
    let contended_s = time("design.contended", default.windows.contended_s);
    let per_round = keys.whole("design.per-round").unwrap_or(default.windows.per_round);
    let contended_every = keys.whole("design.contended-every").unwrap_or(default.windows.contended_every);
    let windows = Windows { window_s, guard_s, per_round, contended_s, contended_every, ..default.windows };
    Ok(Short { windows, within_s, long_rounds: design.rounds })
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    /// The choice between short windows and long blocks, and the reason for long blocks.
    #[test]
    fn carry_over() {
        let arms =
            |isolated: &str| format!("arms = [\"baseline\", \"baseline2\", \"contended\", \"{isolated}\"]\n");
        let long = "[design]\ncarry-over = \"long\"\n";
        let tool = "[load]\ntool = \"wrk\"\ncommand = [\"wrk\"]\n";
        for (text, why) in [
            (arms("isolated"), None),
            (arms("isolated:cpu.idle"), None),
            (arms("isolated:quota=50%"), None),
            (arms("isolated:cpuset"), None),
            (arms("isolated:nice"), Some("when it starts the tasks")),
            (arms("isolated:sched-idle"), Some("when it starts the tasks")),
            (arms("isolated:frame"), Some("its controller")),
            (arms("isolated:best+io=10MiB/s"), Some("the page cache")),
            (arms("isolated:scheduler=scx_rusty"), Some("loading a scheduler")),
            (format!("{}{long}", arms("isolated")), Some("carry-over")),
            (format!("{}[design]\nrounds = 12", arms("isolated")), Some("rounds or block")),
            (format!("{}[design]\nblock = \"20 s\"", arms("isolated")), Some("rounds or block")),
            (format!("{}[design]\nrounds = 12\nfor = \"170 s\"", arms("isolated")), None),
            (format!("{}[design]\nrounds = 12\ncarry-over = \"short\"", arms("isolated")), None),
            (format!("{}{tool}", arms("isolated")), Some("when each request was due")),
            (format!("restart = \"block\"\n{}", arms("isolated")), Some("restarts of the service")),
            (format!("restart = \"never\"\n{}", arms("isolated")), None),
        ] {
            let short = parse("x", &text).unwrap_or_else(|error| panic!("{text}: {error}")).short;
            match (short, why) {
                (Ok(short), None) => assert_eq!(short, Short { long_rounds: 12, ..Short::default() }),
                (Err(said), Some(why)) => assert!(said.contains(why), "{text}: {said}"),
                (short, why) => panic!("{text}: {short:?}, wanted {why:?}"),
            }
        }
        let quota = parse("x", &arms("isolated:quota=50%")).unwrap();
        assert_eq!(quota.short.unwrap().windows_for(&quota.design, &quota.isolations).window_s, 0.5);
    }

    /// Arrivals are random. Still, the windows of an arm in a round must together contain the required number of
    /// requests, and so must the single window of a contended arm.
    // promise 38
    #[test]
    fn windows_hold_what_they_need() {
        let mut rng = crate::rng::Rng::new(9);
        // Counts the requests in a time span; the gaps are exponentially distributed.
        let mut arrivals = |rate: f64, seconds: f64| {
            let (mut at, mut count) = (0.0, 0_u64);
            while at < seconds {
                at += rng.exponential(1.0 / rate);
                count += u64::from(at < seconds);
            }
            count
        };
        for (rate, needed, per_round) in
            [(93.0, 200, 5), (300.0, 200, 10), (900.0, 1_000, 4), (2_100.0, 2_000, 10), (6_500.0, 10_000, 10)]
        {
            let windows = Windows { per_round, ..Short::default().windows };
            let windows = windows.for_load(Some(rate), needed);
            let each = windows.window_s * f64::from(per_round);
            let mut few = |seconds: f64| (0..300).filter(|_| arrivals(rate, seconds) < needed).count();
            let missing = few(each);
            assert!(missing <= 2, "{rate}/s: {missing} of 300 rounds hold fewer than {needed} in {each} s");
            let missing = few(windows.contended_s);
            assert!(missing <= 2, "{rate}/s: {missing} of 300 contended windows hold fewer than {needed}");
        }
    }

    /// The contended arm (offline work without isolation) does not take part in every round. Whenever an interim
    /// analysis ends a run, this arm must have had the six rounds that a confidence interval needs.
    // promise 38
    #[test]
    fn no_look_is_too_early_for_the_contended_arm() {
        for seconds in [20.0, 60.0, 90.0, 120.0, 150.0, 170.0, 171.0, 180.0, 240.0, 600.0] {
            for rate in [50.0, 500.0, 2_100.0, 2_200.0] {
                let arms =
                    r#"arms = ["baseline", "baseline2", "policy-only", "warm", "contended", "isolated"]"#;
                let text = format!("{arms}\n[load]\nhttp = \"/\"\nrate = {rate}\n");
                let mut experiment = parse("x", &text).unwrap();
                experiment.by_windows(seconds);
                let design = &experiment.design;
                let every = design.windows.unwrap().contended_every;
                for look in &design.looks {
                    assert!(
                        look.div_ceil(every) >= 6 && *look <= design.rounds,
                        "{seconds} s, {rate}/s: {look}"
                    );
                }
                assert!(design.looks.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", design.looks);
            }
        }
    }
}

//! The keys of short windows in an experiment's file, and what keeps an experiment from having them.

use super::file::{RawDesign, read, seconds};
use super::shape::Mistakes;
use super::{Load, Restart, Short};
use crate::isolation::Isolation;
use crate::record::{Design, Windows};

/// The keys of short windows.
#[derive(Default)]
pub(super) struct RawShort {
    carry_over: Option<String>,
    within: Option<String>,
    window: Option<String>,
    guard: Option<String>,
    per_round: Option<u32>,
    contended: Option<String>,
    contended_every: Option<u32>,
    /// Whether the file speaks of long blocks.
    of_blocks: bool,
}

impl RawShort {
    /// Takes them out of the design's.
    pub fn of(raw: &mut RawDesign) -> RawShort {
        RawShort {
            carry_over: raw.carry_over.take(),
            within: raw.r#for.take(),
            window: raw.window.take(),
            guard: raw.guard.take(),
            per_round: raw.per_round.take(),
            contended: raw.contended.take(),
            contended_every: raw.contended_every.take(),
            of_blocks: raw.rounds.is_some() || raw.block.is_some(),
        }
    }

    fn keys(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            ("for", self.within.is_some()),
            ("window", self.window.is_some()),
            ("guard", self.guard.is_some()),
            ("per-round", self.per_round.is_some()),
            ("contended", self.contended.is_some()),
            ("contended-every", self.contended_every.is_some()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(key, _)| key)
    }
}

/// How a run by short windows is planned, or why this experiment has none.
pub(super) fn plan(
    raw: RawShort,
    (load, restart, isolations, design): (&Load, Option<Restart>, &[Isolation], &Design),
    wrong: &mut Mistakes,
) -> Result<Short, String> {
    let obstacle = match (load, restart) {
        (Load::Tool { tool, .. }, _) => Some(format!(
            "{tool} says when it has ended how its requests went, and not when each of them was due"
        )),
        (_, Some(Restart::Block | Restart::Round)) => {
            Some("restart asks for a fresh service again and again".to_owned())
        }
        _ if !design.queries.is_empty() => {
            Some("Prometheus, which the file has a metric of, cannot tell short windows apart".to_owned())
        }
        // Where the file asks for short windows, such arms alone are left out.
        _ if raw.carry_over.as_deref() == Some("short") => None,
        _ => isolations.iter().find_map(Isolation::carries_over),
    };
    let long = match (raw.carry_over.as_deref(), obstacle) {
        (None, None) if raw.of_blocks && raw.keys().next().is_none() => {
            Some("its file has rounds or a block, and no carry-over = \"short\"".to_owned())
        }
        (None, obstacle) => obstacle,
        (Some("short"), None) => None,
        (Some("short"), Some(obstacle)) => {
            wrong.at(
                "design.carry-over",
                format!("design.carry-over = \"short\" asks for short windows, but {obstacle}"),
            );
            return Err(obstacle);
        }
        (Some("long"), _) => Some("its file says carry-over = \"long\"".to_owned()),
        (Some(other), _) => {
            wrong.at(
                "design.carry-over",
                format!("design.carry-over = {other:?}: \"short\" where what one arm does to the machine is over within milliseconds, \"long\" where it is not (page cache, memory, controllers)"),
            );
            return Err(String::new());
        }
    };
    if let Some(long) = long {
        for key in raw.keys() {
            wrong.at(
                &format!("design.{key}"),
                format!("design.{key} is about short windows, and this experiment has long blocks: {long}"),
            );
        }
        return Err(long);
    }
    let mut time = |text: Option<String>, key: &str, range: std::ops::RangeInclusive<f64>| {
        let checked = |text: &str| match seconds(text)? {
            time if range.contains(&time) => Ok(time),
            _ => Err(format!("not within {} to {} s", range.start(), range.end())),
        };
        read(text.as_deref(), &format!("design.{key}"), wrong, checked)
    };
    let default = Short::default();
    let within_s = time(raw.within, "for", 1.0..=86_400.0).unwrap_or(default.within_s);
    let window_s = time(raw.window, "window", 0.02..=10.0).unwrap_or(default.windows.window_s);
    let guard_s = time(raw.guard, "guard", 0.001..=5.0).unwrap_or(default.windows.guard_s);
    let contended_s = time(raw.contended, "contended", 0.1..=60.0).unwrap_or(default.windows.contended_s);
    let mut count = |number: Option<u32>, key: &str, default: u32| {
        let number = number.unwrap_or(default);
        if !(1..=1_000).contains(&number) {
            wrong.at(&format!("design.{key}"), format!("design.{key} = {number}: not within 1 to 1000"));
        }
        number
    };
    let per_round = count(raw.per_round, "per-round", default.windows.per_round);
    let contended_every = count(raw.contended_every, "contended-every", default.windows.contended_every);
    let windows = Windows { window_s, guard_s, per_round, contended_s, contended_every, ..default.windows };
    Ok(Short { windows, within_s, long_rounds: design.rounds })
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    /// What makes an experiment one of short windows or of long blocks, and what it says of the latter.
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
            (arms("isolated:nice"), Some("from their start")),
            (arms("isolated:sched-idle"), Some("from their start")),
            (arms("isolated:frame"), Some("its controller")),
            (arms("isolated:best+io=10MiB/s"), Some("the page cache")),
            (arms("isolated:scheduler=scx_rusty"), Some("to be loaded")),
            (format!("{}{long}", arms("isolated")), Some("carry-over")),
            (format!("{}[design]\nrounds = 12", arms("isolated")), Some("rounds or a block")),
            (format!("{}[design]\nblock = \"20 s\"", arms("isolated")), Some("rounds or a block")),
            (format!("{}[design]\nrounds = 12\nfor = \"170 s\"", arms("isolated")), None),
            (format!("{}[design]\nrounds = 12\ncarry-over = \"short\"", arms("isolated")), None),
            (format!("{}{tool}", arms("isolated")), Some("when each of them was due")),
            (format!("restart = \"block\"\n{}", arms("isolated")), Some("fresh service")),
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

    /// Requests come at random: a round's windows, and the one of a contended arm, hold the requests that they need all the same.
    // promise 47
    #[test]
    fn windows_hold_what_they_need() {
        let mut rng = crate::rng::Rng::new(9);
        // Requests in so many seconds, by the exponential times between them.
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

    /// Whenever a run ends, harm without isolation has the six rounds that an interval takes.
    // promise 47
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

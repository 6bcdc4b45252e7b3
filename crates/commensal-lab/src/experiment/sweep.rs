//! Sweeps: a run compares several values of one setting. Each value becomes an arm (a condition of the run), so that
//! the run measures all values under equal conditions. The setting is a limit of the offline work (`--vary
//! cpu.max=20%,50%,80%`) or its number of threads, called a ramp (`--ramp 0,1,2,4`).

use super::{Experiment, Offline};
use crate::isolation::{Isolation, limits};
use crate::record::{Arm, Role, Sweep, SweepPoint};
use crate::workload::antagonist::{Kind, arm_name};
use commensal_core::toml_reader::nearest;

/// Maximum number of values in a sweep: each value adds one or two arms to every round.
pub const MOST: usize = 8;
/// Maximum number of threads in a ramp.
const MOST_THREADS: u32 = 1_024;
/// Maximum number of rounds of a ramp, if the experiment uses short windows when it has no ramp.
const RAMP_ROUNDS: u32 = 12;
/// Key of the number of threads; reports print this key, too.
const THREADS: &str = "offline.threads";
/// Keys that a sweep accepts in addition to [`limits`].
const KEYS: [&str; 5] = ["cpu.max", "quota", "cpuset", "io", THREADS];

/// Parses `KEY=V1,V2,…`, and replaces the experiment's isolated arms by one isolated arm for each value. Other
/// mechanisms may precede the key, as in `best+cpu.max=50%,80%`.
pub(super) fn vary(experiment: &mut Experiment, text: &str) -> Result<(), String> {
    free(experiment)?;
    let (left, values) =
        text.rsplit_once('=').ok_or("the form is KEY=VALUE,VALUE,…, such as cpu.max=20%,50%,80%")?;
    let (left, values) = (left.trim(), values.split(',').map(str::trim));
    let key = left.rsplit('+').next().unwrap_or_default().trim();
    known(key)?;
    if key == THREADS {
        if left != key {
            return Err(format!(
                "{THREADS} cannot be combined with mechanisms: the isolated arms are those of the experiment"
            ));
        }
        let threads = values
            .map(|value| value.parse::<u32>().map_err(|_| format!("{value:?} is not a number of threads")));
        return ramp(experiment, &threads.collect::<Result<Vec<_>, _>>()?);
    }
    let mut read = Vec::new();
    for value in values {
        let isolation = Isolation::parse(&format!("{left}={value}"))?;
        read.push((number(value)?, value.to_owned(), isolation));
    }
    let unit = read.first().map(|((_, unit), ..)| unit.clone()).unwrap_or_default();
    if let Some(((_, other), ..)) = read.iter().find(|((_, other), ..)| *other != unit) {
        return Err(format!(
            "values in {unit:?} and in {other:?} cannot be ordered; give all values in one unit"
        ));
    }
    read.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
    countable(&read.iter().map(|((at, _), ..)| *at).collect::<Vec<f64>>())?;
    experiment.arms.retain(|arm| arm.role != Role::Isolated);
    experiment.isolations.clear();
    let mut points = Vec::new();
    for ((at, unit), value, isolation) in read {
        let name = format!("isolated:{left}={value}");
        let label = if unit.is_empty() { value } else { format!("{at} {unit}") };
        experiment.arms.push(arm(&name, Role::Isolated, None));
        experiment.isolations.push(isolation);
        points.push(SweepPoint { at, label, contended: None, isolated: Some(name) });
    }
    if let Some(why) = experiment.isolations.iter().find_map(Isolation::carries_over) {
        experiment.short = Err(why);
    }
    experiment.design.sweep = Some(Sweep { what: key.to_owned(), unit, ramp: false, points });
    Ok(())
}

/// Replaces the arms with offline work: for each number of threads, there is then one contended arm, one isolated arm,
/// or one of each, as in the experiment. Zero threads is the service alone.
pub(super) fn ramp(experiment: &mut Experiment, threads: &[u32]) -> Result<(), String> {
    free(experiment)?;
    let Offline::BuiltIn(kind) = experiment.offline else {
        return Err(
            "a ramp needs built-in offline work, but this experiment has offline work of its own".to_owned()
        );
    };
    let mut threads = threads.to_vec();
    threads.sort_unstable();
    countable(&threads.iter().map(|&number| f64::from(number)).collect::<Vec<f64>>())?;
    if let Some(most) = threads.last().filter(|most| !(1..=MOST_THREADS).contains(*most)) {
        return Err(format!("{most} threads: give 1 to {MOST_THREADS}"));
    }
    let has = |role| experiment.arms.iter().any(|arm| arm.role == role);
    let (contended, isolated) = (has(Role::Contended), has(Role::Isolated));
    if !contended && !isolated {
        return Err("a ramp needs a contended or an isolated arm".to_owned());
    }
    let isolation = experiment.isolations.first().cloned().unwrap_or_default();
    experiment.arms.retain(|arm| matches!(arm.role, Role::Baseline | Role::Baseline2 | Role::OfflineAlone));
    experiment.isolations.clear();
    let mut points = Vec::new();
    for number in threads {
        let mut point =
            SweepPoint { at: f64::from(number), label: count(number), contended: None, isolated: None };
        if number == 0 {
            point.contended = Some("baseline2".to_owned());
            points.push(point);
            continue;
        }
        let mut add = |name: String, role| {
            experiment.arms.push(arm(&name, role, Some((kind, number as usize))));
            name
        };
        point.contended = contended.then(|| add(format!("contended:{}", count(number)), Role::Contended));
        if isolated {
            point.isolated = Some(add(format!("isolated:{}", count(number)), Role::Isolated));
            experiment.isolations.push(isolation.clone());
        }
        points.push(point);
    }
    if experiment.short.is_ok() {
        experiment.design.rounds = experiment.design.rounds.min(RAMP_ROUNDS);
        experiment.short = Err("frozen offline work cannot change its number of threads".to_owned());
    }
    experiment.design.sweep =
        Some(Sweep { what: THREADS.to_owned(), unit: "threads".to_owned(), ramp: true, points });
    Ok(())
}

fn count(threads: u32) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

fn arm(name: &str, role: Role, offline: Option<(Kind, usize)>) -> Arm {
    let offline = offline.map(|(kind, threads)| arm_name(kind, threads));
    Arm { name: name.to_owned(), role, policy: None, offline }
}

fn free(experiment: &Experiment) -> Result<(), String> {
    match &experiment.design.sweep {
        Some(sweep) => {
            Err(format!("the experiment already varies {}, and a run can vary only one setting", sweep.what))
        }
        None => Ok(()),
    }
}

fn known(key: &str) -> Result<(), String> {
    if KEYS.contains(&key) || limits().any(|known| known == key) {
        return Ok(());
    }
    if key == "cpu.weight" {
        let why = "a weight only has an effect between offline groups, and a run has only one";
        return Err(format!(
            "cpu.weight: {why}; vary cpu.max, or compare the arms isolated:weight and isolated:cpu.idle"
        ));
    }
    let keys: Vec<&str> = KEYS.into_iter().chain(limits()).collect();
    let hint = nearest(key, &keys).map(|near| format!(" (did you mean {near:?}?)")).unwrap_or_default();
    Err(format!("{key:?} cannot be varied{hint}; the choices are {}", keys.join(", ")))
}

/// Splits a value such as `20 %` into its number and its unit.
fn number(value: &str) -> Result<(f64, String), String> {
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    let (digits, unit) = value.split_at(end);
    match digits.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok((number, unit.trim().to_owned())),
        _ => Err(format!("{value:?} does not start with a number")),
    }
}

/// Checks that these ascending values form a sweep: 2 to [`MOST`] values, no two of them equal.
fn countable(values: &[f64]) -> Result<(), String> {
    match values.len() {
        0 | 1 => return Err("at least two values are needed".to_owned()),
        2..=MOST => {}
        more => return Err(format!("{more} values are too many: a run measures at most {MOST}")),
    }
    match values.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("{} is listed twice", pair[0])),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Overrides, QUICKSTART, parse, shipped};
    use super::*;

    fn quickstart() -> Experiment {
        shipped(QUICKSTART).unwrap().unwrap()
    }

    fn names(experiment: &Experiment) -> Vec<&str> {
        experiment.arms.iter().map(|arm| arm.name.as_str()).collect()
    }

    #[test]
    fn each_value_is_an_isolated_arm() {
        let mut experiment = quickstart();
        vary(&mut experiment, "cpu.max=50%, 20 %,80%").unwrap();
        assert_eq!(
            names(&experiment)[5..],
            ["isolated:cpu.max=20 %", "isolated:cpu.max=50%", "isolated:cpu.max=80%"]
        );
        assert_eq!(experiment.isolations.len(), 3);
        assert_eq!(experiment.isolations[1], Isolation::parse("quota=50%").unwrap());
        let sweep = experiment.design.sweep.clone().unwrap();
        assert_eq!((sweep.what.as_str(), sweep.unit.as_str(), sweep.ramp), ("cpu.max", "%", false));
        let points: Vec<_> = sweep.points.iter().map(|point| (point.at, point.label.as_str())).collect();
        assert_eq!(points, [(20.0, "20 %"), (50.0, "50 %"), (80.0, "80 %")]);
        assert!(vary(&mut experiment, "cpu.max=1%,2%").unwrap_err().contains("already"));
        for text in [
            "best+cpu.max=20%,50%",
            "cpuset=1,2",
            "io=1MiB/s,10MiB/s",
            "memory.max=1GiB,2GiB",
            "pids.max=9,10",
        ] {
            let mut experiment = quickstart();
            vary(&mut experiment, text).unwrap();
            assert_eq!(experiment.isolations.len(), 2, "{text}");
            assert!(names(&experiment)[5].starts_with("isolated:"), "{text}");
        }
    }

    #[test]
    fn windows_are_as_long_as_a_quota_needs() {
        let apply = |vary: &str| {
            let overrides = Overrides { vary: Some(vary.to_owned()), ..Overrides::default() };
            let mut experiment = quickstart();
            overrides.apply(&mut experiment).unwrap();
            experiment
        };
        let quota = apply("cpu.max=20%,50%,80%");
        let windows = quota.design.windows.unwrap();
        assert!(windows.guard_s >= 0.2 && windows.window_s >= 0.5, "{windows:?}");
        assert!(quota.design.rounds >= 6 && quota.duration_s() < 400.0, "{}", quota.duration_s());
        let windows = apply("cpuset=1,2").design.windows.unwrap();
        assert!((windows.guard_s - 0.02).abs() < 1e-9 && windows.per_round == 10, "{windows:?}");
    }

    #[test]
    fn a_ramp_has_two_arms_for_each_number() {
        let mut experiment = quickstart();
        ramp(&mut experiment, &[4, 0, 1]).unwrap();
        assert_eq!(
            names(&experiment),
            [
                "baseline",
                "baseline2",
                "contended:1 thread",
                "isolated:1 thread",
                "contended:4 threads",
                "isolated:4 threads"
            ]
        );
        assert_eq!(experiment.arms[5].offline.as_deref(), Some("cpu:4"));
        assert!(experiment.isolations.len() == 2 && experiment.short.is_err());
        let sweep = experiment.design.sweep.clone().unwrap();
        assert_eq!(sweep.points[0].contended.as_deref(), Some("baseline2"));
        assert_eq!(sweep.points[2].isolated.as_deref(), Some("isolated:4 threads"));
        // `offline.threads` in `--vary` gives the same ramp.
        let mut other = quickstart();
        vary(&mut other, "offline.threads=4,0,1").unwrap();
        assert_eq!(other, experiment);
    }

    #[test]
    fn what_cannot_be_varied() {
        let check = |text: &str, words: &str| {
            let mut experiment = quickstart();
            let before = experiment.clone();
            let said = vary(&mut experiment, text).unwrap_err();
            assert!(said.contains(words), "{text}: {said}");
            assert_eq!(experiment, before, "{text}");
        };
        check("cpu.max", "KEY=VALUE,VALUE");
        check("cpu.mxa=1%,2%", "did you mean \"cpu.max\"?");
        check("memory.mx=1,2", "did you mean \"memory.max\"?");
        check("ofline.threads=1,2", "did you mean \"offline.threads\"?");
        check("frequency=1,2", "\"frequency\" cannot be varied; the choices are cpu.max");
        check("cpu.weight=1,2", "between offline groups");
        check("cpu.max=20%", "at least two values");
        check("cpu.max=", "cpu.max=");
        check("cpu.max=20%,,50%", "cpu.max=");
        check("cpu.max=20%,20 %", "listed twice");
        check("cpu.max=20%,1 cores", "give all values in one unit");
        check("cpu.max=a lot,20%", "cpu.max=a lot");
        check("magic+cpu.max=20%,50%", "magic");
        check("cpuset=1,2,3,4,5,6,7,8,9", "9 values are too many: a run measures at most 8");
        check("offline.threads=1,x", "\"x\" is not a number of threads");
        check("best+offline.threads=1,2", "cannot be combined");
        check("offline.threads=0,2000", "give 1 to 1024");
        check("offline.threads=0,0", "listed twice");
        let mut own = quickstart();
        own.offline = Offline::Attached { to: "x".to_owned(), expected_cpus: None };
        assert!(ramp(&mut own, &[1, 2]).unwrap_err().contains("built-in offline work"));
        let mut alone = quickstart();
        alone.arms.truncate(2);
        assert!(ramp(&mut alone, &[1, 2]).unwrap_err().contains("needs a contended or"));
    }

    #[test]
    fn a_file_has_both() {
        const ARMS: &str = "arms = [\"baseline\", \"baseline2\", \"contended\", \"isolated\"]\n";
        let read = |rest: &str| parse("x", &format!("{ARMS}{rest}"));
        assert_eq!(read("[design]\nvary = \"cpu.max=20%,50%\"").unwrap().isolations.len(), 2);
        assert_eq!(read("[offline]\nbuilt-in = \"memory\"\nramp = [1, 2]").unwrap().arms.len(), 6);
        for (text, words) in [
            ("[design]\nvary = \"cpu.mx=1%,2%\"", "x:3:8: design.vary = \"cpu.mx=1%,2%\": \"cpu.mx\""),
            ("[offline]\nramp =  [1]", "x:3:9: offline.ramp: at least two values"),
            ("[offline]\nramp = [1, -1]", "x:3:12: "),
            ("[offline]\nramp = [1, 5000]", "x:3:8: offline.ramp: 5000 threads"),
            ("[offline]\nramp = \"1,2\"", "x:3:8: offline.ramp must be a list of whole numbers"),
            ("[offline]\nramp = [1, 2]\ncommand = [\"x\"]", "x:3:8: offline.ramp: a ramp needs built-in"),
            (
                "[design]\nvary = \"cpuset=1,2\"\n[offline]\nramp = [1, 2]",
                "x:5:8: offline.ramp: the experiment already varies",
            ),
        ] {
            let said = read(text).unwrap_err().to_string();
            assert!(said.contains(words), "{text}: {said}");
        }
    }
}

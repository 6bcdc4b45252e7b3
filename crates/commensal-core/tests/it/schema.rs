//! The JSON Schema of groups files against the parser: both decide on the same generated files.

use commensal_core::config::schema::schema;
use commensal_core::config::{AGENT_KEYS, keys, parse_file};
use jsonschema::Validator;

fn validator() -> Validator {
    jsonschema::draft7::new(&schema()).unwrap()
}

/// Whether the schema and the parser accept a text that is valid TOML.
fn verdicts(validator: &Validator, text: &str) -> (bool, bool) {
    let value: serde_json::Value = toml::from_str(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
    (validator.is_valid(&value), parse_file("groups.toml", text).is_ok())
}

/// Values of every form that some key accepts, and near misses of them, separated by semicolons.
const VALUES: &str = "
    ''; ' '; 'x'; 'online'; 'offline'; 'ofline'; 'root'; 'isolated'; 'kill-largest'; 'kill-group';
    'freeze'; 'queue'; 'protect'; 'restore'; 'per-member'; 'total'; 'auto'; 'off'; 'besteffort'; '0';
    '7'; '100'; '50 %'; '50%'; ' 50 % '; '0 %'; '0.0 %'; '0.5 %'; '-5 %'; '5 5 %'; '1.2.3 %';
    '2.5 cores'; '1 CPU'; '1 cPU'; '0 cores'; '8 GiB'; '8GiB'; '8 GIB'; '0 B'; '1_000 kB'; '_1 B';
    '1._ B'; '.5 B'; '1. B'; '+1 B'; '1e3 B'; 'B'; '100 MiB/s'; '0 MiB/s'; '100 MiB /s'; '100 MiB/ s';
    '500 iops'; '0 iops'; '500 iop'; '20 ms'; '0 ms'; '0 ms 1 us'; '1h 30min'; '1h30min'; '2 days';
    '5us'; '5 ns'; '3 µs'; '1 m sec'; '9/s'; '5%ms'; '10'; '0-3,8'; '0-3,8,'; ','; ' 0 - 3 '; '0 3'; '3-1'; '1-';
    '254:0'; ' 254:0 '; '254: 0'; 'a:b'; '/a'; '/a/../b'; '/'; '//'; 'a'; '/*'; '/a/.b/..c'; '/a/.'; 0;
    1; 2; 3; 100; 10000; 10001; 1000000; 1000001; 4194304; 4194305; -1; 1.0; 1.5; nan; true; false;
    2020-01-02; []; ['254:0']; ['x']; [254]; ['254:0', 'x']; {}; { x = 1 }; [{}]; [{ cgroup = '/a' }];
    [{ cgroup = '/a/../b' }]; [{ cgroup = '/' }]; [{ cgroup = 'a' }]; [{ cgroup = '' }];
    [{ cgroup = '/a***' }]; [{ cgroup = '/*' }]; [{ cgroup = '/a//b/' }]; [{ cgroup = '/...' }];
    [{ cgroup = '/a', systemd = 'b' }]; [{ systemd = 'a.service' }]; [{ systemd = '' }];
    [{ docker-name = ' ' }]; [{ docker-label = 'a=b' }, { docker-name = 'c' }];
    [{ kubernetes = 'burstable' }]; [{ kubernetes = 'guarante' }]; [{ process = {} }];
    [{ process = { exe = 'a' } }]; [{ process = { exe = '' } }]; [{ process = { user = 7 } }];
    [{ process = { x = 'a' } }]; [5]; [{ x = 'y' }]
";

/// Values that only the parser refuses where the schema accepts their form: dates (text in JSON), whole numbers with a
/// decimal point, CPU lists in descending order, invalid patterns, and patterns without a name.
const ONLY_THE_PARSER: &[&str] =
    &["2020-01-02", "1.0", "'3-1'", "[{ cgroup = '/a***' }]", "[{ cgroup = '/*' }]"];

/// Every key with every value, alone and next to the keys that it needs.
#[test]
fn schema_and_parser_agree_on_every_key_and_value() {
    let validator = validator();
    let (mut accepted, mut refused, mut unlike) = (0, 0, Vec::new());
    let mut check = |text: &str, value: &str| {
        match verdicts(&validator, text) {
            (true, true) => accepted += 1,
            (false, false) => refused += 1,
            (true, false) if ONLY_THE_PARSER.contains(&value) => {}
            (schema, parser) => unlike.push(format!("schema {schema}, parser {parser}:\n{text}")),
        };
    };
    // What the other keys need; a key that is tested replaces its own line.
    let beside =
        [("cpu.max", "'50 %'"), ("cpu.set", "'0-3'"), ("memory.max", "'1 GiB'"), ("io.weight", "100")];
    let names: Vec<&str> = keys().iter().map(|key| key.path).chain(["nonsense", "cpu.nonsense"]).collect();
    let values: Vec<&str> = VALUES.split(';').map(str::trim).collect();
    for name in &names {
        for value in &values {
            for class in ["online", "offline"].into_iter().filter(|_| *name != "class").chain([""]) {
                for few in [true, false] {
                    let lines = beside.iter().filter(|(other, _)| {
                        !few && other != name && (class == "offline" || *other != "cpu.max")
                    });
                    let others: String = lines.map(|(key, value)| format!("{key} = {value}\n")).collect();
                    let class = if class.is_empty() { String::new() } else { format!("class = '{class}'\n") };
                    check(&format!("[group.g]\n{class}{others}{name} = {value}\n"), value);
                }
            }
        }
    }
    for key in AGENT_KEYS.iter().map(|key| key.path).chain(["nonsense"]) {
        values.iter().for_each(|value| check(&format!("[agent]\n{key} = {value}\n"), value));
    }
    for value in &values {
        for key in ["group", "agent", "group.g", "nonsense"] {
            check(&format!("{key} = {value}\n"), value);
        }
    }
    assert!(unlike.is_empty(), "{} files, such as {}", unlike.len(), unlike[0]);
    assert!(accepted > 300 && refused > 5_000, "{accepted} accepted, {refused} refused");
}

/// A valid value of every key, for the contradictions between two keys.
fn example(key: &str) -> &'static str {
    match key {
        "class" => "'offline'",
        "cpu.weight" | "io.weight" => "100",
        "cpu.max" | "cpu.min-share" => "'50 %'",
        "cpu.burst" | "queue.timeout" | "target-wakeup-p99" => "'20 ms'",
        "cpu.set" => "'0-3'",
        "cpu.partition" => "'root'",
        "cpu.qos-level" => "1",
        "memory.min" | "memory.low" | "memory.high" | "memory.max" => "'1 GiB'",
        "memory.on-exceed" => "'kill-group'",
        "io.read" | "io.write" | "remote.read" => "'1 MiB/s'",
        "io.read-iops" | "io.write-iops" => "'1 iops'",
        "io.devices" => "['254:0']",
        "pids.max" | "queue.max-concurrency" | "queue.max-size" => "7",
        "io.cost" | "frozen" | "expel" | "takeover" => "true",
        "safe-state" => "'protect'",
        "limits" => "'total'",
        "match" => "[{ cgroup = '/*' }]",
        "match-everything" => "true",
        other => panic!("{other} needs an example"),
    }
}

/// Every pair of keys in both classes; switches also when they are off.
#[test]
fn schema_and_parser_agree_on_contradictions() {
    let validator = validator();
    let names: Vec<&str> = keys().iter().map(|key| key.path).filter(|key| *key != "class").collect();
    let forms = |key: &str| match example(key) {
        "true" => vec!["true", "false"],
        value => vec![value],
    };
    let mut counts = [0; 3];
    for class in ["online", "offline"] {
        for (index, first) in names.iter().enumerate() {
            for second in &names[index..] {
                for (a, b) in forms(first).iter().flat_map(|a| forms(second).into_iter().map(move |b| (a, b)))
                {
                    let line = if first == second { String::new() } else { format!("{second} = {b}\n") };
                    let text = format!("[group.g]\nclass = '{class}'\n{first} = {a}\n{line}");
                    let (schema, parser) = verdicts(&validator, &text);
                    // A pattern without a name and match-everything belong together, which only the parser knows.
                    let wide = [first, second].iter().any(|key| key.starts_with("match"));
                    assert!(
                        schema == parser || (wide && schema),
                        "schema {schema}, parser {parser}:\n{text}"
                    );
                    counts[usize::from(schema) + usize::from(parser)] += 1;
                }
            }
        }
    }
    assert!(counts[0] > 300 && counts[2] > 300, "{counts:?}");
}

#[test]
fn schema_and_parser_agree_on_names() {
    let validator = validator();
    let long = "x".repeat(64);
    let longer = "x".repeat(65);
    for name in [
        "", "a", "a/b", "..", ".", "a b", "-x", "_x", "A_b-1", "cpu.max", "tasks", "task", "größe", &long,
        &longer, "a\\n",
    ] {
        let (schema, parser) = verdicts(&validator, &format!("[group.\"{name}\"]\nclass = 'online'\n"));
        assert_eq!(schema, parser, "{name}");
    }
    for text in
        ["", "[group]\n", "[agent]\n", "[group]\n[agent]\n", "[group.a]\n", "[grop.a]\nclass = 'online'\n"]
    {
        let (schema, parser) = verdicts(&validator, text);
        assert_eq!(schema, parser, "{text}");
    }
    let quoted = "[group.g]\nclass = 'offline'\n\"cpu.max\" = '50 %'\n";
    assert_eq!(verdicts(&validator, quoted), (false, false));
}

//! Functions of JSON documents: the values in these tables are MySQL's answers.

use crate::server::client::Answer;
use crate::server::fixture::Fixture;

/// Expressions over one row, and their values.
const VALUES: [(&str, &str); 64] = [
    ("json_extract(j, '$.a')", "1"),
    ("json_extract(j, '$.b[1]')", r#"{"c": "x"}"#),
    ("json_extract(j, '$.b[1].c')", r#""x""#),
    ("json_extract(j, '$.b[last]')", "null"),
    ("json_extract(j, '$.nothing')", "NULL"),
    ("json_extract(j, null)", "NULL"),
    ("json_extract(n, '$')", "NULL"),
    ("json_extract(j, '$.a', '$.b[0]')", "[1, 2.5]"),
    ("json_extract(j, '$.a', '$.nothing')", "[1]"),
    ("json_extract(j, '$.b[*]')", r#"[2.5, {"c": "x"}, null]"#),
    ("json_extract(j, '$**.c')", r#"["x"]"#),
    ("json_extract(j, '$.*.d')", "NULL"),
    ("json_extract('{\"bb\":1,\"c\":[1,2],\"a\":\"é\"}', '$')", r#"{"a": "é", "c": [1, 2], "bb": 1}"#),
    ("json_extract('{\"a\":1,\"a\":2}', '$.a')", "2"),
    (
        "json_extract('[1.0, 1e20, 18446744073709551615, -0.5]', '$')",
        "[1.0, 1e20, 18446744073709551615, -0.5]",
    ),
    ("json_extract('3', '$[0]')", "3"),
    ("j->'$.b[1].c'", r#""x""#),
    ("j->>'$.b[1].c'", "x"),
    ("j->'$.b[1].c' = 'x'", "1"),
    ("'y' > j->'$.b[1].c'", "1"),
    ("j->'$.a' + 1", "2"),
    ("j->'$.a' = 1", "1"),
    ("j->'$.t' = true", "1"),
    ("j->'$.t' = false", "0"),
    ("json_unquote('\"a\\\\tb\\\\u00e4\"')", "a\tbä"),
    ("json_unquote('a\"')", "a\""),
    ("json_unquote('[1]')", "[1]"),
    ("json_unquote(n)", "NULL"),
    ("json_quote('a\"b')", r#""a\"b""#),
    ("json_valid(j)", "1"),
    ("json_valid('{a: 1}')", "0"),
    ("json_valid('')", "0"),
    ("json_valid(n)", "NULL"),
    ("json_type(j)", "OBJECT"),
    ("json_type(j->'$.b')", "ARRAY"),
    ("json_type('1.0')", "DOUBLE"),
    ("json_type('-1')", "INTEGER"),
    ("json_type('18446744073709551615')", "UNSIGNED INTEGER"),
    ("json_type('true')", "BOOLEAN"),
    ("json_type('null')", "NULL"),
    ("json_type('\"a\"')", "STRING"),
    ("json_length(j)", "3"),
    ("json_length(j, '$.b')", "3"),
    ("json_length(j, '$.a')", "1"),
    ("json_length(j, '$.x')", "NULL"),
    ("json_keys(j)", r#"["a", "b", "t"]"#),
    ("json_keys(j, '$.b[1]')", r#"["c"]"#),
    ("json_keys(j, '$.b')", "NULL"),
    ("json_contains(j, '1', '$.a')", "1"),
    ("json_contains(j, '1.0', '$.a')", "1"),
    ("json_contains(j, '{\"a\": 1}')", "1"),
    ("json_contains(j, '2', '$.a')", "0"),
    ("json_contains(j, '[null, 2.5]', '$.b')", "1"),
    ("json_contains(j, '{\"c\": \"x\"}', '$.b')", "1"),
    ("json_contains('[[1, 2]]', '[[2]]')", "1"),
    ("json_contains(j, '1', '$.x')", "NULL"),
    ("json_contains(j, n)", "NULL"),
    (
        "json_array(1, 'a', null, true, 1.50, d, json_array(), 2e0)",
        r#"[1, "a", null, true, 1.50, "2024-02-29", [], 2.0]"#,
    ),
    ("json_array(dt, time(dt), i = 7)", r#"["2024-02-29 00:59:50.000000", "00:59:50.000000", true]"#),
    ("json_object('b', j->'$.b', 'a', '[1]', 'b', i)", r#"{"a": "[1]", "b": 7}"#),
    ("json_object()", "{}"),
    ("json_length(json_array(1, json_object('a', n)))", "2"),
    ("cast('{\"b\":1, \"a\":2}' as json)", r#"{"a": 2, "b": 1}"#),
    ("json_array(cast('[1]' as json), '[1]')", r#"[[1], "[1]"]"#),
];

#[test]
fn functions_of_json_have_mysqls_values() {
    let fixture = Fixture::new();
    fixture.csv(
        "w.csv",
        "i,n,d,dt,j\n7,,2024-02-29,2024-02-29 00:59:50,\"{\"\"a\"\": 1, \"\"b\"\": [2.5, {\"\"c\"\": \"\"x\"\"}, null], \"\"t\"\": true}\"\n",
    );
    let mut client = fixture.root();
    for (sql, want) in VALUES {
        let answer = client.query(&format!("select {sql} from w"));
        assert_eq!(answer.rows(), [[want]], "{sql}");
    }
    assert_eq!(client.query("select i from w where j->'$.b[1].c' = 'x' and j->>'$.a' > 0").cell(), "7");
}

#[test]
fn errors_of_json_have_mysqls_numbers() {
    let fixture = Fixture::new();
    let mut client = fixture.root();
    for (sql, number, text) in [
        (
            "json_extract('{', '$')",
            3141,
            "Invalid JSON text in argument 1 to function json_extract: \"Invalid value.\" at position",
        ),
        ("json_contains('1', 'x')", 3141, "Invalid JSON text in argument 2 to function json_contains"),
        ("json_length('nothing')", 3141, "Invalid JSON text in argument 1 to function json_length"),
        (
            "json_extract('{}', '$a')",
            3143,
            "Invalid JSON path expression. The error is around character position 1.",
        ),
        (
            "json_keys('{}', '$.*')",
            3149,
            "In this situation, path expressions may not contain the * and ** tokens",
        ),
        ("json_object(null, 1)", 3158, "JSON documents may not contain NULL member names."),
        ("json_object('a')", 1582, "Incorrect parameter count in the call to native function 'json_object'"),
        (
            "json_extract('{}')",
            1582,
            "Incorrect parameter count in the call to native function 'json_extract'",
        ),
        ("benchmark(1000000, md5('a'))", 1235, "benchmark is not supported"),
    ] {
        let answer = client.query(&format!("select {sql}"));
        let Answer::Err(got, said) = &answer else { panic!("{sql}: {answer:?}") };
        assert_eq!(*got, number, "{sql}: {said}");
        assert!(said.starts_with(text), "{sql}: {said}");
    }
}

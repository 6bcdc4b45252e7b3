//! Values of one thing as arms of one run, and gates on what Prometheus says, that are refused.

use crate::bad_input::assert_nothing_left;
use crate::support::Program;

#[test]
fn what_cannot_be_swept_or_asked_is_told_before_anything_starts() {
    let program = Program::new("refused");
    let gate = "--gate-query";
    for (args, words) in [
        (&["--vary", "cpu.mxa=1%,2%"][..], "did you mean \"cpu.max\"?"),
        (&["--vary", "cpu.max=20%,a lot"], "cpu.max=a lot"),
        (&["--ramp", "1"], "at least two values"),
        (&["--ramp", "1,2", "--vary", "cpu.max=1%,2%"], "cannot be used with"),
        (&[gate, "up"], "the form is NAME=QUERY"),
        (&[gate, "a=up", "--block", "10"], "a block of 10 s is shorter than 4 scrape intervals of 15 s"),
        (&[gate, "a=up", "--prometheus", "https://x", "--block", "60"], "TLS is not supported"),
        (
            &[gate, "a=up", "--prometheus", "http://127.0.0.1:1", "--block", "60"],
            "check that the server runs",
        ),
        (&["--prometheus", "http://x"], "--gate-query"),
    ] {
        let mut all = vec!["lab", "run", "quickstart"];
        all.extend(args);
        let (_, err) = program.expect(2, &all);
        assert!(err.contains(words), "{args:?}: {err}");
        assert!(!program.path("run.json").exists(), "{args:?}");
    }
    assert_nothing_left(&program.state());
}

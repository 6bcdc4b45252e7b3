//! `lab calibrate` with options and files that it cannot use.

use crate::support::Program;

#[test]
fn wrong_words_and_foreign_files_are_told_before_anything_is_measured() {
    let program = Program::new("calibrate-words");
    let check = |args: &[&str], want: &str| {
        let (_, err) = program.expect(2, &[&["lab", "calibrate"], args].concat());
        assert!(err.contains(want), "{err}");
    };
    check(&["--harm", "3,x"], "\"x\" is not a harm of 0 to 1000 per cent");
    check(&["--harm", "p99:3"], "relative to p50 or p90, not to p99");
    check(&["--beside", "busy:99"], "the number of CPUs must be above 0");
    check(&["--runs", "0"], "0 is not in 1..=10000");
    check(&["--for", "0s"], "it must be above 0");
    std::fs::write(program.path("calibration.json"), "{\"schema\":\"commensal.lab/1\"}").unwrap();
    check(&[], "the file has schema \"commensal.lab/1\"");
}

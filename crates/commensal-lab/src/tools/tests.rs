//! Tests of the parsers.
#[test]
fn stub() {}

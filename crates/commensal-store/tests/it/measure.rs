//! Tests that measure rates or need real time.

mod real;

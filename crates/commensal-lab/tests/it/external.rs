//! Tests that need another program: Chromium and its driver.

mod report;

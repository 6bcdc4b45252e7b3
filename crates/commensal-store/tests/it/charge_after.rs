//! The other algorithm, for comparison: that of Apache Doris' `IOThrottle`. A reader waits until the next allowed time,
//! reads, and then moves that time on by what it read; so all that wait pass together. Also in an example.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]

use std::sync::Mutex;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

pub struct ChargeAfter {
    bytes_per_s: f64,
    next: Mutex<Instant>,
}

impl ChargeAfter {
    pub fn new(bytes_per_s: u64) -> ChargeAfter {
        ChargeAfter { bytes_per_s: bytes_per_s as f64, next: Mutex::new(Instant::now()) }
    }

    pub async fn wait(&self) {
        loop {
            let next = *self.next.lock().unwrap();
            if Instant::now() >= next {
                return;
            }
            sleep_until(next).await;
        }
    }

    pub fn charge(&self, bytes: u64) {
        let mut next = self.next.lock().unwrap();
        *next = next.max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
    }
}

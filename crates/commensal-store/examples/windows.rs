//! How even a limit is, in windows of time, beside a limiter that charges after the read.
//!
//! `cargo run --release -p commensal-store --example windows [SECONDS]`, on the machine's own clock, with a device that is
//! simulated: each reader gets 200 MiB/s from it. The other algorithm is that of Apache Doris' `IOThrottle`.
#![forbid(unsafe_code)]

#[allow(dead_code)]
#[path = "../tests/it/device.rs"]
mod device;

#[path = "../tests/it/charge_after.rs"]
mod charge_after;

use charge_after::ChargeAfter;
use commensal_store::{BytesPerS, GovernedStore, Governor, QueryId, Reach};
use device::{Device, MIB, Model, path};
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The limit, in bytes per second.
const RATE: u64 = 100 * MIB;
const READERS: [usize; 4] = [1, 16, 48, 128];
/// Bytes of one read.
const READS: [u64; 2] = [MIB, 4 * MIB];
/// Not looked at: readers begin all at once.
const WARM_UP: Duration = Duration::from_secs(1);

/// Lets so many readers read ranges of `read` bytes for a while, and gives what left the device.
async fn run(governed: bool, readers: usize, read: u64, time: Duration) -> Device {
    let model = Model { mib: Duration::from_millis(5), frame: 256 << 10, ..Model::default() };
    let device = Device::with(model, read).await;
    let governor = Governor::new(Reach::Local, Some(BytesPerS(RATE)));
    let after = Arc::new(ChargeAfter::new(RATE));
    let mut all = JoinSet::new();
    for _ in 0..readers {
        let store = GovernedStore::new(Arc::new(device.clone()), governor.query(QueryId(1)));
        let (device, after) = (device.clone(), Arc::clone(&after));
        all.spawn(async move {
            loop {
                if governed {
                    let _ = store.get_ranges(&path(), std::slice::from_ref(&(0..read))).await;
                } else {
                    after.wait().await;
                    let _ = device.get_range(&path(), 0..read).await;
                    after.charge(read);
                }
            }
        });
    }
    sleep(time).await;
    all.shutdown().await;
    device
}

/// Least and most of the windows, in MiB/s.
fn span(windows: &[u64], length: Duration) -> String {
    let rate = |bytes: Option<&u64>| *bytes.unwrap_or(&0) as f64 / MIB as f64 / length.as_secs_f64();
    format!("{:.1}..{:.1}", rate(windows.iter().min()), rate(windows.iter().max()))
}

#[tokio::main]
async fn main() {
    let seconds: usize = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .filter(|seconds| *seconds > 0)
        .unwrap_or(8);
    let time = Duration::from_secs(seconds as u64);
    println!("limit 100 MiB/s, {seconds} s each after {} s; figures in MiB/s", WARM_UP.as_secs());
    println!(
        "| readers x read | algorithm | average | 1-s windows | 100-ms windows |\n|---|---|---|---|---|"
    );
    for read in READS {
        for readers in READERS {
            for (governed, name) in [(false, "charge after"), (true, "commensal")] {
                let began = Instant::now() + WARM_UP;
                let device = run(governed, readers, read, WARM_UP + time).await;
                let longs = device.windows(began, Duration::from_secs(1), seconds);
                let shorts = device.windows(began, Duration::from_millis(100), seconds * 10);
                let average = longs.iter().sum::<u64>() as f64 / MIB as f64 / seconds as f64;
                println!(
                    "| {readers} x {} MiB | {name} | {average:.1} | {} | {} |",
                    read / MIB,
                    span(&longs, Duration::from_secs(1)),
                    span(&shorts, Duration::from_millis(100)),
                );
            }
        }
    }
}

//! Known delays for a calibration: some arms add a delay of known size to the responses of the built-in service, to
//! test whether the verdict detects it. An arm is one condition of a run. This module chooses the delays, sends a delay
//! to the service at each switch of the arm, and collects the delays that the service measured.
//!
//! A request occupies its worker equally long in every arm, also in arms without a delay: the worker spins after the
//! response for the time by which the delay falls short of the longest delay. All arms therefore have equal load and
//! queues, and their latencies differ only by the delay.

use super::error::RunError;
use crate::loadgen::{Outcome, Sample};
use crate::record::{AddedTime, Arm, KnownHarm, Metric};
use crate::stats::percentile;
use crate::workload::http::SoFar;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long the run measures the service without a delay before the first round (some 5,000 requests); the run does
/// this twice.
pub(super) const PILOT: Duration = Duration::from_millis(2_500);
/// Initial part of each such measurement that the run discards, because the previous setting may still have an effect
/// (ns).
const SETTLED_NS: u64 = 200_000_000;
/// Maximum share of all CPUs that the added spinning may occupy. A longer delay would overload the machine.
const MOST_HELD: f64 = 0.3;
/// Timeout for the service to confirm a setting.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length of a confirmation (bytes).
const MOST_ANSWER: usize = 4096;

/// Controls the delays of the service during a run.
#[derive(Debug)]
pub(super) struct Slowing {
    stream: TcpStream,
    harms: Vec<KnownHarm>,
    /// For each arm of the run: its name, the configured delay (ns), and the delays that the service measured.
    arms: Vec<(String, u64, SoFar)>,
    /// Time for which each request occupies its worker in addition to its work (ns).
    held_ns: u64,
    cpus: f64,
    /// Index of the active arm.
    on: Option<usize>,
    before: SoFar,
}

impl Slowing {
    /// Connects to the service; returns `None` if no arm adds a delay.
    pub fn begin(
        harms: &[KnownHarm],
        arms: &[Arm],
        (addr, cpus): (SocketAddr, usize),
    ) -> Result<Option<Slowing>, RunError> {
        if harms.is_empty() {
            return Ok(None);
        }
        let connected = TcpStream::connect_timeout(&addr, PATIENCE).and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        });
        let stream = connected.map_err(|error| lost(&error.to_string()))?;
        let none = |arm: &Arm| (arm.name.clone(), 0, SoFar::default());
        Ok(Some(Slowing {
            stream,
            harms: harms.to_vec(),
            arms: arms.iter().map(none).collect(),
            held_ns: 0,
            cpus: cpus.max(1) as f64,
            on: None,
            before: SoFar::default(),
        }))
    }

    /// Computes the delays from `alone`, requests to the service without a delay. The run calls this function twice:
    /// the second time, the requests already occupy their workers as long as in the rounds. Returns a message for each
    /// delay that had to be smaller than requested, because the full delay would overload the machine.
    pub fn plan(&mut self, alone: &[Sample]) -> Result<Vec<String>, RunError> {
        let first_ns = alone.first().map_or(0, |sample| sample.due_ns) + SETTLED_NS;
        let answered =
            alone.iter().filter(|sample| sample.outcome == Outcome::Answered && sample.due_ns >= first_ns);
        let mut latencies: Vec<f64> = answered.map(|sample| sample.latency_us as f64).collect();
        latencies.sort_unstable_by(f64::total_cmp);
        let last_ns = alone.iter().map(|sample| sample.due_ns).max().unwrap_or(0);
        let per_s = latencies.len() as f64 / (last_ns.saturating_sub(first_ns).max(1) as f64 / 1e9);
        let most_us = MOST_HELD * self.cpus / per_s.max(1.0) * 1e6;
        let mut less = Vec::new();
        for (arm, asked_ns, _) in &mut self.arms {
            let Some(harm) = self.harms.iter().find(|harm| harm.arm == *arm) else { continue };
            let us = percentile(&latencies, harm.of.quantile().unwrap_or(0.5))
                .filter(|_| latencies.len() as u64 >= Metric::P95.requests_needed())
                .ok_or_else(|| {
                    lost("it answered too few requests without a delay to determine its latency")
                })?;
            let wanted_us = us * harm.pct / 100.0;
            if wanted_us > most_us {
                less.push(format!(
                    "{arm}: the delay is reduced to {most_us:.0} us, because {wanted_us:.0} us at {per_s:.0} \
                     requests/s would overload the CPUs"
                ));
            }
            *asked_ns = (wanted_us.min(most_us) * 1e3).round() as u64;
        }
        self.held_ns = self.arms.iter().map(|(_, asked_ns, _)| *asked_ns).max().unwrap_or(0);
        // Until the first switch, responses have no delay.
        self.order(0)?;
        Ok(less)
    }

    /// Activates the delay of an arm. Adds the delays that the service measured since the last switch to the previous
    /// arm's total.
    pub fn switch(&mut self, arm: usize) -> Result<(), RunError> {
        let asked_ns = self.arms.get(arm).map_or(0, |(_, asked_ns, _)| *asked_ns);
        let now = self.order(asked_ns)?;
        if let Some((_, _, came)) = self.on.and_then(|on| self.arms.get_mut(on)) {
            *came = came.and(&now.since(&self.before));
        }
        (self.on, self.before) = (Some(arm), now);
        Ok(())
    }

    /// Returns the delays that the service measured, without those since the last switch.
    pub fn added(&self) -> Vec<AddedTime> {
        let one = |(arm, asked_ns, came): &(String, u64, SoFar)| AddedTime {
            arm: arm.clone(),
            asked_ns: *asked_ns,
            requests: came.requests,
            added_ns: came.added_ns,
            over_us: came.over_us(),
        };
        self.arms.iter().map(one).collect()
    }

    /// Sends a delay to the service, and waits for the confirmation; returns the service's totals so far.
    fn order(&mut self, before_ns: u64) -> Result<SoFar, RunError> {
        let after_ns = self.held_ns.saturating_sub(before_ns);
        let request = format!(
            "POST /slow?before={before_ns}&after={after_ns} HTTP/1.1\r\nHost: lab\r\nContent-Length: 0\r\n\r\n"
        );
        self.stream.write_all(request.as_bytes()).map_err(|error| lost(&error.to_string()))?;
        let mut text = Vec::new();
        loop {
            if let Some(body) = body(&text) {
                return body.parse().map_err(|()| lost(&format!("it answered {body:?}")));
            }
            let mut piece = [0; 512];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(lost("it closed the connection")),
                Ok(read) if text.len() < MOST_ANSWER => text.extend_from_slice(&piece[..read]),
                Ok(_) => return Err(lost("its answer is too long")),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(&error.to_string())),
            }
        }
    }
}

/// Returns the body of a response (one line) if the response is complete, otherwise `None`.
fn body(answer: &[u8]) -> Option<&str> {
    let (_, body) = std::str::from_utf8(answer).ok()?.split_once("\r\n\r\n")?;
    body.strip_suffix('\n')
}

fn lost(why: &str) -> RunError {
    RunError::Service(format!("the delay of its responses could not be set: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Role;

    fn arm(name: &str) -> Arm {
        Arm { name: name.to_owned(), role: Role::Baseline, policy: None, offline: None }
    }

    fn harm(arm: &str, pct: f64, of: Metric) -> KnownHarm {
        KnownHarm { arm: arm.to_owned(), pct, of }
    }

    /// Requests with latencies of 100 to 199 µs, equally often.
    fn alone(requests: u64) -> Vec<Sample> {
        let sample = |i: u64| Sample {
            due_ns: i * 1_000_000,
            latency_us: 100 + i % 100,
            service_us: None,
            outcome: Outcome::Answered,
        };
        (0..requests).map(sample).collect()
    }

    #[test]
    fn a_service_that_is_gone_or_silent_alone_is_told() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let harms = [harm("slow", 5.0, Metric::P50)];
        assert!(Slowing::begin(&[], &[arm("slow")], (addr, 2)).unwrap().is_none());
        let mut slowing = Slowing::begin(&harms, &[arm("slow")], (addr, 2)).unwrap().unwrap();
        let few = slowing.plan(&alone(10)).unwrap_err().to_string();
        assert!(few.contains("too few requests without a delay"), "{few}");
        slowing.held_ns = 5;
        drop(listener.accept().unwrap());
        drop(listener);
        let gone = slowing.switch(0).unwrap_err().to_string();
        assert!(gone.contains("the delay of its responses could not be set"), "{gone}");
    }

    mod measure {
        use super::*;
        use crate::workload::http::{HttpOptions, HttpServer};
        use std::time::Instant;

        /// Returns the shortest of several response times; the worker is free before each request.
        fn shortest(addr: SocketAddr, times: u32) -> Duration {
            let mut stream = TcpStream::connect(addr).unwrap();
            let mut one = || {
                std::thread::sleep(Duration::from_millis(4));
                let began = Instant::now();
                stream.write_all(b"GET /cpu?cpu=1&count=1 HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
                let mut text = Vec::new();
                while body(&text).is_none() {
                    let mut piece = [0; 512];
                    let read = stream.read(&mut piece).unwrap();
                    assert!(read > 0);
                    text.extend_from_slice(&piece[..read]);
                }
                began.elapsed()
            };
            (0..times).map(|_| one()).min().unwrap_or_default()
        }

        // promise 35
        #[test]
        fn each_arm_has_what_was_ordered_and_the_service_counts_it() {
            let server = HttpServer::bind(HttpOptions { port: 0, workers: 2 }).unwrap();
            let addr = server.addr();
            std::thread::spawn(move || server.run());
            let arms = ["baseline", "slow", "slower"].map(arm);
            // The latency is 150 µs at the median and 189 µs at P90, so the delays are 3 ms and 1.89 ms.
            let harms = [harm("slow", 2_000.0, Metric::P50), harm("slower", 1_000.0, Metric::P90)];
            let mut slowing = Slowing::begin(&harms, &arms, (addr, 64)).unwrap().unwrap();
            assert_eq!(slowing.plan(&alone(4_000)).unwrap(), [""; 0]);
            let asked: Vec<u64> = slowing.added().iter().map(|arm| arm.asked_ns).collect();
            assert_eq!(asked, [0, 2_980_000, 1_890_000]);
            // The client's clock confirms the delay before each response in these arms.
            for arm in [1, 2, 1] {
                slowing.switch(arm).unwrap();
                let asked = Duration::from_nanos(asked[arm]);
                assert!(shortest(addr, 5) >= asked, "{asked:?}");
            }
            // In an arm without a delay, the worker spins after the response, which a client can observe if the machine is
            // not too busy.
            slowing.switch(0).unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut seen = 5;
            while shortest(addr, 1) >= Duration::from_nanos(asked[1]) {
                assert!(Instant::now() < deadline, "no answer came before what was ordered for after it");
                seen += 1;
            }
            shortest(addr, 4);
            slowing.switch(1).unwrap();
            // One CPU cannot be occupied for 3 ms a thousand times per second.
            slowing.cpus = 1.0;
            let less = slowing.plan(&alone(4_000)).unwrap();
            assert!(
                less.len() == 2 && less[0].contains("slow: the delay is reduced to 300 us, because 2980 us"),
                "{less:?}"
            );
            let added = slowing.added();
            assert!(added.iter().all(|arm| arm.asked_ns <= 300_100), "{added:?}");
            let requests: Vec<u64> = added.iter().map(|arm| arm.requests).collect();
            assert_eq!(requests, [seen, 10, 5]);
            assert_eq!(added[0].added_ns, 0);
            for arm in &added[1..] {
                assert!(arm.added_ns >= asked[1].min(asked[2]) * arm.requests, "{arm:?}");
            }
        }
    }
}

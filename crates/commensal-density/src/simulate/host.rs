//! One server under way: which vCPU sits on which hardware thread, and how fast each VM's threads advance.

use super::Physics;
use crate::scenario::Server;
use commensal_core::rng::Rng;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Work that one thread of a job has left is 0 below this, s.
const NOTHING: f64 = 1e-9;

/// A number with a total order, smallest first in a heap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Least(pub f64);

impl Eq for Least {}

impl PartialOrd for Least {
    fn partial_cmp(&self, other: &Least) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Least {
    fn cmp(&self, other: &Least) -> Ordering {
        other.0.total_cmp(&self.0)
    }
}

/// A VM under way.
#[derive(Debug)]
struct Guest {
    vcpu: u32,
    /// Hardware threads that it is pinned to; empty when it floats.
    pins: Vec<usize>,
    /// Guest threads that want to run.
    threads: u32,
    /// vCPUs on hardware threads: the lesser of `threads` and `vcpu`.
    active: u32,
    /// Work that a thread which has always been runnable would have done, s.
    progress: f64,
    /// Work that all its vCPUs do in a second, s.
    speed: f64,
    /// Of `progress` per second.
    rate: f64,
    /// Jobs by the progress at which they are done, with their width and query.
    jobs: BinaryHeap<(Least, u32, usize)>,
}

/// A server under way.
#[derive(Debug)]
pub(super) struct Host {
    cores: usize,
    /// VMs on each hardware thread, by their index in `guests`; thread t belongs to core t mod P.
    queues: Vec<Vec<u32>>,
    guests: Vec<Guest>,
    physics: Physics,
    /// Until when `progress` is counted, s.
    now: f64,
    /// When vCPUs are moved next, s.
    mix_at: f64,
    /// Whether a vCPU came, went or moved since the speeds were computed.
    changed: bool,
    /// vCPUs that wait for a hardware thread, those that are runnable, and whether any shares a core.
    waiting: f64,
    runnable: f64,
    shared: bool,
    /// vCPU seconds spent waiting for a hardware thread, and runnable.
    pub waited_s: f64,
    pub runnable_s: f64,
    rng: Rng,
    /// Counts changes, so that a stale entry of the calendar is known.
    pub version: u64,
}

impl Host {
    pub fn new(server: &Server, vcpus: &[u32], pinned: bool, physics: Physics, seed: u64) -> Host {
        let cores = (server.cores_left().floor() as usize).max(1);
        let threads = (server.threads_left().floor() as usize).max(cores);
        // Whole cores: the threads of one core are neighbours in this list.
        let mut by_core: Vec<usize> = (0..threads).collect();
        by_core.sort_by_key(|thread| (thread % cores, *thread));
        let mut free = by_core.into_iter();
        let guest = |vcpu: &u32| Guest {
            vcpu: *vcpu,
            pins: if pinned { free.by_ref().take(*vcpu as usize).collect() } else { Vec::new() },
            threads: 0,
            active: 0,
            progress: 0.0,
            speed: 0.0,
            rate: 0.0,
            jobs: BinaryHeap::new(),
        };
        let mut rng = Rng::new(seed);
        let mix_at = physics.mix_s * rng.unit_f64();
        Host {
            cores,
            queues: vec![Vec::new(); threads],
            guests: vcpus.iter().map(guest).collect(),
            physics,
            now: 0.0,
            mix_at,
            changed: false,
            waiting: 0.0,
            runnable: 0.0,
            shared: false,
            waited_s: 0.0,
            runnable_s: 0.0,
            rng,
            version: 0,
        }
    }

    /// Lets time pass until `at`; no job ends before.
    fn pass(&mut self, at: f64) {
        let passed = (at - self.now).max(0.0);
        self.waited_s += self.waiting * passed;
        self.runnable_s += self.runnable * passed;
        for guest in &mut self.guests {
            guest.progress += guest.rate * passed;
        }
        self.now = self.now.max(at);
    }

    /// Adds a job: `width` threads with `work_s` each.
    pub fn start(&mut self, at: f64, guest: usize, (width, work_s): (u32, f64), query: usize) {
        self.pass(at);
        let of = &mut self.guests[guest];
        of.jobs.push((Least(of.progress + work_s), width, query));
        of.threads += width;
        self.occupy(guest);
    }

    /// Queries of the jobs that are done by `at`; vCPUs are moved when it is time.
    pub fn finish(&mut self, at: f64) -> Vec<usize> {
        self.pass(at);
        let mut done = Vec::new();
        for guest in 0..self.guests.len() {
            let of = &mut self.guests[guest];
            // What is left takes no time that a clock of doubles could tell.
            let due = of.progress + NOTHING.max(of.progress * 1e-12);
            let before = done.len();
            while of.jobs.peek().is_some_and(|(end, ..)| end.0 <= due) {
                if let Some((_, width, query)) = of.jobs.pop() {
                    of.threads -= width;
                    done.push(query);
                }
            }
            if done.len() > before {
                self.occupy(guest);
            }
        }
        if at >= self.mix_at {
            self.mix();
            self.mix_at = at + self.physics.mix_s;
        }
        done
    }

    /// Brings the number of a guest's vCPUs on hardware threads to what its threads need.
    fn occupy(&mut self, guest: usize) {
        let of = &self.guests[guest];
        let want = of.threads.min(of.vcpu);
        let id = u32::try_from(guest).unwrap_or(u32::MAX);
        self.changed |= of.active != want;
        while self.guests[guest].active < want {
            let thread = match self.guests[guest].pins.get(self.guests[guest].active as usize) {
                Some(pin) => *pin,
                None => self.best_thread(),
            };
            self.queues[thread].push(id);
            self.guests[guest].active += 1;
        }
        while self.guests[guest].active > want {
            let active = self.guests[guest].active as usize;
            let pin = self.guests[guest].pins.get(active - 1).copied();
            let Some(thread) = pin.or_else(|| self.some_thread_of(id)) else { break };
            if let Some(place) = self.queues[thread].iter().position(|one| *one == id) {
                self.queues[thread].swap_remove(place);
            }
            self.guests[guest].active -= 1;
            if pin.is_none() && self.queues[thread].is_empty() {
                self.pull(thread);
            }
        }
    }

    /// Busy threads of the core of `thread`.
    fn busy_beside(&self, thread: usize) -> usize {
        self.queues
            .iter()
            .skip(thread % self.cores)
            .step_by(self.cores)
            .filter(|queue| !queue.is_empty())
            .count()
    }

    /// Where a vCPU that wakes goes: an idle core, then an idle thread, then the shortest queue.
    fn best_thread(&mut self) -> usize {
        let threads = self.queues.len();
        let from = self.rng.below(threads as u64) as usize;
        let cost = |thread: usize| match self.queues[thread].len() {
            0 => self.busy_beside(thread),
            length => length * threads,
        };
        let mut best = (usize::MAX, from);
        for step in 0..threads {
            let thread = (from + step) % threads;
            let cost = cost(thread);
            if cost < best.0 {
                best = (cost, thread);
            }
            if cost == 0 {
                break;
            }
        }
        best.1
    }

    fn some_thread_of(&mut self, id: u32) -> Option<usize> {
        let threads = self.queues.len();
        let from = self.rng.below(threads as u64) as usize;
        (0..threads).map(|step| (from + step) % threads).find(|thread| self.queues[*thread].contains(&id))
    }

    /// A hardware thread that ran dry takes from the longest queue, or from a core with several busy threads.
    fn pull(&mut self, idle: usize) {
        let length = |queue: &Vec<u32>| queue.len();
        let Some(longest) = (0..self.queues.len()).max_by_key(|thread| length(&self.queues[*thread])) else {
            return;
        };
        let from = if self.queues[longest].len() > 1 {
            longest
        } else if self.busy_beside(idle) == 0 {
            match (0..self.queues.len())
                .find(|thread| !self.queues[*thread].is_empty() && self.busy_beside(*thread) > 1)
            {
                Some(shared) => shared,
                None => return,
            }
        } else {
            return;
        };
        if let Some(vcpu) = self.queues[from].pop() {
            self.queues[idle].push(vcpu);
        }
    }

    /// Moves every vCPU somewhere else; queues keep their lengths.
    fn mix(&mut self) {
        if !self.shared || self.guests.iter().any(|guest| !guest.pins.is_empty()) {
            return;
        }
        let mut all: Vec<u32> = self.queues.iter().flatten().copied().collect();
        self.rng.shuffle(&mut all);
        let mut all = all.into_iter();
        for queue in &mut self.queues {
            let length = queue.len();
            queue.clear();
            queue.extend(all.by_ref().take(length));
        }
        self.changed = true;
    }

    /// When something happens here next, s; `None` while nothing runs.
    pub fn next(&mut self) -> Option<f64> {
        if self.changed {
            self.speeds();
        }
        for guest in &mut self.guests {
            guest.rate = if guest.threads == 0 { 0.0 } else { guest.speed / f64::from(guest.threads) };
        }
        self.version += 1;
        let end = |guest: &Guest| {
            let (end, ..) = guest.jobs.peek()?;
            (guest.rate > 0.0).then(|| self.now + ((end.0 - guest.progress) / guest.rate).max(0.0))
        };
        let first = self.guests.iter().filter_map(end).min_by(f64::total_cmp)?;
        // Where nobody shares a core, it does not matter who is where.
        let mixes = self.shared && self.physics.mix_s > 0.0;
        Some(if mixes { first.min(self.mix_at.max(self.now)) } else { first })
    }

    fn speeds(&mut self) {
        self.changed = false;
        let per_core = self.queues.len().div_ceil(self.cores);
        let mut busy_threads = vec![0_usize; self.cores];
        for (thread, queue) in self.queues.iter().enumerate() {
            busy_threads[thread % self.cores] += usize::from(!queue.is_empty());
        }
        let busy_cores = busy_threads.iter().filter(|busy| **busy > 0).count();
        let speed = self.speed(busy_cores);
        let mut sums = vec![0.0; self.guests.len()];
        for (thread, queue) in self.queues.iter().enumerate() {
            let busy = busy_threads[thread % self.cores];
            let core = match busy {
                0 => continue,
                1 => 1.0,
                busy => {
                    (1.0 + (self.physics.smt_gain - 1.0) * (busy - 1) as f64 / (per_core - 1) as f64)
                        / busy as f64
                }
            };
            let each = speed * core / queue.len() as f64;
            for guest in queue {
                sums[*guest as usize] += each;
            }
        }
        for (guest, sum) in self.guests.iter_mut().zip(sums) {
            guest.speed = sum;
        }
        self.waiting = self.queues.iter().map(|queue| queue.len().saturating_sub(1)).sum::<usize>() as f64;
        self.runnable = self.queues.iter().map(Vec::len).sum::<usize>() as f64;
        self.shared = self.runnable > busy_cores as f64;
    }

    fn speed(&self, busy: usize) -> f64 {
        let Physics { all_core, full_speed, .. } = self.physics;
        let share = busy as f64 / self.cores as f64;
        let beyond =
            if full_speed < 1.0 { ((share - full_speed) / (1.0 - full_speed)).clamp(0.0, 1.0) } else { 0.0 };
        1.0 - (1.0 - all_core) * beyond
    }

    /// Mean time that a datagram to this guest waits before somebody reads it, s: for a hardware thread, then for a vCPU.
    pub fn answer_s(&self, guest: usize) -> f64 {
        let queued = (self.runnable / self.queues.len() as f64 - 1.0).max(0.0);
        let of = &self.guests[guest];
        let inside = (f64::from(of.threads) / f64::from(of.vcpu) - 1.0).max(0.0);
        // A guest's slice lasts as long as its vCPU is off the hardware thread, too.
        self.physics.slice_s * (queued + inside * (1.0 + queued))
    }
}

//! The command `agent canary`. Asks the agent to remove isolation for short windows, and evaluates the measurements
//! with the lab's statistics.

mod report;

use super::Canary;
use crate::context::Context;
use crate::signals::stop_flag;
use anyhow::{Context as _, anyhow};
use commensal_agent::canary::{Report, Request};
use commensal_agent::client::{self, ClientError};
use commensal_agent::control::{Done, SOCKET};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Keep-alive interval; the agent's timeout is ten times as long.
const ALIVE: Duration = Duration::from_millis(500);
/// Interval between checks of the stop flag.
const PAUSE: Duration = Duration::from_millis(50);
/// Number of consecutive requests that may fail: the agent may be in the middle of a long tick.
const UNANSWERED: u32 = 3;

/// Runs a canary. The exit status is that of the verdict, or 2 when the canary could not be carried out.
pub fn run(context: &mut Context, options: &Canary) -> anyhow::Result<u8> {
    let socket = context.state_dir.join(SOCKET);
    let request = request(options);
    request.terms().check().map_err(|error| anyhow!(error))?;
    let stop = stop_flag(&context.host).context("cannot watch for Ctrl-C")?;
    // Printed to standard error with --json, since standard output must be one document.
    let before = report::before(&request);
    match options.json {
        true => eprint!("{before}"),
        false => print!("{before}"),
    }
    crate::output::flush();
    // Until the next tick has finished, the agent still returns the report of the previous canary.
    let last = client::get::<Report>(&context.host, &socket, "/v1/canary").ok();
    client::post_json::<Done>(&context.host, &socket, "/v1/canary/start", &request)?;
    let report = follow(context, &socket, &stop, last.map(|answer| answer.body.began).as_deref())?;
    let answer = report::judge(&report);
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&answer.as_json(&report))?);
    } else {
        print!("{}", answer.text(&report));
    }
    Ok(answer.verdict.exit_code())
}

fn request(options: &Canary) -> Request {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs());
    Request {
        length_ms: ms(options.r#for),
        window_ms: ms(options.window),
        settle_ms: ms(options.settle.unwrap_or(options.window / 5)),
        off_pct: options.off,
        seed: options.seed.unwrap_or_else(clock),
        whole: options.whole,
        max_blamed_ms: options.max_blamed,
        max_run_delay: options.max_run_delay,
    }
}

/// Sends keep-alives to the agent until the canary has ended. Ctrl-C stops the canary.
fn follow(context: &Context, socket: &Path, stop: &AtomicBool, last: Option<&str>) -> anyhow::Result<Report> {
    let (mut stopped, mut unanswered) = (false, 0);
    loop {
        let path = match stop.load(Ordering::Relaxed) && !stopped {
            true => "/v1/canary/stop",
            false => "/v1/canary/alive",
        };
        let mut trouble = match client::post::<Done>(&context.host, socket, path) {
            Ok(_) => {
                stopped |= path.ends_with("stop");
                None
            }
            Err(error @ (ClientError::NoAgent(_) | ClientError::Strange { .. })) => return gone(&error),
            Err(error) => Some(error),
        };
        match client::get::<Report>(&context.host, socket, "/v1/canary") {
            Ok(answer) if last == Some(&answer.body.began) => {}
            Ok(answer) if answer.body.ended.is_some() => return Ok(answer.body),
            Ok(_) => trouble = None,
            Err(error) => trouble = trouble.or(Some(error)),
        }
        // Two possible causes: the agent is in a long tick, or another agent has replaced the one that ran the canary.
        match trouble {
            None => unanswered = 0,
            Some(error) if unanswered >= UNANSWERED => return gone(&error),
            Some(_) => unanswered += 1,
        }
        let mut waited = Duration::ZERO;
        while waited < ALIVE && (stopped || !stop.load(Ordering::Relaxed)) {
            std::thread::sleep(PAUSE);
            waited += PAUSE;
        }
    }
}

fn gone(error: &ClientError) -> anyhow::Result<Report> {
    Err(anyhow!(
        "the agent that ran the canary no longer responds: {error}; an agent turns isolation on again \
         when it exits, and if it crashes or is killed, its guard does"
    ))
}

//! The command `top`: the live view. A separate thread queries the agent once a second, so that keys work even while
//! the agent does not respond.

use super::agent::{sockets, unanswered};
use super::args::Top;
use crate::context::Context;
use crate::signals;
use anyhow::Context as _;
use commensal_agent::client::{self, Answer, ClientError};
use commensal_agent::snapshot::Snapshot;
use commensal_agent::top::{Asked, SCREEN, Top as View, draw};
use commensal_host::{LinuxHost, Source, Waker};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Interval between queries.
const EVERY: Duration = Duration::from_secs(1);
/// Interval at which input and the stop flag are checked.
const POLL: Duration = Duration::from_millis(100);

type News = Result<Answer<Snapshot>, ClientError>;

/// Shows the live view until `q`, or one screen as text.
pub fn run(context: &mut Context, options: &Top) -> anyhow::Result<u8> {
    let sockets = sockets(context);
    // https://no-color.org: any value except the empty one disables colours.
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut view = View::new(colour);
    // The first query is sent before the terminal shows the live view: without an agent there is nothing to show.
    let first = client::find::<Snapshot>(&context.host, &sockets, "/v1/snapshot");
    let (socket, first) = first.map_err(|error| unanswered(context, error))?;
    let socket = socket.to_owned();
    view.latest = Some((Arc::new(first.body), first.age));
    let terminal = std::io::stdout().is_terminal();
    if options.once || !terminal {
        let size = ratatui::crossterm::terminal::size().ok().filter(|_| terminal);
        print!("{}", view.once(size.unwrap_or(SCREEN).0));
        return Ok(0);
    }
    let stop = signals::stop_flag(&context.host).context("cannot watch for Ctrl-C")?;
    let news = questions(socket)?;
    end_with_terminal().context("cannot watch the terminal")?;
    // This value also restores the terminal after a panic.
    let mut terminal =
        ratatui::try_init().context("the terminal cannot be set up; `--once` prints a screen as text")?;
    let outcome = watch(&mut terminal, &mut view, &news, &stop);
    ratatui::restore();
    outcome.context("the terminal was closed")?;
    Ok(0)
}

/// Ends the process as soon as its terminal goes: crossterm reads from a terminal that was hung up for ever, and never
/// returns.
fn end_with_terminal() -> std::io::Result<()> {
    let waker = Waker::new()?;
    let gone = move || {
        let (input, output) = (std::io::stdin(), std::io::stdout());
        let mut terminals = vec![Source::closed(output.as_fd())];
        terminals.extend(input.is_terminal().then(|| Source::closed(input.as_fd())));
        loop {
            match waker.wait(&terminals, Duration::MAX) {
                Ok(gone) if gone.contains(&true) => std::process::exit(2),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    };
    std::thread::Builder::new().name("terminal".to_owned()).spawn(gone).map(drop)
}

fn ask(host: &LinuxHost, socket: &Path) -> News {
    client::get(host, socket, "/v1/snapshot")
}

/// Queries the agent periodically and sends the responses to the returned channel, until its receiver is dropped.
fn questions(socket: PathBuf) -> anyhow::Result<Receiver<News>> {
    let (sender, news) = channel();
    let asking = move || {
        let host = LinuxHost::new();
        loop {
            std::thread::sleep(EVERY);
            if sender.send(ask(&host, &socket)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("top".to_owned()).spawn(asking)?;
    Ok(news)
}

fn watch(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    news: &Receiver<News>,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    let mut came = Instant::now();
    let mut first_age = view.latest.as_ref().map_or(Duration::ZERO, |(_, age)| *age);
    terminal.draw(|frame| draw(frame, view))?;
    while !stop.load(Ordering::Relaxed) {
        let mut changed = false;
        match news.try_recv() {
            Ok(Ok(answer)) => {
                if !view.held {
                    (came, first_age) = (Instant::now(), answer.age);
                    view.latest = Some((Arc::new(answer.body), answer.age));
                }
                view.gone = None;
                changed = true;
            }
            Ok(Err(error)) => {
                view.gone = Some(error.to_string());
                changed = true;
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        if let Some((_, age)) = &mut view.latest {
            *age = first_age + came.elapsed();
        }
        if event::poll(POLL)? {
            match event::read()? {
                Event::Key(key) => match view.key(key) {
                    Asked::Quit => return Ok(()),
                    Asked::Draw => changed = true,
                    Asked::Nothing => {}
                },
                Event::Resize(..) => changed = true,
                _ => {}
            }
        }
        if changed {
            terminal.draw(|frame| draw(frame, view))?;
        }
    }
    Ok(())
}

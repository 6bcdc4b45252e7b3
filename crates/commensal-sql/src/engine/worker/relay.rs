//! The server's side of a query in a worker process: sends the query's order, and receives its rows.

use super::super::error::Error;
use super::super::execute::{Event, Held, finish};
use super::Worker;
use super::wire::{self, Decoder, Frame, Order};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// Makes a worker run a query, and forwards the results. The query's place in the queue is released only after the
/// worker has released everything that the query held.
pub async fn relay(held: Held, worker: Arc<Worker>, order: Order, sender: mpsc::Sender<Event>) {
    let query = Arc::clone(held.query());
    query.usage.set_remote();
    let outcome = match worker.open() {
        Ok(mut stream) => {
            let outcome = tokio::select! {
                biased;
                why = query.stopped() => Err(why),
                outcome = receive(&mut stream, &order, &sender) => outcome,
            };
            let _ = stream.shutdown().await;
            let mut rest = [0; 4_096];
            while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
            outcome
        }
        Err(_) => Err(lost()),
    };
    let outcome = match outcome {
        Err(Error::Engine(text)) if text == LOST => Err(worker.lost(&query.home().name).await),
        outcome => outcome,
    };
    finish(held, outcome, &sender).await;
}

/// Error text when a socket is closed in the middle of a response.
const LOST: &str = "the worker has died";

fn lost() -> Error {
    Error::Engine(LOST.to_owned())
}

async fn receive(stream: &mut UnixStream, order: &Order, sender: &mpsc::Sender<Event>) -> Result<(), Error> {
    wire::write_order(stream, order).await.map_err(|_| lost())?;
    let mut decoder = Decoder::default();
    let mut known = false;
    loop {
        match Frame::read(stream).await.map_err(|_| lost())? {
            Frame::End => return Ok(()),
            Frame::Failed(error) => return Err(error),
            Frame::Rows(bytes) => {
                let batches = decoder.add(bytes).map_err(|error| Error::Engine(error.to_string()))?;
                if let Some(schema) = decoder.schema().filter(|_| !known) {
                    known = true;
                    if sender.send(Event::Schema(schema)).await.is_err() {
                        return Ok(());
                    }
                }
                for batch in batches {
                    if sender.send(Event::Batch(batch)).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
}

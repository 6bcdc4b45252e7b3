//! Remote bodies over a real socket: a reader that has to wait makes the sender wait.

use crate::device::{Device, MIB, Model, path, pattern};
use crate::wait::until;
use bytes::Bytes;
use commensal_store::{BytesPerS, GovernedStore, Governor, QueryId, Reach, Settings};
use futures_util::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};

/// Bytes of the object, and bytes per second.
const SIZE: u64 = 32 * MIB;
const RATE: u64 = 32 * MIB;

/// What the sender got rid of, and how many bodies it is sending.
#[derive(Default)]
struct Sender {
    sent: AtomicU64,
    open: AtomicU64,
}

impl Sender {
    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Sends ranges as fast as they are taken.
async fn server() -> (SocketAddr, Arc<Sender>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(128 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(64).unwrap();
    let address = listener.local_addr().unwrap();
    let sender = Arc::<Sender>::default();
    let (object, shared) = (pattern(SIZE), Arc::clone(&sender));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (object, sender) = (object.clone(), Arc::clone(&shared));
            sender.open.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                answer(socket, object, &sender).await;
                sender.open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    (address, sender)
}

async fn answer(mut socket: TcpStream, object: Bytes, sender: &Sender) {
    let mut line = String::new();
    BufReader::new(&mut socket).read_line(&mut line).await.unwrap();
    let (start, end) = line.trim().split_once(' ').unwrap();
    let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
    let body = object.slice(start..end);
    for piece in body.chunks(16 << 10) {
        // A client that goes away is no fault.
        if socket.write_all(piece).await.is_err() {
            return;
        }
        sender.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
    }
}

async fn remote(request: u64) -> (GovernedStore<Device>, Governor, Arc<Sender>) {
    let (address, sender) = server().await;
    let device = Device::with(Model { server: Some(address), ..Model::default() }, SIZE).await;
    let settings = Settings { request, ..Settings::of(Reach::Remote) };
    let governor = Governor::with(settings, Some(BytesPerS(RATE)));
    (GovernedStore::new(Arc::new(device), governor.query(QueryId(1))), governor, sender)
}

/// What the sender is rid of and the reader has not got is in the buffers of two sockets, a quarter of a mebibyte each with
/// what the kernel adds, and not the rest of the object.
// promise 44
#[tokio::test]
async fn a_body_that_is_not_paid_for_stays_with_its_sender() {
    const BUFFERS: u64 = 4 * MIB;
    let (store, governor, sender) = remote(SIZE).await;
    let mut body = store.get(&path()).await.unwrap().into_stream();
    let mut got = Vec::new();
    while let Some(bytes) = body.try_next().await.unwrap() {
        got.extend_from_slice(&bytes);
        let ahead = sender.sent().saturating_sub(got.len() as u64);
        assert!(ahead <= BUFFERS, "{ahead} bytes ahead");
    }
    assert!(got == pattern(SIZE));
    assert!(governor.statistics().waits > 0);
    // A reader that goes away leaves the rest where it is.
    let before = sender.sent();
    let mut body = store.get(&path()).await.unwrap().into_stream();
    body.try_next().await.unwrap();
    drop(body);
    until("the sender has noticed", || sender.open.load(Ordering::Relaxed) == 0).await;
    assert!(sender.sent() - before <= BUFFERS);
}

/// Whatever the sockets hold: no more than the two requests that are under way.
#[tokio::test]
async fn ranges_are_asked_for_in_bounded_requests() {
    let (store, governor, sender) = remote(MIB).await;
    let watched = tokio::spawn(async move {
        let mut most = 0;
        until("all is delivered", || {
            let delivered = governor.statistics().delivered_bytes;
            most = most.max(sender.sent().saturating_sub(delivered));
            delivered >= SIZE
        })
        .await;
        (most, governor.statistics())
    });
    let got = store.get_ranges(&path(), &[0..SIZE / 2, SIZE / 2..SIZE]).await.unwrap();
    assert!(got[0] == pattern(SIZE)[..(SIZE / 2) as usize] && got[1] == pattern(SIZE)[(SIZE / 2) as usize..]);
    let (most, statistics) = watched.await.unwrap();
    assert!(most <= 2 * MIB, "{most} bytes ahead");
    assert!(statistics.waits > 0, "{statistics:?}");
}

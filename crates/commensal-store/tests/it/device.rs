//! A store with a slow device beneath it, which writes down when bytes left it, and can fail. Its delays pass on the paused clock
//! of the tests. Also in an example.
#![allow(clippy::unwrap_used, reason = "a test says what failed by failing there")]

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::Instant;

pub const MIB: u64 = 1 << 20;
/// The object that tests read.
pub const OBJECT: &str = "hits";

pub fn path() -> Path {
    Path::from(OBJECT)
}

/// Bytes that tell where they are from; they repeat after a prime number of them, so no piece is like the next.
pub fn pattern(length: u64) -> Bytes {
    const PERIOD: u64 = 65_521;
    let length = usize::try_from(length).unwrap();
    let one: Vec<u8> = (0..PERIOD).map(|at| (at.wrapping_mul(2_654_435_761) >> 7).to_le_bytes()[0]).collect();
    let mut all = one.repeat(length / one.len() + 1);
    all.truncate(length);
    all.into()
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Every n-th request is refused.
    Refuses(usize),
    /// Bodies end after so many bytes, without an error.
    Ends(usize),
    /// Bodies fail after so many bytes.
    Breaks(usize),
}

/// How the device is.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    pub request: Duration,
    /// How long a mebibyte takes; each reader by itself.
    pub mib: Duration,
    pub frame: usize,
    pub fault: Fault,
    /// Bodies come from there, over TCP.
    pub server: Option<SocketAddr>,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            request: Duration::ZERO,
            mib: Duration::ZERO,
            frame: 64 << 10,
            fault: Fault::None,
            server: None,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Device {
    inner: Arc<InMemory>,
    model: Model,
    log: Arc<Mutex<Vec<(Instant, u64)>>>,
    requests: Arc<AtomicUsize>,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.inner)
    }
}

impl Device {
    /// With one object of so many bytes.
    pub async fn with(model: Model, bytes: u64) -> Device {
        let inner = Arc::new(InMemory::new());
        inner.put(&path(), pattern(bytes).into()).await.unwrap();
        Device { inner, model, log: Arc::default(), requests: Arc::default() }
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// All bytes that left the device.
    pub fn moved(&self) -> u64 {
        self.log.lock().unwrap().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes in each of so many windows of this length, from `from` on.
    pub fn windows(&self, from: Instant, length: Duration, count: usize) -> Vec<u64> {
        let mut windows = vec![0; count];
        for (at, bytes) in self.log.lock().unwrap().iter().filter(|(at, _)| *at >= from) {
            let number = usize::try_from((*at - from).as_nanos() / length.as_nanos()).unwrap();
            if let Some(window) = windows.get_mut(number) {
                *window += bytes;
            }
        }
        windows
    }
}

fn broken(error: std::io::Error) -> object_store::Error {
    object_store::Error::Generic { store: "Device", source: Box::new(error) }
}

/// Asks for a range in one line; what comes is the body. The socket takes in little ahead of its reader.
async fn over_tcp(
    server: SocketAddr,
    range: Range<u64>,
) -> std::io::Result<BoxStream<'static, Result<Bytes>>> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(128 << 10)?;
    let mut socket = socket.connect(server).await?;
    socket.write_all(format!("{} {}\n", range.start, range.end).as_bytes()).await?;
    let body = stream::try_unfold(socket, |mut socket| async move {
        let mut frame = BytesMut::with_capacity(64 << 10);
        let read = socket.read_buf(&mut frame).await.map_err(broken)?;
        Ok((read > 0).then(|| (frame.freeze(), socket)))
    });
    Ok(body.boxed())
}

#[async_trait]
impl ObjectStore for Device {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if let Fault::Refuses(each) = self.model.fault
            && number.is_multiple_of(each)
        {
            return Err(object_store::Error::Generic { store: "Device", source: "refused".into() });
        }
        if !self.model.request.is_zero() {
            // The device's own time.
            tokio::time::sleep(self.model.request).await;
        }
        let result = self.inner.get_opts(location, options).await?;
        let GetResult { payload, meta, range, attributes } = result;
        let GetResultPayload::Stream(mut body) = payload else { panic!("memory has no files") };
        if let Some(server) = self.model.server {
            let body = over_tcp(server, range.clone()).await.map_err(broken)?;
            return Ok(GetResult { payload: GetResultPayload::Stream(body), meta, range, attributes });
        }
        let mut all = body.next().await.transpose()?.unwrap_or_default();
        if let Fault::Ends(after) = self.model.fault {
            all.truncate(after);
        }
        let state = (all, self.clone(), 0usize, Instant::now());
        let body = stream::unfold(state, |(mut left, device, sent, at)| async move {
            if left.is_empty() {
                return None;
            }
            if let Fault::Breaks(after) = device.model.fault
                && sent >= after
            {
                let broken = object_store::Error::Generic { store: "Device", source: "broken pipe".into() };
                return Some((Err(broken), (Bytes::new(), device, sent, at)));
            }
            let frame = left.split_to(left.len().min(device.model.frame));
            // Until a point in time, so that what a timer rounds up does not add up.
            let busy = device.model.mib.mul_f64(frame.len() as f64 / MIB as f64);
            let at = at.max(Instant::now() - busy) + busy;
            if !busy.is_zero() {
                // The device's own time.
                tokio::time::sleep_until(at).await;
            }
            device.log.lock().unwrap().push((Instant::now(), frame.len() as u64));
            let sent = sent + frame.len();
            Some((Ok(frame), (left, device, sent, at)))
        });
        Ok(GetResult { payload: GetResultPayload::Stream(body.fuse().boxed()), meta, range, attributes })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

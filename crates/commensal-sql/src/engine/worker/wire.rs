//! Messages between the server and a worker process.
//!
//! The messages use two kinds of unnamed Unix sockets, so that no other process can connect:
//!
//! * One `SOCK_SEQPACKET` socket for each worker, as its standard input; every message is JSON. The server sends
//!   settings and, for each query, one end of the query's own socket (`SCM_RIGHTS`, unix(7)). The worker sends a report
//!   every tick. When either side closes the socket, the worker exits.
//! * One `SOCK_STREAM` socket for each query: the server sends the [`Order`], and the worker sends [frames](Frame). A
//!   slow reader only slows down its own query, and closing the socket cancels the query.

use super::super::error::Error;
use super::super::settings::Settings;
use super::super::terms::PlanOptions;
use super::super::waits::Waits;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::ipc::reader::StreamDecoder;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::common::ScalarValue;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum size of a message on a worker's socket, in bytes: a little less than the usual default send buffer of the
/// kernel (`net.core.wmem_default`).
const LONGEST: usize = 200 << 10;

/// Maximum size of a frame and of an order, in bytes. Batches have a few MiB at most.
const LONGEST_FRAME: u32 = 1 << 30;

/// Message from the server to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToWorker {
    /// New settings of the worker's group.
    Settings(Settings),
    /// A query; its socket is attached to the message.
    Query,
}

/// Message from a worker to the server.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToServer {
    /// The worker is ready for queries.
    Ready,
    /// Resource usage so far.
    Report(Report),
}

/// Resource usage of a worker since it started.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// CPU time of the process, in nanoseconds.
    pub cpu_ns: u64,
    /// Time throttled by the kernel's quota, plus time spent waiting for CPU tokens, in nanoseconds.
    pub throttled_ns: u64,
    /// Whether the kernel enforces the CPU limit.
    pub quota: bool,
    /// Memory that operators have not reserved, in bytes.
    pub untracked_bytes: usize,
    /// Reads by source.
    pub reads: Vec<Reads>,
    /// Running queries.
    pub queries: Vec<QueryUse>,
}

/// Reads from a device or a remote store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reads {
    /// Whether the source is a remote store, not a device.
    pub remote: bool,
    /// Name of the source.
    pub source: String,
    /// Bytes read in the last full second.
    pub last_second_bytes: u64,
    /// Bytes read in total.
    pub delivered_bytes: u64,
    /// Number of read calls.
    pub requests: u64,
    /// Number of reads that had to wait for the rate limiter.
    pub waits: u64,
    /// Total waiting time of those reads, in milliseconds.
    pub waited_ms: u64,
    /// Number of reads that wait now.
    pub waiting: u64,
}

impl Reads {
    /// Adds up two lists of reads, source by source.
    #[must_use]
    pub fn summed(one: &[Reads], other: &[Reads]) -> Vec<Reads> {
        let mut all: Vec<Reads> = one.to_vec();
        for reads in other {
            let same = |known: &&mut Reads| known.remote == reads.remote && known.source == reads.source;
            match all.iter_mut().find(same) {
                None => all.push(reads.clone()),
                Some(sum) => {
                    sum.last_second_bytes += reads.last_second_bytes;
                    sum.delivered_bytes += reads.delivered_bytes;
                    sum.requests += reads.requests;
                    sum.waits += reads.waits;
                    sum.waited_ms += reads.waited_ms;
                    sum.waiting += reads.waiting;
                }
            }
        }
        all
    }
}

/// Resource usage of a query.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryUse {
    /// Number of the query.
    pub number: u64,
    /// Bytes reserved now.
    pub held: usize,
    /// Peak of the reserved bytes.
    pub peak: usize,
    /// CPU time, in nanoseconds.
    pub cpu_ns: u64,
    /// Rows that the query's scans have produced.
    pub scan_rows: u64,
    /// Bytes read from local disks.
    pub local_bytes: u64,
    /// Bytes read from remote stores.
    pub remote_bytes: u64,
    /// Bytes spilled.
    pub spilled_bytes: u64,
    /// Bytes read back from spill files.
    pub unspilled_bytes: u64,
    /// How long the query has waited in the worker.
    pub waits: Waits,
}

/// A query for a worker: the statement as its user wrote it, and everything else that the worker needs to run it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Number of the query in the server.
    pub number: u64,
    /// Identifier of the query in the server.
    pub id: String,
    /// The user who runs the query.
    pub user: String,
    /// Host of the user.
    pub host: String,
    /// The statement.
    pub statement: StatementText,
    /// Slots that the query takes in its group's queue.
    pub slots: u32,
    /// The query's own memory limit, in bytes. A query that uses less than this has precedence over other queries.
    pub memory_limit: Option<usize>,
    /// How the statement is planned and run.
    pub options: PlanOptions,
}

/// A statement in the form that a worker process parses again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatementText {
    /// The statement for the query engine, as its user wrote it.
    pub text: String,
    /// Values of the session's names in the statement.
    pub names: Vec<(String, String)>,
    /// Values of the placeholders, as one row of an Arrow stream.
    pub values: Vec<u8>,
}

/// A part of a worker's response.
#[derive(Debug)]
pub enum Frame {
    /// Bytes of an Arrow stream.
    Rows(Vec<u8>),
    /// The last frame: the query failed.
    Failed(Error),
    /// The last frame: all rows were sent.
    End,
}

/// Sends a message, with a file descriptor if one is given.
///
/// # Errors
/// The other side has closed the socket, or the message is too long.
pub fn send(socket: impl AsFd, message: &impl Serialize, with: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    if text.len() > LONGEST {
        return Err(io::Error::other(format!("a message of {} bytes is too long", text.len())));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = with.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits for a message; returns `None` if the other side has closed the socket.
///
/// # Errors
/// The socket failed, or the message is not a valid `T`.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut text = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(text.get(..received.bytes).unwrap_or_default())?;
    Ok(Some((message, descriptor)))
}

/// Writes an order.
///
/// # Errors
/// The worker has closed the socket.
pub async fn write_order(to: &mut (impl AsyncWrite + Unpin), order: &Order) -> io::Result<()> {
    let text = serde_json::to_vec(order)?;
    to.write_u32(length(&text)?).await?;
    to.write_all(&text).await
}

/// Reads an order.
///
/// # Errors
/// The server has closed the socket.
pub async fn read_order(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Order> {
    let length = from.read_u32().await?;
    Ok(serde_json::from_slice(&bytes(from, length).await?)?)
}

fn length(bytes: &[u8]) -> io::Result<u32> {
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= LONGEST_FRAME);
    length.ok_or_else(|| io::Error::other(format!("{} bytes are too many for one frame", bytes.len())))
}

async fn bytes(from: &mut (impl AsyncRead + Unpin), length: u32) -> io::Result<Vec<u8>> {
    if length > LONGEST_FRAME {
        return Err(io::Error::other(format!("a frame of {length} bytes is too long")));
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes).await?;
    Ok(bytes)
}

impl Frame {
    /// Writes the frame.
    ///
    /// # Errors
    /// The server has closed the socket.
    pub async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let failed;
        let (tag, bytes) = match self {
            Frame::Rows(bytes) => (b'R', bytes.as_slice()),
            Frame::Failed(error) => {
                failed = serde_json::to_vec(error)?;
                (b'F', failed.as_slice())
            }
            Frame::End => (b'E', [].as_slice()),
        };
        to.write_u8(tag).await?;
        to.write_u32(length(bytes)?).await?;
        to.write_all(bytes).await?;
        to.flush().await
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// The worker has closed the socket (`UnexpectedEof`), or has sent an unknown frame.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
        let tag = from.read_u8().await?;
        let length = from.read_u32().await?;
        let bytes = bytes(from, length).await?;
        match tag {
            b'R' => Ok(Frame::Rows(bytes)),
            b'F' => Ok(Frame::Failed(serde_json::from_slice(&bytes)?)),
            b'E' => Ok(Frame::End),
            other => Err(io::Error::other(format!("a frame of the unknown kind {other}"))),
        }
    }
}

/// Encodes rows as an Arrow stream, piece by piece.
pub struct Encoder(StreamWriter<Vec<u8>>);

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encoder")
    }
}

impl Encoder {
    /// Starts the stream with the schema. Arrow's decoder processes a message without a body, such as the schema, only
    /// when the next message begins.
    ///
    /// # Errors
    /// A column has a type that Arrow's stream format does not support.
    pub fn new(schema: &SchemaRef) -> Result<Encoder, ArrowError> {
        let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
        writer.write(&RecordBatch::new_empty(Arc::clone(schema)))?;
        Ok(Encoder(writer))
    }

    /// Adds rows.
    ///
    /// # Errors
    /// A column has a type that Arrow's stream format does not support.
    pub fn add(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        self.0.write(batch)
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// Never, because it writes to memory.
    pub fn finish(&mut self) -> Result<(), ArrowError> {
        self.0.finish()
    }

    /// Takes the bytes that were encoded since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.0.get_mut())
    }
}

/// Decodes the stream of an [`Encoder`].
#[derive(Debug, Default)]
pub struct Decoder(StreamDecoder);

impl Decoder {
    /// Adds bytes, and returns the batches that are now complete.
    ///
    /// # Errors
    /// The bytes are not an Arrow stream.
    pub fn add(&mut self, bytes: Vec<u8>) -> Result<Vec<RecordBatch>, ArrowError> {
        let mut buffer = Buffer::from_vec(bytes);
        let mut batches = Vec::new();
        while !buffer.is_empty() {
            batches.extend(self.0.decode(&mut buffer)?.filter(|batch| batch.num_rows() > 0));
        }
        Ok(batches)
    }

    /// Returns the schema, once it has been received.
    #[must_use]
    pub fn schema(&self) -> Option<SchemaRef> {
        self.0.schema()
    }
}

/// Encodes values as one row of an Arrow stream.
///
/// # Errors
/// A value has a type that Arrow's stream format does not support.
pub fn pack(values: &[ScalarValue]) -> Result<Vec<u8>, Error> {
    if values.is_empty() {
        return Ok(Vec::new());
    }
    let columns: Vec<_> = values.iter().map(ScalarValue::to_array).collect::<Result<_, _>>()?;
    let field = |(at, value): (usize, &ScalarValue)| Field::new(format!("v{at}"), value.data_type(), true);
    let fields: Vec<Field> = values.iter().enumerate().map(field).collect();
    let words = |error: ArrowError| Error::Engine(error.to_string());
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(words)?;
    let mut encoder = Encoder::new(&batch.schema()).map_err(words)?;
    encoder.add(&batch).and_then(|()| encoder.finish()).map_err(words)?;
    Ok(encoder.take())
}

/// Decodes values that [`pack`] has encoded.
///
/// # Errors
/// The bytes are not an Arrow stream.
pub fn unpack(bytes: Vec<u8>) -> Result<Vec<ScalarValue>, Error> {
    let batches = Decoder::default().add(bytes).map_err(|error| Error::Engine(error.to_string()))?;
    let columns = batches.iter().flat_map(RecordBatch::columns);
    Ok(columns.map(|column| ScalarValue::try_from_array(column, 0)).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{ArrayRef, Int64Array, NullArray, StringArray};

    #[test]
    fn messages_and_descriptors_pass() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        send(&one, &ToWorker::Query, Some(far.as_fd())).unwrap();
        let report = Report { cpu_ns: 7, queries: vec![QueryUse::default(); 500], ..Report::default() };
        send(&one, &ToServer::Report(report), None).unwrap();
        drop(far);
        let (message, descriptor) = receive::<ToWorker>(&other).unwrap().unwrap();
        assert!(matches!(message, ToWorker::Query));
        use std::io::{Read, Write};
        (&near).write_all(b"x").unwrap();
        let mut got = [0];
        std::os::unix::net::UnixStream::from(descriptor.unwrap()).read_exact(&mut got).unwrap();
        assert_eq!(got, *b"x");
        let (message, none) = receive::<ToServer>(&other).unwrap().unwrap();
        let ToServer::Report(report) = message else { panic!("{message:?}") };
        assert_eq!((report.cpu_ns, report.queries.len(), none.is_none()), (7, 500, true));
        send(&one, &"neither", None).unwrap();
        assert!(receive::<ToWorker>(&other).is_err());
        drop(one);
        assert!(receive::<ToWorker>(&other).unwrap().is_none());
    }

    #[tokio::test]
    async fn frames_pass() {
        let rows = |from: i64| {
            let columns: [(&str, ArrayRef); 2] = [
                ("a", Arc::new(Int64Array::from_iter_values(from..from + 3))),
                ("b", Arc::new(StringArray::from(vec![Some("x"), None, Some("")]))),
            ];
            RecordBatch::try_from_iter(columns).unwrap()
        };
        let (mut one, mut other) = tokio::io::duplex(1 << 20);
        let mut encoder = Encoder::new(&rows(0).schema()).unwrap();
        Frame::Rows(encoder.take()).write(&mut one).await.unwrap();
        for from in [0, 3] {
            encoder.add(&rows(from)).unwrap();
            Frame::Rows(encoder.take()).write(&mut one).await.unwrap();
        }
        let nothing = NullArray::new(2);
        let nothing: [(&str, ArrayRef); 1] = [("n", Arc::new(nothing))];
        let nothing = RecordBatch::try_from_iter(nothing).unwrap();
        let mut without_body = Encoder::new(&nothing.schema()).unwrap();
        without_body.add(&nothing).and_then(|()| without_body.finish()).unwrap();
        assert_eq!(Decoder::default().add(without_body.take()).unwrap(), [nothing]);
        Frame::Failed(Error::Memory("enough".to_owned())).write(&mut one).await.unwrap();
        drop(one);
        let mut decoder = Decoder::default();
        let mut batches = Vec::new();
        let error = loop {
            match Frame::read(&mut other).await.unwrap() {
                Frame::Rows(bytes) => batches.extend(decoder.add(bytes).unwrap()),
                Frame::Failed(error) => break error,
                Frame::End => panic!("it failed"),
            }
        };
        assert_eq!(decoder.schema().unwrap(), rows(0).schema());
        assert_eq!(batches, [rows(0), rows(3)]);
        assert_eq!(error, Error::Memory("enough".to_owned()));
        assert_eq!(Frame::read(&mut other).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn values_pass() {
        let values = [
            ScalarValue::Int64(Some(-5)),
            ScalarValue::Utf8(None),
            ScalarValue::Utf8(Some("ü'\0".to_owned())),
            ScalarValue::Null,
            ScalarValue::Float64(Some(1.5)),
            ScalarValue::Binary(Some(vec![0, 255])),
            ScalarValue::Date32(Some(19_000)),
        ];
        assert_eq!(unpack(pack(&values).unwrap()).unwrap(), values);
        assert_eq!(unpack(pack(&[ScalarValue::Null]).unwrap()).unwrap(), [ScalarValue::Null]);
        assert_eq!(unpack(pack(&[]).unwrap()).unwrap(), []);
    }
}

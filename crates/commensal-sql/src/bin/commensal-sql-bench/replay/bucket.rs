//! An S3 store on the loopback interface with one object in memory. It answers `GET` with a range and `HEAD`, and
//! counts the bytes that it sends.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Name of the object, below a bucket `b`.
const KEY: &str = "/b/hits.csv";

/// Number of bytes of a body that are sent and counted at a time.
const PIECE: usize = 64 << 10;

/// The store. A thread serves each connection until it is closed; the listening thread runs until the process exits.
#[derive(Debug)]
pub struct Bucket {
    endpoint: String,
    sent: Arc<AtomicU64>,
}

impl Bucket {
    /// Opens a store on a free port.
    ///
    /// # Errors
    /// The machine has no loopback interface.
    pub fn open(object: Vec<u8>) -> io::Result<Bucket> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let (object, sent) = (Arc::<[u8]>::from(object), Arc::<AtomicU64>::default());
        let counter = Arc::clone(&sent);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (object, counter) = (Arc::clone(&object), Arc::clone(&counter));
                // Clients may disconnect at any time.
                std::thread::spawn(move || serve(&object, &counter, &stream));
            }
        });
        Ok(Bucket { endpoint, sent })
    }

    /// Returns the endpoint, which the server under test must allow.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the number of bytes of response bodies that the kernel has accepted so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Returns the call of the SQL table function `S3(...)` for the object, with the document's properties.
    #[must_use]
    pub fn call(&self) -> String {
        format!(
            "s3(\"URI\" = \"{}{KEY}\", \"s3.access_key\" = \"ak\", \"s3.secret_key\" = \"sk\", \
             \"format\" = \"csv_with_names\", \"column_separator\" = \",\", \"use_path_style\" = \"true\")",
            self.endpoint
        )
    }
}

fn serve(object: &[u8], sent: &AtomicU64, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // Bytes in the socket buffer count as sent. A small buffer keeps the count close to the number of bytes that the
    // client has read.
    rustix::net::sockopt::set_socket_send_buffer_size(stream, PIECE)?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut request = String::new();
        if lines.read_line(&mut request)? == 0 {
            return Ok(());
        }
        let mut range = None;
        loop {
            let mut line = String::new();
            lines.read_line(&mut line)?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            range = range.or_else(|| line.strip_prefix("range: bytes=").and_then(bounds));
        }
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        answer(object, sent, stream, (method, path), range)?;
    }
}

/// Parses the first and the last byte of a range; `None` if one of them is missing.
fn bounds(range: &str) -> Option<(usize, usize)> {
    let (from, to) = range.split_once('-')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

fn answer(
    object: &[u8],
    sent: &AtomicU64,
    mut stream: &TcpStream,
    (method, path): (&str, &str),
    range: Option<(usize, usize)>,
) -> io::Result<()> {
    if path.split('?').next() != Some(KEY) {
        let body = "<Error><Code>NoSuchKey</Code></Error>";
        return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    }
    let (status, body, place) = match range {
        Some((from, to)) => {
            let end = object.len().min(to.saturating_add(1));
            let from = from.min(end);
            let place = format!("Content-Range: bytes {from}-{}/{}\r\n", end.saturating_sub(1), object.len());
            ("206 Partial Content", &object[from..end], place)
        }
        None => ("200 OK", object, String::new()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{place}ETag: \"1\"\r\n\
         Last-Modified: Sun, 22 Nov 2026 12:00:00 GMT\r\nConnection: keep-alive\r\n\r\n",
        body.len()
    )?;
    if method != "HEAD" {
        for piece in body.chunks(PIECE) {
            stream.write_all(piece)?;
            sent.fetch_add(piece.len() as u64, Relaxed);
        }
    }
    Ok(())
}

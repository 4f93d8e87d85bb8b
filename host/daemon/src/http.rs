//! Metrics over HTTP: one request on each connection, bounded in time, in length and in number.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Content type of the text format that Prometheus reads (version 0.0.4).
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Longest that a request and its answer take.
const BOUND: Duration = Duration::from_secs(2);
/// Longest head of a request.
const MOST_BYTES: usize = 8 << 10;
/// Requests at a time.
const MOST: u32 = 4;

/// A server of metrics.
#[derive(Debug)]
pub struct Http {
    listener: TcpListener,
    under_way: Arc<AtomicU32>,
}

/// Counts one request until it is dropped.
struct Counted(Arc<AtomicU32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Http {
    /// Listens on an address; its port may be 0 for any free one.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, under_way: Arc::default() })
    }

    /// The address, with its port.
    ///
    /// # Errors
    /// The system refuses.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers the requests that wait, each in a thread of its own; `metrics` gives the text. It does not wait for new
    /// ones.
    pub fn serve(&self, metrics: impl Fn() -> String) {
        while let Ok((stream, _)) = self.listener.accept() {
            let counted = Counted(Arc::clone(&self.under_way));
            if self.under_way.fetch_add(1, Ordering::AcqRel) >= MOST {
                _ = respond(stream, "503 Service Unavailable", "too many requests at a time\n");
                continue;
            }
            let text = metrics();
            let answer = move || {
                _ = answer(stream, &text);
                drop(counted);
            };
            if let Err(error) = std::thread::Builder::new().name("metrics".to_owned()).spawn(answer) {
                tracing::warn!(%error, "no thread for metrics");
            }
        }
    }
}

impl AsFd for Http {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// What to answer to the bytes of a request; none while its head is not whole.
fn judge(bytes: &[u8]) -> Option<&'static str> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) if bytes.len() < MOST_BYTES => None,
        Ok(httparse::Status::Complete(_)) => Some(match (request.method, request.path) {
            (Some("GET"), Some("/metrics")) => "200 OK",
            (Some("GET"), _) => "404 Not Found",
            _ => "405 Method Not Allowed",
        }),
        Ok(_) | Err(_) => Some("400 Bad Request"),
    }
}

fn answer(mut stream: TcpStream, metrics: &str) -> std::io::Result<()> {
    // A socket that was accepted may be as its listener is.
    stream.set_nonblocking(false)?;
    let until = Instant::now() + BOUND;
    let mut bytes = Vec::new();
    let judged = loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break "408 Request Timeout";
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        match stream.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(read) => bytes.extend_from_slice(&part[..read]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if let Some(judged) = judge(&bytes) {
            break judged;
        }
    };
    respond(stream, judged, if judged.starts_with("200") { metrics } else { "ask for /metrics by GET\n" })
}

fn respond(mut stream: TcpStream, judged: &str, text: &str) -> std::io::Result<()> {
    stream.set_write_timeout(Some(BOUND))?;
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {judged}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\nConnection: \
         close\r\n\r\n{text}"
    )?;
    stream.shutdown(Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_judged_by_their_head() {
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Some("200 OK")),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n", None),
            ("GET / HTTP/1.0\r\n\r\n", Some("404 Not Found")),
            ("POST /metrics HTTP/1.1\r\n\r\n", Some("405 Method Not Allowed")),
            ("\u{1}\u{2}\r\n\r\n", Some("400 Bad Request")),
        ] {
            assert_eq!(judge(request.as_bytes()), expected, "{request:?}");
        }
        let endless = format!("GET /{} HTTP/1.1\r\n", "a".repeat(MOST_BYTES));
        assert_eq!(judge(endless.as_bytes()), Some("400 Bad Request"), "its head does not end");
    }

    #[test]
    fn silent_connections_do_not_delay_others() {
        let http = Http::new(SocketAddr::from(([127, 0, 0, 1], 0))).expect("it listens");
        let address = http.address().expect("bound");
        let silent: Vec<TcpStream> = (0..MOST - 1).map(|_| TcpStream::connect(address).expect("connected")).collect();
        let ask = || {
            let mut stream = TcpStream::connect(address).expect("connected");
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("sent");
            http.serve(|| "a 1\n".to_owned());
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("an answer");
            text
        };
        let text = ask();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\na 1\n"), "{text}");
        drop(silent);
    }
}

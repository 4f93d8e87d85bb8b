//! Workers of hand-made bytes against a server.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use flexcast_bootstrap::Secret;
use flexcast_mesh::aggregator::{ANSWER_BYTES, Carrier, Greeting, Key, Report, Terms, answer};
use flexcast_mesh::{END, Frame, Head, MESSAGE};
use flexcast_proto::session::{CHALLENGE_BYTES, Dialling, Party, VERDICT_BYTES, keyed_hash};
use flexcast_proto::sparse::Order;
use flexcast_proto::{Algorithm, Kind, Summary};
use flexcast_reduce::{DataType, Operator, Reduction};
use flexcast_sparse::SparseOptions;
use proptest::prelude::*;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::job::GRACE;
use super::{Server, Settings};

const SUM: Reduction = Reduction::of(Operator::Sum, DataType::I32).unwrap();

const BOUND: Duration = Duration::from_secs(20);
const OPTIONS: SparseOptions = SparseOptions { block_bytes: 256, blocks_per_message: 2 };

fn serve(settings: Settings) -> Server {
    Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), settings).unwrap()
}

fn terms(job: u64, workers: u32) -> Terms {
    let (order, carrier) = (Order::Arrival, Carrier::Connection);
    Terms { job, proof: 1, workers, aggregator: 0, aggregators: 1, order, carrier }
}

fn connect(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    // One that is closed at once learns of it by what it reads.
    let _ = stream.write_all(bytes);
    stream
}

/// What a worker says first, and what checks the answer.
fn opening(rank: u32, terms: Terms, key: &Key) -> (Vec<u8>, Dialling) {
    let greeting = Greeting { rank, has_secret: key.is_shared(), terms }.encode();
    let peer = Party::aggregator(terms.aggregator);
    let dialling = Dialling::new(key.scope(&greeting), Party::rank(rank), peer, [rank as u8 + 1; 32]);
    ([&greeting[..], &dialling.hello()].concat(), dialling)
}

/// Ends a handshake, unless the server says in clear why not. What the worker has said.
fn shake_hands(stream: &mut TcpStream, dialling: Dialling, key: &Key) -> Option<Vec<u8>> {
    let mut before = [0; ANSWER_BYTES];
    loop {
        match stream.peek(&mut before).ok()? {
            0 => return None,
            ANSWER_BYTES => break,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    if before != answer() {
        return None;
    }
    let (mut challenge, mut verdict) = ([0; CHALLENGE_BYTES], [0; VERDICT_BYTES]);
    stream.read_exact(&mut before).ok()?;
    stream.read_exact(&mut challenge).ok()?;
    let (confirming, proof) = dialling.answer(&challenge, key.secret(), &keyed_hash).unwrap();
    stream.write_all(&proof).unwrap();
    stream.read_exact(&mut verdict).ok()?;
    confirming.conclude(&verdict, key.secret(), &keyed_hash).unwrap();
    Some(proof.to_vec())
}

/// A worker without a secret, and frames without tags.
fn join(server: &Server, rank: u32, terms: Terms) -> TcpStream {
    let key = Key::of(None);
    let (bytes, dialling) = opening(rank, terms, &key);
    let mut stream = connect(server, &bytes);
    shake_hands(&mut stream, dialling, &key);
    stream
}

/// A worker's first message of an operation, which has no block that is not zero.
fn votes(operation: u32, summary: Summary) -> Vec<u8> {
    let contents = [[0xff; 4], [0xff; 4], [0; 4]].concat();
    let total = contents.len() as u64;
    [&Head { operation, tag: 0, summary, total, offset: 0, bytes: total }.encode()[..], &contents].concat()
}

/// What an aggregator says next; none at the end.
fn report(stream: &mut TcpStream) -> Option<Report> {
    loop {
        let mut header = [0; size_of::<Frame>()];
        stream.read_exact(&mut header).ok()?;
        let frame = Frame::read_from_bytes(&header).unwrap();
        let mut contents = vec![0; frame.len.get() as usize];
        stream.read_exact(&mut contents).unwrap();
        match frame.kind {
            MESSAGE => match Report::decode(&contents, 8).unwrap() {
                Report::Waiting { .. } => {}
                report => return Some(report),
            },
            END => {}
            kind => panic!("a frame of kind {kind}"),
        }
    }
}

fn reason(stream: &mut TcpStream) -> String {
    match report(stream) {
        Some(Report::Refused { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

/// Polls until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < BOUND, "{what} does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_rank_that_goes_ends_its_job_for_all_others_and_no_other_job() {
    let server = serve(Settings { threads: 2, ..Settings::default() });
    // One shard.
    let called = OPTIONS.summary(1024, SUM);
    let mut bystander = join(&server, 0, terms(9, 2));
    bystander.write_all(&votes(1, called)).unwrap();
    let [mut first, mut second, third] = [0, 1, 2].map(|rank| join(&server, rank, terms(7, 3)));
    for stream in [&mut first, &mut second] {
        stream.write_all(&votes(1, called)).unwrap();
    }
    until("the operation", || server.status().jobs.iter().any(|job| job.waits_for == Some(2)));
    assert!(server.status().reserved_bytes > 0);
    let gone = Instant::now();
    drop(third);
    for stream in [&mut first, &mut second] {
        assert_eq!(report(stream), Some(Report::Lost { rank: 2 }));
        // What it may have sent them itself, and why it goes, counts first.
        assert!(gone.elapsed() >= GRACE, "{:?}", gone.elapsed());
    }
    drop((first, second));
    until("the end of the job", || {
        server.status().jobs.iter().all(|job| job.job == format!("{:016x}", 9)) && server.status().jobs.len() == 1
    });
    // The other job goes on to its end: both have nothing but zeros.
    let mut partner = join(&server, 1, terms(9, 2));
    partner.write_all(&votes(1, called)).unwrap();
    until("the end of the operation", || server.status().jobs.iter().any(|job| job.operations == 1));
    drop((bystander, partner));
    until("the end of all jobs", || server.status().connected == 0 && server.status().reserved_bytes == 0);
}

#[test]
fn calls_that_differ_name_the_rank_to_each_side() {
    let server = serve(Settings::default());
    let [mut first, mut second, mut third] = [0, 1, 2].map(|rank| join(&server, rank, terms(7, 3)));
    let (called, other) = (OPTIONS.summary(4096, SUM), OPTIONS.summary(8192, SUM));
    first.write_all(&votes(1, called)).unwrap();
    until("the first call", || server.status().jobs.iter().any(|job| job.operation == Some(1)));
    second.write_all(&votes(1, other)).unwrap();
    assert_eq!(report(&mut first), Some(Report::Differs { rank: 1, theirs: other }));
    assert_eq!(report(&mut third), Some(Report::Differs { rank: 1, theirs: other }));
    assert_eq!(report(&mut second), Some(Report::Differs { rank: 0, theirs: called }));
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let one = OPTIONS.split((4096, SUM), 2, 1).unwrap().parameters.aggregator_bytes();
    let server = serve(Settings { memory_bytes: 3 * one, jobs: 1, ..Settings::default() });
    let called = OPTIONS.summary(4096, SUM);
    let mut first = join(&server, 0, terms(7, 2));
    until("the first", || server.status().connected == 1);
    assert!(reason(&mut join(&server, 0, terms(7, 2))).contains("rank 0 of job 0000000000000007 is connected already"));
    assert!(reason(&mut join(&server, 0, terms(8, 2))).contains("1 jobs already"));
    assert!(reason(&mut join(&server, 1, Terms { proof: 2, ..terms(7, 2) })).contains("another group"));
    let mut old = Greeting { rank: 1, has_secret: false, terms: terms(7, 2) }.encode();
    old[4] = 99;
    assert!(reason(&mut connect(&server, &old)).contains("the worker version 99"));
    // More than there is memory for, of which all are notified.
    let mut second = join(&server, 1, terms(7, 2));
    until("the second", || server.status().connected == 2);
    let large = SparseOptions { block_bytes: 16 << 10, ..OPTIONS };
    first.write_all(&votes(1, large.summary(1 << 20, SUM))).unwrap();
    for stream in [&mut first, &mut second] {
        let text = reason(stream);
        assert!(text.contains("bytes of memory for sums") && text.contains("use at most"), "{text}");
    }
    drop((first, second));
    until("the end of the job", || server.status().connected == 0);
    for (summary, part) in [
        (OPTIONS.summary(4095, SUM), "4095 bytes"),
        (Summary { chunk_bytes: 0xffff, ..OPTIONS.summary(4096, SUM) }, "0xffff"),
        (Summary::between_pairs(Kind::Allreduce, 3, 4096, SUM.code(), Algorithm::Sparse), "blocks of 0 bytes"),
        (Summary::between_pairs(Kind::Alltoall, 3, 4096, 0, Algorithm::Linear), "sparse AllReduce alone"),
        (Summary { algorithm: Algorithm::Ring, ..called }, "sparse AllReduce alone"),
    ] {
        let mut worker = join(&server, 0, terms(7, 2));
        worker.write_all(&votes(1, summary)).unwrap();
        let text = reason(&mut worker);
        assert!(text.contains(part), "{part}: {text}");
        drop(worker);
        until("the end of the job", || server.status().connected == 0);
    }
}

#[test]
fn whoever_is_silent_is_named_in_time() {
    let server = serve(Settings { timeout: Duration::from_millis(700), ..Settings::default() });
    let [mut first, second] = [0, 1].map(|rank| join(&server, rank, terms(7, 2)));
    first.write_all(&votes(1, OPTIONS.summary(4096, SUM))).unwrap();
    // First that the aggregator lives.
    let mut frame = [0; size_of::<Frame>() + 8];
    first.read_exact(&mut frame).unwrap();
    assert_eq!(Report::decode(&frame[size_of::<Frame>()..], 2), Some(Report::Waiting { rank: 1 }));
    assert_eq!(report(&mut first), Some(Report::Silent { rank: 1 }));
    drop(second);
}

#[test]
fn garbage_is_turned_away() {
    let server = serve(Settings { greeting: Duration::from_millis(300), ..Settings::default() });
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 4096], b"X"] {
        let mut stream = connect(&server, bytes);
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    }
    // Half a greeting, and silence.
    let mut half = connect(&server, &opening(0, terms(7, 2), &Key::of(None)).0[..20]);
    assert_eq!(half.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    until("the count", || server.status().strangers == 5);
    let called = OPTIONS.summary(4096, SUM);
    let head = |total: u64, bytes: u64| {
        Head { operation: 1, tag: 0, summary: called, total, offset: 0, bytes }.encode().to_vec()
    };
    let whole = votes(1, called);
    for wrong in [
        // Oversize frames, of each kind, and kinds that there are not or that workers do not send.
        Frame::new(MESSAGE, 1, usize::MAX >> 40).as_bytes().to_vec(),
        [Frame::new(MESSAGE, 1, 8).as_bytes(), &[0; 8]].concat(),
        [Frame::new(2, 1, 20).as_bytes(), &[0; 20]].concat(),
        Frame::new(9, 1, 0).as_bytes().to_vec(),
        head(1 << 40, 1 << 20),
        head(u64::MAX, 12),
        // Messages of other lengths than there are.
        head(11, 11),
        head(12 + 256, 12),
        // Votes out of order.
        [&whole[..whole.len() - 12], &[9, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]].concat(),
        // A second message before the answer to the first.
        [&whole[..], &whole[..]].concat(),
    ] {
        let mut other = join(&server, 1, terms(7, 2));
        let mut liar = join(&server, 0, terms(7, 2));
        until("both", || server.status().connected == 2);
        // What it cannot be any more when the other one calls, it is before; the operation fails for both.
        liar.write_all(&wrong).unwrap();
        other.write_all(&whole).unwrap();
        let end = liar.read(&mut [0; 64]);
        assert!(matches!(end, Ok(0) | Err(_)) || end.is_ok(), "{end:?}");
        drop((liar, other));
        until("the end of the job", || server.status().connected == 0);
    }
    assert!(server.is_alive());
    server.stop();
}

#[test]
fn strangers_give_way_to_workers_and_never_take_their_place() {
    let server = serve(Settings { greeting: Duration::from_secs(60), ..Settings::default() });
    let mut first = join(&server, 0, terms(7, 2));
    // Some say nothing, some no more than a rank that is there has said.
    let (bytes, _) = opening(0, terms(7, 2), &Key::of(None));
    let mut silent: Vec<TcpStream> = (0..200).map(|_| connect(&server, b"FX")).collect();
    silent.extend((0..100).map(|_| connect(&server, &bytes)));
    // Those that have only just come stay, and a worker that is not taken dials again.
    let mut second = None;
    until("the second", || {
        second = Some(join(&server, 1, terms(7, 2)));
        std::thread::sleep(Duration::from_millis(20));
        server.status().connected == 2
    });
    let mut second = second.unwrap();
    silent.extend((0..200).map(|_| connect(&server, b"")));
    for stream in [&mut first, &mut second] {
        stream.write_all(&votes(1, OPTIONS.summary(1024, SUM))).unwrap();
    }
    until("the end of the operation", || server.status().jobs.iter().any(|job| job.operations == 1));
    assert_eq!(server.status().refused, 0);
}

#[test]
fn a_copy_of_what_a_worker_has_said_opens_nothing() {
    let secret = Secret::new(&[b'x'; 32]).unwrap();
    let server = serve(Settings { secret: Some(secret.clone()), ..Settings::default() });
    let key = Key::of(Some(&secret));
    let (bytes, dialling) = opening(0, terms(7, 2), &key);
    let mut stream = connect(&server, &bytes);
    let proof = shake_hands(&mut stream, dialling, &key).unwrap();
    until("the worker", || server.status().connected == 1);
    let copy = [&bytes[..], &proof, &votes(1, OPTIONS.summary(1024, SUM))].concat();
    let ends = |bytes: &[u8]| {
        let mut copy = connect(&server, bytes);
        let mut came = Vec::new();
        // It is closed, with something unread or not.
        let _ = copy.read_to_end(&mut came);
        came.len()
    };
    // It gets a challenge that it cannot answer, and is no worker next to the first, nor in its place.
    assert_eq!(ends(&copy), ANSWER_BYTES + CHALLENGE_BYTES);
    assert_eq!((server.status().connected, server.status().refused), (1, 0));
    drop(stream);
    until("the end of the job", || server.status().connected == 0);
    assert_eq!(ends(&copy), ANSWER_BYTES + CHALLENGE_BYTES);
    assert_eq!(server.status().connected, 0);
    // A greeting that was changed: another rank, another job.
    for at in [24, 8] {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let text = reason(&mut connect(&server, &changed));
        assert!(text.contains("the greeting was changed on the way"), "byte {at}: {text}");
    }
}

#[test]
fn whoever_has_another_secret_or_none_learns_so_at_once() {
    let [one, other] = [b'x', b'y'].map(|byte| Secret::new(&[byte; 32]).unwrap());
    for (of_server, of_rank, text) in [
        (Some(&one), None, "it has a secret and the rank has none"),
        (None, Some(&one), "the rank has a secret and it has none"),
        (Some(&one), Some(&other), "its secret is another one than the rank's"),
    ] {
        let server = serve(Settings { secret: of_server.cloned(), ..Settings::default() });
        let start = Instant::now();
        let (bytes, _) = opening(0, terms(7, 2), &Key::of(of_rank));
        let said = reason(&mut connect(&server, &bytes));
        assert!(said.contains(text) && said.contains("FLEXCAST_SECRET_FILE"), "{said}");
        assert!(start.elapsed() < Duration::from_secs(1) && server.status().refused == 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn changed_bytes_end_a_job_or_change_nothing_else(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        static SERVER: std::sync::OnceLock<Server> = std::sync::OnceLock::new();
        let settings = Settings { timeout: Duration::from_millis(50), memory_bytes: 1 << 20, ..Settings::default() };
        let server = SERVER.get_or_init(|| serve(settings));
        let called = OPTIONS.summary(1024, SUM);
        let mut other = join(server, 1, terms(7, 2));
        let key = Key::of(None);
        let (begin, dialling) = opening(0, terms(7, 2), &key);
        let mut bytes = [&begin[..], &votes(1, called)].concat();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let frames = bytes.split_off(begin.len());
        let (first, second) = bytes.split_at(cut.index(bytes.len()));
        let mut liar = connect(server, first);
        let _ = liar.write_all(second);
        if bytes == begin {
            shake_hands(&mut liar, dialling, &key);
            let (first, second) = frames.split_at(cut.index(frames.len()));
            let _ = liar.write_all(first).and_then(|()| liar.write_all(second));
        }
        let _ = other.write_all(&votes(1, called));
        // An answer, a report or the end; never silence.
        prop_assert!(other.read(&mut [0; 256]).is_ok());
        drop((liar, other));
        until("the end of the job", || server.status().connected == 0 && server.status().reserved_bytes == 0);
        prop_assert!(server.is_alive());
    }
}

#[test]
fn workers_learn_of_the_end() {
    let server = serve(Settings::default());
    let mut worker = join(&server, 0, terms(7, 2));
    worker.write_all(&votes(1, OPTIONS.summary(4096, SUM))).unwrap();
    until("the operation", || server.status().jobs.iter().any(|job| job.operation == Some(1)));
    let start = Instant::now();
    let stopped = std::thread::spawn(move || server.stop());
    assert!(reason(&mut worker).contains("asked to stop"));
    drop(worker);
    stopped.join().unwrap();
    assert!(start.elapsed() < BOUND);
}

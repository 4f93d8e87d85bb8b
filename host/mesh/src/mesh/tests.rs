use std::io::Write as _;
use std::net::{TcpListener, TcpStream};

use flexcast_proto::Summary;
use flexcast_proto::p2p::Span;

use super::*;
use crate::connect::SharedListeners;
use crate::events::Event;
use crate::frame::{DATA, FRAME_BYTES, Frame, HEAD_BYTES, TRANSFER};
use crate::shared::{self, listen as listen_shared};
use flexcast_proto::session::Secret as SessionSecret;

mod attacks;

/// Longest wait of a test.
const BOUND: Duration = Duration::from_secs(20);

fn frame(kind: u8, operation: u32, contents: &[u8]) -> Vec<u8> {
    [Frame::new(kind, operation, contents.len()).as_bytes(), contents].concat()
}

fn head(operation: u32, total: u64) -> Head {
    let summary = Summary::allgather(total, 0, 1);
    Head { operation, tag: 0, summary, total, offset: 0, bytes: total }
}

const PART: Part = Part::send(Span { first: 2, count: 3 });

fn content(at: usize) -> u8 {
    (at * 31 + at / 253) as u8
}

/// Takes everything up to operation `now`; messages of point-to-point collectives to a buffer with a hole in the middle
/// of its places.
struct Recorder {
    now: u32,
    received: Vec<String>,
    halves: [Vec<u8>; 2],
    refuses: bool,
}

impl Recorder {
    fn new(now: u32, total: usize) -> Self {
        let halves = [vec![0; total / 2], vec![0; total - total / 2]];
        Self { now, received: Vec::new(), halves, refuses: false }
    }

    fn all(&self) -> Vec<u8> {
        self.halves.concat()
    }
}

impl Listener for Recorder {
    fn is_due(&self, operation: u32, transfer: bool) -> bool {
        operation <= self.now + u32::from(!transfer)
    }

    fn take(&mut self, event: Event<'_>) {
        self.received.push(format!("{event:?}"));
    }

    fn begin(&mut self, _: u32, _: &Head) -> bool {
        !self.refuses
    }

    fn place(&mut self, _: u32, head: &Head, at: u64) -> &mut [u8] {
        let (at, half) = ((head.offset + at) as usize, self.halves[0].len());
        if at < half { &mut self.halves[0][at..] } else { &mut self.halves[1][at - half..] }
    }

    fn end(&mut self, _: u32, head: &Head) {
        self.received.push(format!("end at {}", head.offset + head.bytes));
    }
}

/// A message in two parts.
struct Mouth(Vec<u8>);

impl Source for Mouth {
    fn buffer(&self) -> &[u8] {
        &self.0
    }

    fn part(&self, part: Part, at: u64) -> &[u8] {
        assert_eq!(part, PART);
        let (at, cut) = (at as usize, self.0.len() / 3);
        if at < cut { &self.0[at..cut] } else { &self.0[at..] }
    }
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    other.set_nonblocking(true).unwrap();
    (one, other)
}

fn connect(own: u32, listeners: &[TcpListener]) -> Connect {
    Connect {
        own,
        communicator: 7,
        secret: SessionSecret::new([5; 32]),
        proof: 0,
        tagged: true,
        listener: listeners[own as usize].try_clone().unwrap(),
        addresses: listeners.iter().map(|listener| listener.local_addr().unwrap()).collect(),
        timeout: Duration::from_secs(1),
        shared: SharedListeners::default(),
        aggregators: Vec::new(),
        order: flexcast_proto::sparse::Order::Arrival,
        key: crate::aggregator::Key::of(None),
    }
}

fn listeners() -> Vec<TcpListener> {
    let listen = |_| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    };
    (0..4).map(listen).collect()
}

fn mesh(own: u32, streams: Vec<(u32, Stream)>) -> Mesh {
    Mesh::of(connect(own, &listeners()), streams)
}

/// The ends of a stream of each kind.
fn pairs() -> [(Stream, Stream); 2] {
    let (one, other) = pair();
    one.set_nonblocking(true).unwrap();
    let (first, second) = shared::pair();
    [(one.into(), other.into()), (first.into(), second.into())]
}

/// Takes `parts` one by one. Returns whether the peer is still trusted.
fn received<'b>(parts: impl IntoIterator<Item = &'b [u8]>, recorder: &mut Recorder) -> bool {
    let mut peer = Peer::new(3, pair().1);
    parts.into_iter().for_each(|part| peer.take(part, recorder));
    !peer.closed
}

#[test]
fn frames_are_taken_whole_however_they_are_cut() {
    let contents: Vec<u8> = (0..20).map(content).collect();
    let bytes = [
        frame(MESSAGE, 1, b"abc"),
        head(1, 20).encode().to_vec(),
        contents.clone(),
        head(1, 0).encode().to_vec(),
        frame(DATA, 1, &[7; 20]),
        frame(END, 0, b""),
    ]
    .concat();
    let mut whole = Recorder::new(1, 20);
    assert!(received([&bytes[..]], &mut whole));
    assert_eq!((whole.received.len(), whole.all()), (4, contents.clone()));
    for cut in 0..bytes.len() {
        let mut recorder = Recorder::new(1, 20);
        assert!(received([&bytes[..cut], &bytes[cut..]], &mut recorder));
        assert_eq!((&recorder.received, recorder.all()), (&whole.received, contents.clone()), "cut at {cut}");
    }
}

#[test]
fn what_is_no_frame_is_refused() {
    let long = Frame::new(MESSAGE, 1, MOST_FRAME_BYTES + 1);
    let stray = Frame { zero: [0, 1, 0], ..Frame::new(END, 1, 0) };
    for bytes in [
        long.as_bytes(),
        stray.as_bytes(),
        &frame(9, 1, b""),
        &frame(REQUEST, 1, b"short"),
        &frame(DATA, 1, b"short"),
        &frame(END, 1, b"x"),
        &frame(TRANSFER, 1, &[0; HEAD_BYTES]),
        // A length as a build would write it that begins words with their highest byte.
        &[&3u32.to_be_bytes()[..], &[MESSAGE, 0, 0, 0], &1u32.to_be_bytes(), &[0; 16], b"abc"].concat(),
    ] {
        assert!(!received([bytes], &mut Recorder::new(1, 20)), "{bytes:?}");
    }
    let mut recorder = Recorder { refuses: true, ..Recorder::new(1, 20) };
    assert!(!received([&head(1, 20).encode()[..]], &mut recorder), "what the operation does not want");
}

#[test]
fn frames_of_later_operations_wait_with_all_behind_them() {
    let (mut far, near) = pair();
    let mut mesh = mesh(0, vec![(3, near.into())]);
    let mut recorder = Recorder::new(1, 4);
    let bytes = [
        frame(MESSAGE, 2, b"early"),
        [&head(2, 4).encode()[..], &[1, 2, 3, 4]].concat(),
        frame(MESSAGE, 3, b"behind"),
        frame(MESSAGE, 4, b"far"),
    ];
    far.write_all(&bytes.concat()).unwrap();
    while recorder.received.is_empty() {
        mesh.receive(0, &mut recorder);
    }
    assert!(!mesh.receive(0, &mut recorder) && !mesh.resume(&mut recorder), "nothing is taken while it waits");
    assert_eq!(recorder.received.len(), 1);
    let interest = |mesh: &Mesh| mesh.descriptors().next().unwrap().2;
    assert!(!interest(&mesh).read, "nor waited for");
    recorder.now = 2;
    assert!(mesh.resume(&mut recorder));
    assert_eq!((recorder.received.len(), recorder.all()), (3, vec![1, 2, 3, 4]));
    recorder.now = 3;
    assert!(mesh.resume(&mut recorder));
    assert!(recorder.received[3].contains(&format!("{:?}", b"far")), "{:?}", recorder.received);
    assert!(interest(&mesh).read);
}

#[test]
fn messages_of_all_lengths_go_in_fragments_and_messages_keep_their_order() {
    for (len, (one, other)) in
        [0, 1, 8 << 10, (8 << 10) + 1, 3 << 20].into_iter().flat_map(|len| pairs().map(|pair| (len, pair)))
    {
        let (mut from, mut to) = (mesh(0, vec![(1, one)]), mesh(1, vec![(0, other)]));
        let source = Mouth((0..len).map(content).collect());
        from.say(1, 1, b"before", &[]);
        from.transfer(1, head(1, len as u64), PART, &source);
        let mut recorder = Recorder::new(1, len);
        let mut finished = 0;
        while recorder.received.last().is_none_or(|last| *last != format!("end at {len}")) || finished == 0 {
            from.flush(&source);
            finished += from.take_finished();
            to.receive(0, &mut recorder);
        }
        assert_eq!(finished, 1, "{len} bytes");
        assert!(recorder.all() == source.0, "{len} bytes");
        assert_eq!(
            recorder.received.len(),
            1 + len.div_ceil(256 << 10).max(1),
            "{len} bytes: one message, and the fragments"
        );
    }
}

#[test]
fn a_rank_that_takes_nothing_is_known() {
    for (one, _other) in pairs() {
        let mut from = mesh(0, vec![(3, one)]);
        assert_eq!(from.slow_taker(), None);
        let source = Mouth(vec![0; 32 << 20]);
        from.transfer(3, head(1, 32 << 20), PART, &source);
        from.flush(&source);
        assert_eq!((from.slow_taker(), from.take_finished()), (Some(3), 0));
    }
}

#[test]
fn an_abandoned_message_ends_with_its_fragment() {
    pairs().into_iter().for_each(|(one, other)| an_abandoned_message_ends(one, other));
}

fn an_abandoned_message_ends(one: Stream, other: Stream) {
    let len = 64 << 20;
    let (mut from, mut to) = (mesh(0, vec![(1, one)]), mesh(1, vec![(0, other)]));
    let source = Mouth((0..len).map(content).collect());
    from.transfer(1, head(1, len as u64), PART, &source);
    from.flush(&source);
    from.abandon(&source);
    from.say(1, 1, b"why", &[]);
    let mut recorder = Recorder::new(1, len);
    while !recorder.received.iter().any(|received| received.contains("Message")) {
        from.flush(&());
        to.receive(0, &mut recorder);
    }
    let fragments = recorder.received.len() - 1;
    assert!((1..len >> 18).contains(&fragments), "{fragments}");
    let came = fragments << 18;
    assert!(recorder.all()[..came] == source.0[..came]);
    assert_eq!(from.take_finished(), 0);
}

/// Lets all ranks take what there is, once.
fn turn(meshes: &mut [Mesh], inbox: &mut [Recorder]) {
    for (mesh, recorder) in meshes.iter_mut().zip(inbox) {
        mesh.admit(&mut Unwatched);
        mesh.flush(&());
        (0..mesh.peers.len()).for_each(|number| _ = mesh.receive(number, recorder));
    }
}

/// Lets all ranks take what comes until each has received so many messages.
fn receive_all(meshes: &mut [Mesh], messages: &[usize]) -> Vec<Vec<String>> {
    let mut inbox: Vec<Recorder> = meshes.iter().map(|_| Recorder::new(1, 0)).collect();
    let until = Instant::now() + BOUND;
    let is_over = |inbox: &[Recorder]| {
        inbox.iter().zip(messages).all(|(recorder, messages)| recorder.received.len() >= *messages)
    };
    while !is_over(&inbox) && Instant::now() < until {
        turn(meshes, &mut inbox);
    }
    inbox.into_iter().map(|recorder| recorder.received).collect()
}

#[test]
fn ranks_connect_when_one_has_something_to_say_and_when_both_have_at_once() {
    let all = listeners();
    let mut meshes = [0, 1, 2].map(|own| Mesh::of(connect(own, &all), Vec::new()));
    // Each connects to the other before it detects the other's connection.
    for word in [b"one", b"two"] {
        meshes[0].say(1, 1, word, &[]);
        meshes[1].say(0, 1, word, &[]);
        meshes.iter_mut().for_each(|mesh| _ = mesh.flush(&()));
    }
    for received in &receive_all(&mut meshes[..2], &[2, 2]) {
        let order: Vec<bool> = received.iter().map(|text| text.contains(&format!("{:?}", b"one"))).collect();
        assert_eq!(order, [true, false], "{received:?}");
    }
    assert!(meshes[..2].iter().all(|mesh| mesh.peers.len() == 2), "one connection of each");
    // A third receives from the first, and answers on the same connection.
    meshes[0].say(2, 1, b"there", &[]);
    assert_eq!(receive_all(&mut meshes, &[0, 0, 1])[2].len(), 1);
    meshes[2].say(0, 1, b"here", &[]);
    assert_eq!(meshes[2].peers.len(), 1);
    assert_eq!(receive_all(&mut meshes, &[1, 0, 0])[0].len(), 1);
    assert_eq!(meshes[0].peers.len(), 3);
}

#[test]
fn a_rank_where_nobody_listens_breaks_at_once() {
    let all = listeners();
    let mut here = Mesh::of(connect(0, &all), Vec::new());
    here.connect.addresses[3] = "127.0.0.1:1".parse().unwrap();
    here.say(3, 1, b"hello", &[]);
    let (mut broken, begun) = (Vec::new(), Instant::now());
    while broken.is_empty() && begun.elapsed() < BOUND {
        here.flush(&());
        here.take_broken(|rank, code| broken.push((rank, i32::from(code))));
    }
    assert_eq!(broken, [(3, nix::libc::ECONNREFUSED)]);
}

#[test]
fn strangers_are_turned_away_and_a_rank_that_does_not_come_is_named() {
    let all = listeners();
    let wrong = Connect { secret: SessionSecret::new([6; 32]), ..connect(1, &all) };
    let mut scanner = TcpStream::connect(all[0].local_addr().unwrap()).unwrap();
    scanner.write_all(&[0; 200]).unwrap();
    let short = Duration::from_millis(300);
    let [zero, one, stranger] = std::thread::scope(|scope| {
        let of = |connect: Connect, ranks: &'static [u32]| {
            scope.spawn(move || Mesh::connect(Connect { timeout: short, ..connect }, ranks).map(drop))
        };
        let threads = [of(connect(0, &all), &[1, 2]), of(connect(1, &all), &[0]), of(wrong, &[0])];
        threads.map(|thread| thread.join().unwrap())
    });
    one.unwrap();
    let text = zero.unwrap_err().to_string();
    assert!(text.contains("rank 2 has not connected to rank 0"), "{text}");
    let text = stranger.unwrap_err().to_string();
    assert!(text.contains("rank 0 is not reached at 127.0.0.1:"), "{text}");
}

#[test]
fn the_last_words_of_a_rank_are_received_although_it_takes_nothing_more() {
    let (mut far, near) = pair();
    let mut here = mesh(0, vec![(3, near.into())]);
    // It goes with something unread, so that its system resets the connection.
    here.say(3, 1, b"unread", &[]);
    here.flush(&());
    let mut byte = [0; 1];
    far.peek(&mut byte).unwrap();
    far.write_all(&[frame(MESSAGE, 1, b"why"), frame(END, 0, b"")].concat()).unwrap();
    drop(far);
    let until = Instant::now() + Duration::from_secs(5);
    let mut broken = Vec::new();
    while here.peers[0].is_open() && Instant::now() < until {
        here.say(3, 1, b"more", &[]);
        here.flush(&());
        here.take_broken(|rank, code| broken.push((rank, code)));
    }
    let mut recorder = Recorder::new(1, 0);
    while !here.peers[0].closed && Instant::now() < until {
        here.receive(0, &mut recorder);
    }
    here.take_broken(|rank, code| broken.push((rank, code)));
    assert_eq!((recorder.received.len(), here.peers[0].closed, &broken), (1, true, &vec![]), "{:?}", recorder.received);
    // Of a later operation: why it goes counts at once, all else in its time.
    let (mut far, near) = pair();
    let mut here = mesh(0, vec![(3, near.into())]);
    here.say(3, 1, b"unread", &[]);
    here.flush(&());
    far.peek(&mut byte).unwrap();
    let why = b"FXCM\x03\x06, and who";
    far.write_all(&[frame(MESSAGE, 3, b"later"), frame(MESSAGE, 3, why), frame(END, 0, b"")].concat()).unwrap();
    let mut recorder = Recorder::new(1, 0);
    here.receive(0, &mut recorder);
    assert!(recorder.received.is_empty() && !here.descriptors().next().unwrap().2.read, "it waits");
    drop(far);
    while here.peers[0].is_open() && Instant::now() < until {
        here.say(3, 1, b"more", &[]);
        here.flush(&());
    }
    assert!(here.descriptors().next().unwrap().2.read, "it is read to its end");
    here.receive(0, &mut recorder);
    assert!(
        recorder.received.len() == 1 && recorder.received[0].contains(&format!("{:?}", &why[..])),
        "{:?}",
        recorder.received
    );
    recorder.now = 3;
    assert!(here.resume(&mut recorder));
    here.take_broken(|rank, code| broken.push((rank, code)));
    assert_eq!((recorder.received.len(), here.peers[0].closed, broken), (3, true, vec![]), "{:?}", recorder.received);
    // One that says nothing breaks, with the reason of the system.
    let (far, near) = pair();
    let mut here = mesh(0, vec![(3, near.into())]);
    drop(far);
    let mut broken = Vec::new();
    while broken.is_empty() && Instant::now() < until {
        here.say(3, 1, b"more", &[]);
        here.flush(&());
        here.receive(0, &mut recorder);
        here.take_broken(|rank, code| broken.push((rank, i32::from(code))));
    }
    assert!(matches!(broken[..], [(3, nix::libc::EPIPE | nix::libc::ECONNRESET)]), "{broken:?}");
}

#[test]
fn what_was_said_last_arrives_although_something_is_unread() {
    let (mut far, near) = pair();
    far.write_all(&frame(MESSAGE, 9, b"unread")).unwrap();
    let mut here = mesh(0, vec![(3, near.into())]);
    here.say(3, 1, b"why", &[]);
    drop(here);
    let mut came = Vec::new();
    std::io::Read::read_to_end(&mut far, &mut came).expect("an orderly end");
    assert_eq!(came, [frame(MESSAGE, 1, b"why"), frame(END, 0, b"")].concat());
}

/// Ranks of one computer: where each listens, with the numbers of all.
fn near(own: u32, all: &[TcpListener], numbers: &[u64]) -> Connect {
    let listener =
        Some(numbers[own as usize]).filter(|number| *number != 0).map(|number| listen_shared(number).unwrap());
    Connect { shared: SharedListeners { listener, numbers: numbers.to_vec() }, ..connect(own, all) }
}

fn numbers() -> Vec<u64> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).unwrap();
    bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()) | 1).collect()
}

fn are_shared(mesh: &Mesh) -> Vec<(u32, bool)> {
    let mut all: Vec<_> = mesh.peers.iter().map(|peer| (peer.rank, peer.stream.shared().is_some())).collect();
    all.sort_unstable();
    all
}

#[test]
fn ranks_of_one_computer_share_memory_and_others_do_not() {
    let (all, mut numbers) = (listeners(), numbers());
    // Rank 2 shares none, and rank 3 says that it does and is not there.
    numbers[2] = 0;
    let (far, zero) = (connect(3, &all), near(0, &all, &numbers));
    let one = near(1, &all, &numbers);
    let two = near(2, &all, &numbers);
    let meshes = std::thread::scope(|scope| {
        let of = |connect: Connect, ranks: &'static [u32]| scope.spawn(move || Mesh::connect(connect, ranks).unwrap());
        let threads = [of(zero, &[1, 2, 3]), of(one, &[0, 2]), of(two, &[0, 1]), of(far, &[0])];
        threads.map(|thread| thread.join().unwrap())
    });
    let [mut zero, one, _two, _three] = meshes;
    assert_eq!(are_shared(&zero), [(1, true), (2, false), (3, false)]);
    assert_eq!(are_shared(&one), [(0, true), (2, false)]);
    // One that is connected to later, and is not there: over TCP.
    zero.say(1, 1, b"through memory", &[]);
    let mut both = [zero, one];
    assert_eq!(receive_all(&mut both, &[0, 1])[1].len(), 1);
    let [_zero, mut one] = both;
    one.say(3, 1, b"by TCP", &[]);
    assert_eq!(are_shared(&one)[2], (3, false));
}

#[test]
fn ranks_that_connect_later_share_memory_and_strangers_do_not() {
    let (all, numbers) = (listeners(), numbers());
    let [mut first, second] = [0, 1].map(|own| Mesh::of(near(own, &all, &numbers), Vec::new()));
    let wrong = Connect { secret: SessionSecret::new([6; 32]), ..near(2, &all, &numbers) };
    let mut stranger = Mesh::of(wrong, Vec::new());
    for from in [&mut first, &mut stranger] {
        from.say(1, 1, b"hello", &[]);
        from.flush(&());
    }
    let mut meshes = [first, second, stranger];
    assert_eq!(receive_all(&mut meshes, &[0, 1, 0])[1].len(), 1);
    let [mut first, mut second, _stranger] = meshes;
    assert_eq!(are_shared(&second), [(0, true)]);
    // The end of a peer is reported, once all that it has said is taken.
    second.say(0, 1, b"last", &[]);
    drop(second);
    let mut recorder = Recorder::new(1, 0);
    let until = Instant::now() + Duration::from_secs(5);
    while !first.peers[0].closed && Instant::now() < until {
        first.receive(0, &mut recorder);
    }
    assert_eq!(recorder.received.len(), 1);
    let mut broken = Vec::new();
    first.take_broken(|rank, code| broken.push((rank, code)));
    assert_eq!((first.peers[0].closed, broken), (true, vec![]), "it has said that it leaves");
}

#[test]
fn a_peer_whose_positions_cannot_be_is_not_received_any_more() {
    let (_socket, stream) = shared::hostile(u64::MAX);
    let mut mesh = mesh(0, vec![(1, stream.into())]);
    assert!(mesh.poll_shared(&mut Recorder::new(1, 0)));
    let mut broken = Vec::new();
    mesh.take_broken(|rank, code| broken.push((rank, code)));
    assert_eq!(broken, [(1, peer::NONSENSE)]);
}

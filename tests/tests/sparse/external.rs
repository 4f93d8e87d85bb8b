//! Sparse AllReduce of communicators with RDMA cards whose aggregators are no ranks: a server with a card of its own in
//! threads of this process, by either datapath over emulated cards: every byte checked against one core's loop over the
//! contributions.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use emu_config::Machine;
use flexcast::p2p::reference;
use flexcast::p2p::sparse::{self, Worker};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{
    Aggregation, Allreduce, Communicator, Config, DatapathKind, Endpoint, Error, Outcome, Pending, Request,
    SparseOptions,
};
use flexcast_aggregator::{Server, Settings};
use flexcast_proto::session::{CHALLENGE_BYTES, Dialling, Party, Secret, VERDICT_BYTES};
use flexcast_service::keyed_hash;
use flexcast_tests::assert_mentions;
use flexcast_tests::card_ranks::{self, CardRanks, filled};
use flexcast_tests::communicators::{Under, drive};
use flexcast_tests::sparse_world::contributions;
use flexio::{ProtectionDomain, Provider};

const OPTIONS: SparseOptions = SparseOptions { block_bytes: 256, blocks_per_message: 8 };
/// How far the clock of a machine moves where nothing is due.
const IDLE_STEP_PS: u64 = 1_000_000;
const SUM: Reduction = Reduction::of(Operator::Sum, DataType::I32).unwrap();

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

fn settings() -> Settings {
    Settings { threads: 2, ..Settings::default() }
}

/// So many ranks' cards, and one more for a server.
fn cards(datapath: DatapathKind, machine: &Machine, ranks: u32) -> (Provider, Vec<Endpoint>, ProtectionDomain) {
    let (provider, mut cards) = card_ranks::cards(datapath, machine, ranks + 1);
    let last = cards.pop().expect("one more");
    // Only the ranks' cards run the datapath's image.
    drop(last);
    let name = format!("mlx5_{ranks}");
    let device = provider.open_plain(&name).expect("the card opens");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    (provider, cards, pd)
}

/// Aggregators answer by TCP in the computer's time, and virtual time passes meanwhile: bounds are long.
fn config() -> Config {
    card_ranks::config().barrier_timeout(Duration::from_secs(2))
}

fn names(servers: &[&Server]) -> Vec<String> {
    servers.iter().map(|server| server.address().to_string()).collect()
}

fn post(one: &Communicator, reduction: Reduction, options: SparseOptions, array: &[u8]) -> Request {
    one.post(Allreduce::new(reduction).sparse(options).in_place(filled(one, array))).expect("accepted")
}

/// What becomes of a call on all ranks. While nothing happens on the cards the server's threads have the processor.
fn ends(world: &CardRanks, call: impl Fn(&Communicator, u32) -> Request) -> Vec<Outcome> {
    let mut all: Vec<Under<'_>> = world.all.iter().map(|one| Under::new(one, call(one, one.rank()))).collect();
    let mut before_ps = 0;
    drive(&world.provider, &mut all, |since_ps, _| {
        if since_ps - before_ps == IDLE_STEP_PS {
            std::thread::sleep(Duration::from_micros(20));
        }
        before_ps = since_ps;
    });
    all.into_iter().filter_map(|one| one.done).collect()
}

/// A call that goes well on all ranks, with a result that is checked.
fn gets(world: &CardRanks, bytes: usize, zeros: u64, reduction: Reduction, options: SparseOptions) {
    let ranks = world.ranks();
    let arrays = contributions(ranks, bytes, (options.block_bytes, zeros), 1 + bytes as u64);
    let expected = reference(reduction, &arrays);
    let ends = ends(world, |one, rank| post(one, reduction, options, &arrays[rank as usize]));
    for (rank, end) in ends.into_iter().enumerate() {
        let done = end.expect("success");
        let got = done.receive.to_vec().expect("read");
        assert!(got == expected, "rank {rank} of {ranks}: {bytes} bytes, {zeros} % zeros, {reduction}, {options:?}");
        assert_eq!(done.report.decision.aggregation(), Some(Aggregation::Host));
        // What comes has been sent by aggregators, which are others.
        assert!(bytes == 0 || done.report.messages > 0);
        assert!(bytes == 0 || zeros == 100 || done.report.foreign_bytes >= bytes as u64 * (100 - zeros) / 200);
    }
}

#[test]
fn aggregators_that_are_no_ranks_add_what_cards_send() {
    let sum = |data_type| Reduction::new(Operator::Sum, data_type).expect("the type has it");
    for (datapath, ranks, aggregators, loss_ppm) in [
        (DatapathKind::Verbs, 3, 1, 0),
        (DatapathKind::Dpa, 2, 2, 0),
        (DatapathKind::Verbs, 1, 1, 0),
        (DatapathKind::Verbs, 2, 1, 10_000),
    ] {
        let machine = Machine { loss_ppm: Some(loss_ppm), seed: Some(5), ..Machine::default() };
        let (provider, cards, card) = cards(datapath, &machine, ranks);
        let server = Server::with_card(listener(), settings(), &card).expect("it starts");
        // Twice the same one: two of its threads.
        let config = config().aggregators(names(&vec![&server; aggregators])).reproducible(true);
        let world = CardRanks::on((provider, cards), &config);
        let before = server.status().accepted;
        // Longer arrays have more shards, and other options other memory: queue pairs are made anew.
        for (elements, zeros, reduction, options) in [
            (1009, 0, SUM, OPTIONS),
            (1009, 60, sum(DataType::F32), OPTIONS),
            (0, 0, SUM, OPTIONS),
            (1, 0, sum(DataType::F64), OPTIONS),
            (90_001, 80, sum(DataType::I64), OPTIONS),
            (509, 30, Reduction::new(Operator::Max, DataType::I32).expect("it has"), OPTIONS),
            (20_011, 30, SUM, SparseOptions { block_bytes: 1024, blocks_per_message: 32 }),
            (2003, 100, sum(DataType::F16), OPTIONS),
        ] {
            gets(&world, elements * reduction.element_bytes() as usize, zeros, reduction, options);
        }
        let status = server.status();
        assert_eq!(status.device.as_deref(), Some(&*format!("mlx5_{ranks}")));
        assert_eq!(status.accepted - before, u64::from(ranks) * aggregators as u64, "one connection each");
        drop(world);
        let start = Instant::now();
        while server.status().connected > 0 || server.status().reserved_bytes > 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", server.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A rank that makes its queue pairs anew, or leaves, is not missed by an aggregator that waits for its acknowledgement
/// of the last sums.
#[test]
fn ranks_that_give_queue_pairs_up_still_answer() {
    let kilo = SparseOptions { block_bytes: 1024, blocks_per_message: 4 };
    for seed in 0..8 {
        let machine = Machine { loss_ppm: Some(50_000), seed: Some(seed), ..Machine::default() };
        let (provider, cards, card) = cards(DatapathKind::Verbs, &machine, 2);
        let server = Server::with_card(listener(), settings(), &card).expect("it starts");
        let config = config().aggregators(names(&[&server])).retry_exponent(4);
        let world = CardRanks::on((provider, cards), &config);
        for options in [OPTIONS, kilo, OPTIONS, kilo] {
            gets(&world, 4 * 2003, 20, SUM, options);
        }
        let arrays = contributions(2, 4 * 2003, (256, 20), seed);
        let expected = reference(SUM, &arrays);
        let yields = || std::thread::sleep(Duration::from_micros(20));
        for end in world.leaving(|one, rank| post(one, SUM, OPTIONS, &arrays[rank as usize]), yields) {
            assert!(end.expect("success").receive.to_vec().expect("read") == expected, "seed {seed}");
        }
    }
}

#[test]
fn a_server_that_is_started_anew_between_operations_serves_on_and_one_that_stops_is_named() {
    let (provider, cards, card) = cards(DatapathKind::Verbs, &Machine::default(), 2);
    let first = Server::with_card(listener(), settings(), &card).expect("it starts");
    let other = Server::with_card(listener(), settings(), &card).expect("it starts");
    let address = first.address();
    let config = config().aggregators(names(&[&first, &other]));
    let world = CardRanks::on((provider, cards), &config);
    gets(&world, 4096, 20, SUM, OPTIONS);
    // Ranks are notified, and let it go at their next call.
    drop(first);
    let again = Server::with_card(TcpListener::bind(address).expect("free again"), settings(), &card).expect("anew");
    gets(&world, 4096, 20, SUM, OPTIONS);
    gets(&world, 40_960, 20, SUM, OPTIONS);
    assert_eq!((again.status().refused, other.status().refused), (0, 0));
    drop(again);
    // Nobody is there.
    let arrays = contributions(2, 4096, (256, 0), 3);
    for end in ends(&world, |one, rank| post(one, SUM, OPTIONS, &arrays[rank as usize])) {
        let failed = end.expect_err("nobody adds");
        assert!(matches!(failed.error, Error::Aggregator { .. }), "{failed}");
        assert_mentions(&failed.error, &["allreduce failed", &address.to_string()]);
        assert!(failed.receive.is_some(), "the buffer comes back");
    }
    let error = world.all[0].barrier().expect_err("of no use").error;
    assert_mentions(&error, &[&address.to_string(), "of no use"]);
}

#[test]
fn a_rank_that_receives_the_barrier_s_end_and_the_failure_behind_it_at_once_fails() {
    for datapath in [DatapathKind::Verbs, DatapathKind::Dpa] {
        let (provider, cards, card) = cards(datapath, &Machine::default(), 2);
        let server = Server::with_card(listener(), settings(), &card).expect("it starts");
        let address = server.address();
        let world = CardRanks::on((provider, cards), &config().aggregators(names(&[&server])));
        gets(&world, 4096, 20, SUM, OPTIONS);
        drop(server);
        let arrays = contributions(2, 4096, (256, 0), 3);
        let call = |rank: usize| Under::new(&world.all[rank], post(&world.all[rank], SUM, OPTIONS, &arrays[rank]));
        let (late, early) = (call(1), call(0));
        // The last to call has all of the barrier, and fails while the other is not polled.
        for one in [early, late] {
            let mut alone = [one];
            drive(&world.provider, &mut alone, |_, _| ());
            let [one] = alone;
            let failed = one.done.expect("driven to its end").expect_err("nobody adds");
            assert!(matches!(failed.error, Error::Aggregator { .. }), "{failed}");
            assert_mentions(&failed.error, &["allreduce failed", &address.to_string()]);
            assert!(failed.receive.is_some(), "the buffer comes back");
        }
    }
}

#[test]
fn a_rank_that_goes_in_the_middle_is_named_by_all() {
    let (provider, cards, card) = cards(DatapathKind::Verbs, &Machine::default(), 3);
    let server = Server::with_card(listener(), settings(), &card).expect("it starts");
    let world = CardRanks::on((provider, cards), &config().aggregators(names(&[&server])).retry_exponent(3));
    gets(&world, 4096, 0, SUM, OPTIONS);
    let arrays = contributions(3, 1 << 20, (256, 10), 5);
    let call = |one: &Communicator, rank: u32| post(one, SUM, OPTIONS, &arrays[rank as usize]);
    for failed in world.without_the_last(call, 60_000_000, false) {
        let failure = failed.report.failure.expect("reported");
        assert_eq!(failure.failed_rank, 2, "{failed}");
        assert!(failed.receive.is_some(), "the buffer comes back");
    }
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    let (provider, cards, card) = cards(DatapathKind::Verbs, &Machine::default(), 2);
    let plain = Server::start(listener(), settings()).expect("it starts");
    let narrow = Settings { memory_bytes: 20_000, ..settings() };
    let narrow = Server::with_card(listener(), narrow, &card).expect("it starts");
    for (server, words) in
        [(&plain, ["no RDMA card", "give it one"]), (&narrow, ["20000 bytes of memory", "use at most 1 workers"])]
    {
        let world = CardRanks::on((provider.clone(), cards.clone()), &config().aggregators(names(&[server])));
        let arrays = contributions(2, 40_000, (256, 0), 3);
        let ends = ends(&world, |one, rank| post(one, SUM, OPTIONS, &arrays[rank as usize]));
        let texts: Vec<String> = ends.into_iter().map(|end| end.expect_err("refused").error.to_string()).collect();
        let address = server.address().to_string();
        assert!(texts.iter().all(|text| text.contains(&address)), "{texts:?}");
        assert!(texts.iter().any(|text| words.iter().all(|word| text.contains(word))), "{texts:?}");
    }
    let refused = |config: Config| Pending::new(&cards[0], 0, 2, config).expect_err("refused");
    let both = config().aggregators(vec!["127.0.0.1:1".to_owned()]).sparse_aggregation(Aggregation::Dpa);
    assert_mentions(
        &refused(both.clone().aggregators(vec!["nowhere".to_owned()]).sparse_aggregation(Aggregation::Host)),
        &["nowhere", "host:port"],
    );
    // Image `sparse` is not started: that is reported first.
    assert_mentions(&refused(both), &["sparse.aggregation"]);
    let many = (0..65).map(|port| format!("127.0.0.1:{}", 1000 + port)).collect();
    assert_mentions(&refused(config().aggregators(many)), &["number of aggregators is 65", "at most 64"]);
    // Their number is alike on all ranks, or all fail.
    let pending = [vec!["127.0.0.1:1"], vec!["127.0.0.1:1", "127.0.0.1:2"]].map(|names| {
        let names = names.into_iter().map(str::to_owned).collect();
        config().aggregators(names)
    });
    let pending = (0..).zip(&cards).zip(pending).map(|((rank, card), config)| Pending::new(card, rank, 2, config));
    let mut pending: Vec<Pending> = pending.map(|pending| pending.expect("its part is made")).collect();
    let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
    let error = pending.remove(0).connect(&infos).expect_err("they differ");
    assert_mentions(&error, &["number of aggregators 2", "this rank 1"]);
}

/// What a worker says first to aggregator 0 of 1, of which it wants queue pairs.
fn greeting(job: u64, rank: u32, workers: u32) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let (version, proof) = (4_u32, 5_u64);
    let rest = [0, u8::from(cfg!(target_endian = "big")), 1, 0, 11, 7, 0, 0];
    [&b"FXAG"[..], &words(&[version]), &job.to_le_bytes(), &proof.to_le_bytes(), &words(&[rank, workers, 0, 1]), &rest]
        .concat()
}

/// A control message of the first operation. Its tags are zero, as all are between ranks and aggregators.
fn message(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes()[..], &[1, 0, 0, 0], &1_u32.to_le_bytes(), &[0; 16], bytes].concat()
}

/// A worker's handshake without a secret: its key is known to everybody.
fn shake_hands(stream: &mut TcpStream, greeting: &[u8], rank: u32) {
    let secret = Secret::new([0; 32]);
    let [a, b, c, d, e, f, g, h, ..] = keyed_hash(&secret, &[&b"flexcast greeting of a worker"[..], greeting].concat());
    let scope = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let dialling = Dialling::new(scope, Party::rank(rank), Party::aggregator(0), [1; 32]);
    stream.write_all(&[greeting, &dialling.hello()].concat()).expect("sent");
    let (mut before, mut challenge, mut verdict) = ([0; 8], [0; CHALLENGE_BYTES], [0; VERDICT_BYTES]);
    stream.read_exact(&mut before).expect("an answer");
    stream.read_exact(&mut challenge).expect("a challenge");
    let hash = |secret: &Secret, message: &[u8]| keyed_hash(secret, message);
    let (confirming, proof) = dialling.answer(&challenge, &secret, &hash).expect("of this greeting");
    stream.write_all(&proof).expect("sent");
    stream.read_exact(&mut verdict).expect("a verdict");
    confirming.conclude(&verdict, &secret, &hash).expect("it takes the worker");
}

#[test]
fn queue_pairs_that_cannot_be_are_refused() {
    let (provider, _, card) = cards(DatapathKind::Verbs, &Machine::default(), 1);
    let server =
        Server::with_card(listener(), Settings { memory_bytes: 1 << 20, ..settings() }, &card).expect("it starts");
    let pd = ProtectionDomain::new(&provider.open_plain("mlx5_0").expect("a card")).expect("a domain");
    let info = |(workers, aggregators, blocks), number| {
        let settings = sparse::Settings::new(workers, aggregators, 1, 256, blocks).expect("in range");
        Worker::prepare(&pd, settings, number, sparse::Config::default()).expect("it is made").1
    };
    let good = info((1, 1, 8), 0);
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        vec![bytes]
    };
    let cases: [(Vec<Vec<u8>>, &str); 9] = [
        (vec![Vec::new()], "too short"),
        (vec![vec![0xff; 300]], "of another kind"),
        (changed(4, 9), "of another kind"),
        (changed(24, 1), "block"),
        (vec![info((1, 2, 8), 0)], "1 workers and 2 aggregators do not fit a job with 1 and 1"),
        (vec![good[..good.len() - 1].to_vec()], "connection information of worker 0"),
        (vec![info((2, 1, 8), 0), info((2, 1, 9), 1)], "blocks per message: 9 there, but 8 here"),
        (vec![info((2, 1, 8), 0), info((2, 1, 8), 0)], "is of worker 0"),
        (vec![info((64, 1, 32), 0)], "do not fit"),
    ];
    let connect = |job: u64, rank: u32, workers: u32, offer: &[u8]| {
        let mut stream = TcpStream::connect(server.address()).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        shake_hands(&mut stream, &greeting(job, rank, workers), rank);
        stream.write_all(&message(offer)).expect("sent");
        stream
    };
    let all = (1..).zip(&cases).flat_map(|(job, (offers, words))| {
        let workers = offers.len() as u32;
        (0..).zip(offers).map(move |(rank, offer)| (connect(job, rank, workers, offer), *words))
    });
    // All at once: a job that has failed gives its workers two seconds to learn why.
    let all: Vec<(TcpStream, &str)> = all.collect();
    for (mut stream, words) in all {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it ends");
        let text = String::from_utf8_lossy(&answer);
        assert!(text.contains(words), "{words:?}: {text}");
    }
    // A job with good ones is given the aggregator's.
    let mut stream = connect(99, 0, 1, &good);
    let mut frame = [0; 28];
    stream.read_exact(&mut frame).expect("an answer");
    let mut answer = vec![0; u32::from_le_bytes(frame[..4].try_into().expect("four bytes")) as usize];
    stream.read_exact(&mut answer).expect("the whole");
    assert_eq!((answer[0], &answer[8..12]), (6, &b"FXSE"[..]), "its queue pairs");
    drop(stream);
    let start = Instant::now();
    while server.status().connected > 0 || server.status().reserved_bytes > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", server.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! Sparse AllReduce of communicators with RDMA cards whose aggregators are no ranks: a server with a card of its own in threads of this process, by either datapath over emulated cards:
//! every byte checked against one core's loop over the contributions.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use emu_config::Machine;
use flexcast::aggregator::{Server, Settings};
use flexcast::p2p::reference;
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{
    Aggregation, Card, Communicator, Config, DatapathKind, Error, Outcome, Pending, Request, SparseOptions, UdpOptions,
    VerbsOptions,
};
use flexcast_tests::card_ranks::{self, CardRanks, filled};
use flexcast_tests::communicators::{Under, drive};
use flexcast_tests::sparse_world::contributions;
use flexcast_tests::told;
use flexio::Provider;

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
fn cards(datapath: DatapathKind, machine: &Machine, ranks: u32) -> (Provider, Vec<Card>, Card) {
    let (provider, mut cards) = card_ranks::cards(datapath, machine, ranks + 1);
    let last = cards.pop().expect("one more");
    // Only the ranks' cards run the datapath's image.
    drop(last);
    let name = format!("mlx5_{ranks}");
    let card = Card::verbs(&provider, &name, &VerbsOptions::default()).expect("the card opens");
    (provider, cards, card)
}

/// Aggregators answer by TCP in the computer's time, and virtual time passes meanwhile: bounds are long.
fn config() -> Config {
    card_ranks::config().barrier_timeout(Duration::from_secs(2))
}

fn names(servers: &[&Server]) -> Vec<String> {
    servers.iter().map(|server| server.address().to_string()).collect()
}

fn post(one: &Communicator, reduction: Reduction, options: SparseOptions, array: &[u8]) -> Request {
    one.sparse_all_reduce_in_place(filled(one, array), reduction, options).expect("accepted")
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
    let machine = Machine::default();
    for (datapath, ranks, aggregators) in
        [(DatapathKind::Verbs, 3, 1), (DatapathKind::Dpa, 2, 2), (DatapathKind::Verbs, 1, 1)]
    {
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

#[test]
fn a_server_that_is_started_anew_between_operations_serves_on_and_one_that_stops_is_named() {
    let (provider, cards, card) = cards(DatapathKind::Verbs, &Machine::default(), 2);
    let first = Server::with_card(listener(), settings(), &card).expect("it starts");
    let other = Server::with_card(listener(), settings(), &card).expect("it starts");
    let address = first.address();
    let config = config().aggregators(names(&[&first, &other]));
    let world = CardRanks::on((provider, cards), &config);
    gets(&world, 4096, 20, SUM, OPTIONS);
    // Ranks are told, and let it go at their next call.
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
        told(&failed.error, &["allreduce failed", &address.to_string()]);
        assert!(failed.receive.is_some(), "the buffer comes back");
    }
    let error = world.all[0].barrier().expect_err("of no use").error;
    told(&error, &[&address.to_string(), "of no use"]);
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
        let failure = failed.report.failure.expect("told");
        assert_eq!(failure.culprit, 2, "{failed}");
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
        [(&plain, ["no RDMA card", "--device"]), (&narrow, ["20000 bytes of memory", "use at most 1 workers"])]
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
    told(
        &refused(both.clone().aggregators(vec!["nowhere".to_owned()]).sparse_aggregation(Aggregation::Host)),
        &["nowhere", "host:port"],
    );
    // Image `sparse` is not started: that is told first.
    told(&refused(both), &["sparse_aggregation"]);
    let many = (0..65).map(|port| format!("127.0.0.1:{}", 1000 + port)).collect();
    told(&refused(config().aggregators(many)), &["number of aggregators is 65", "at most 64"]);
    // Their number is alike on all ranks, or all are told.
    let pending = [vec!["127.0.0.1:1"], vec!["127.0.0.1:1", "127.0.0.1:2"]].map(|names| {
        let names = names.into_iter().map(str::to_owned).collect();
        config().aggregators(names)
    });
    let pending = (0..).zip(&cards).zip(pending).map(|((rank, card), config)| Pending::new(card, rank, 2, config));
    let mut pending: Vec<Pending> = pending.map(|pending| pending.expect("its part is made")).collect();
    let endpoints: Vec<Vec<u8>> = pending.iter().map(Pending::endpoint).collect();
    let error = pending.remove(0).connect(&endpoints).expect_err("they differ");
    told(&error, &["number of aggregators 2", "this rank 1"]);
    let interface = Card::udp(&UdpOptions::default().interface("lo")).expect("loopback");
    let error = Server::with_card(listener(), settings(), &interface).expect_err("no RDMA card");
    told(&error, &["network interface"]);
}

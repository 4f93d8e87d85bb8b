//! Communicators on emulated cards, all ranks in the calling thread, with the real firmware. What fails here fails the
//! test: every function panics.
#![allow(clippy::missing_panics_doc)]

use std::time::Duration;

use emu_config::Machine;
use emu_machine::Config as MachineConfig;
use emu_provider::emulated;
use flexcast::{Communicator, Config, Done, Endpoint, Firmware, Outcome, Overheads, Pending, Request, Selection, Test};
use flexio::Provider;

use crate::image_bytes;

/// Virtual time in which any operation here ends, failures included.
pub const BOUND_PS: u64 = 3_000_000_000_000;

/// Small, so that communicators are made quickly, and with short waits.
#[must_use]
pub fn config() -> Config {
    Config::default()
        .with_subgroups(2)
        .slots(32)
        .receive_batch(8)
        .send_batch(4)
        .send_depth(32)
        .max_receive_bytes(1 << 20)
        // What is tested with these is the card's datapath, with few bytes.
        .eager_bytes(0)
        .algorithm(Selection::Multicast)
        .barrier_timeout(Duration::from_micros(20_000))
        .overheads(Overheads { cutoff_slack: Duration::from_micros(300), ..Config::default().overheads })
}

/// Runs `body` with so many cards at a switch.
pub fn with_cards(count: usize, body: impl FnOnce(&Provider, &[Endpoint])) {
    with_machine(Machine::default().config_of(count).expect("a switch"), body);
}

/// Runs `body` with the cards of this machine.
pub fn with_machine(machine: MachineConfig, body: impl FnOnce(&Provider, &[Endpoint])) {
    let count = machine.cards;
    let provider = emulated(machine).expect("a machine");
    let elf = image_bytes("allgather");
    let open = |number| {
        let firmware = Firmware { name: "allgather", elf: &elf };
        Endpoint::open(&provider, &format!("mlx5_{number}"), firmware).expect("the card opens")
    };
    let cards: Vec<Endpoint> = (0..count).map(open).collect();
    body(&provider, &cards);
}

/// A communicator of the ranks that are on these cards, one each.
pub fn connect<'c>(cards: impl Iterator<Item = &'c Endpoint>, config: &Config) -> Vec<Communicator> {
    let cards: Vec<_> = cards.collect();
    let ranks = cards.len() as u32;
    let pending: Vec<Pending> = (0..)
        .zip(cards)
        .map(|(rank, card)| Pending::new(card, rank, ranks, config.clone()).expect("its part is made"))
        .collect();
    let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
    pending.into_iter().map(|pending| pending.connect(&infos).expect("connected")).collect()
}

fn byte(seed: u64, rank: usize, at: usize) -> u8 {
    (at as u64 * 11 + at as u64 / 253 + rank as u64 * 37 + seed) as u8
}

/// After so many bytes a contribution repeats itself.
const PERIOD: usize = 253 * 256;

/// What a rank contributes: differs by seed, rank and place.
#[must_use]
pub fn contribution(seed: u64, rank: usize, len: usize) -> Vec<u8> {
    let period: Vec<u8> = (0..len.min(PERIOD)).map(|at| byte(seed, rank, at)).collect();
    // Slices: tests of hundreds of MiB would wait longer for single bytes than for the emulator.
    let mut bytes = period.repeat(len.div_ceil(PERIOD));
    bytes.truncate(len);
    bytes
}

/// What an Allgather of such contributions brings.
#[must_use]
pub fn gathered(seed: u64, ranks: usize, len: usize) -> Vec<u8> {
    let blocks: Vec<Vec<u8>> = (0..ranks).map(|rank| contribution(seed, rank, len)).collect();
    blocks.concat()
}

/// Posts an Allgather of `bytes` bytes.
pub fn gather(communicator: &Communicator, seed: u64, bytes: usize) -> Request {
    let card = communicator.endpoint();
    let mut send = card.buffer(bytes).expect("a buffer");
    send.write(0, &contribution(seed, communicator.rank() as usize, bytes)).expect("written");
    let receive = card.buffer(bytes * communicator.size() as usize).expect("a buffer");
    communicator.allgather(send, receive).expect("accepted")
}

/// What an Allgather must have brought.
pub fn check(done: &Done, seed: u64, ranks: usize, bytes: usize) {
    let got = done.receive.to_vec().expect("read");
    assert!(got == gathered(seed, ranks, bytes), "bytes of {ranks} ranks, {bytes} each");
}

/// An operation of a rank.
pub struct Under<'r> {
    /// Whose it is.
    pub communicator: &'r Communicator,
    /// Until it is over.
    pub request: Option<Request>,
    /// Its end.
    pub done: Option<Outcome>,
}

impl<'r> Under<'r> {
    /// One that has been posted.
    #[must_use]
    pub fn new(communicator: &'r Communicator, request: Request) -> Self {
        Self { communicator, request: Some(request), done: None }
    }
}

/// Drives all to their end, or panics at the bound; `meanwhile` gets the time since the start.
pub fn drive(provider: &Provider, all: &mut [Under<'_>], mut meanwhile: impl FnMut(u64, &mut [Under<'_>])) {
    let start_ps = provider.relax().now_ps();
    while all.iter().any(|one| one.done.is_none()) {
        let since_ps = provider.relax().now_ps() - start_ps;
        assert!(since_ps < BOUND_PS, "hangs");
        meanwhile(since_ps, all);
        for one in all.iter_mut() {
            let Some(request) = one.request.take() else {
                // Neighbours may still need it.
                one.communicator.progress().expect("progress");
                continue;
            };
            match request.test() {
                Ok(Test::Pending(request)) => one.request = Some(request),
                Ok(Test::Done(done)) => one.done = Some(Ok(done)),
                Err(failed) => one.done = Some(Err(failed)),
            }
        }
        provider.relax().relax();
    }
}

/// Drives operations to their end, whatever that is, and gives what came of each.
pub fn ended<'r>(provider: &Provider, all: impl IntoIterator<Item = (&'r Communicator, Request)>) -> Vec<Outcome> {
    let mut all: Vec<_> = all.into_iter().map(|(communicator, request)| Under::new(communicator, request)).collect();
    drive(provider, &mut all, |_, _| {});
    all.into_iter().filter_map(|one| one.done).collect()
}

/// An Allgather of all these ranks that must come out right.
pub fn gathers(provider: &Provider, communicators: &[Communicator], seed: u64, bytes: usize) {
    let ranks = communicators.len();
    let posted = communicators.iter().map(|communicator| {
        let request = gather(communicator, seed, bytes);
        (communicator, request)
    });
    let posted: Vec<_> = posted.collect();
    for done in ended(provider, posted) {
        let done = done.expect("success");
        check(&done, seed, ranks, bytes);
    }
}

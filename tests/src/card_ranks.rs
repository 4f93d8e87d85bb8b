//! Ranks with an emulated RDMA card each, by the DPA's datapath with the real firmware or by that of the hosts'
//! processors, all in the calling thread. What fails here fails the test: every function panics.
#![allow(clippy::missing_panics_doc)]

use std::time::Duration;

use emu_config::Machine;
use flexcast::{
    Buffer, Communicator, Config, DatapathKind, Done, Endpoint, Failed, Firmware, Outcome, Request, Selection, Test,
};
use flexio::Provider;

use crate::communicators::{self, BOUND_PS, connect, ended};
use crate::image_bytes;

/// Small queues, the barrier's own way for what is short, and connections for the rest.
#[must_use]
pub fn config() -> Config {
    let config = communicators::config().with_subgroups(1).slots(64).eager_bytes(16 << 10);
    config.algorithm(Selection::Automatic).recovery_timeout(Duration::from_micros(10_000))
}

/// Cards at a switch, as a datapath opens them.
#[must_use]
pub fn cards(datapath: DatapathKind, machine: &Machine, ranks: u32) -> (Provider, Vec<Endpoint>) {
    let provider = emu_provider::emulated(machine.config_of(ranks as usize).expect("a switch")).expect("a machine");
    let elf = image_bytes("allgather");
    let open = |number| {
        let (name, firmware) = (format!("mlx5_{number}"), Firmware { name: "allgather", elf: &elf });
        match datapath {
            DatapathKind::Dpa => Endpoint::open(&provider, &name, firmware),
            _ => Endpoint::verbs(&provider, &name),
        }
        .expect("the card opens")
    };
    let cards = (0..ranks).map(open).collect();
    (provider, cards)
}

/// A buffer with these bytes.
#[must_use]
pub fn filled(communicator: &Communicator, bytes: &[u8]) -> Buffer {
    let mut buffer = communicator.endpoint().buffer(bytes.len()).expect("a buffer");
    buffer.write(0, bytes).expect("written");
    buffer
}

/// A buffer with bytes that nobody has written.
#[must_use]
pub fn empty(communicator: &Communicator, bytes: usize) -> Buffer {
    let mut buffer = communicator.endpoint().buffer(bytes).expect("a buffer");
    buffer.fill(0xA5);
    buffer
}

/// The ranks of a communicator.
pub struct CardRanks {
    /// Of the machine with all cards.
    pub provider: Provider,
    /// By rank.
    pub all: Vec<Communicator>,
}

impl CardRanks {
    /// A communicator of so many ranks.
    #[must_use]
    pub fn new(datapath: DatapathKind, machine: &Machine, ranks: u32, config: &Config) -> Self {
        Self::on(cards(datapath, machine, ranks), config)
    }

    /// The same on these cards.
    #[must_use]
    pub fn on((provider, cards): (Provider, Vec<Endpoint>), config: &Config) -> Self {
        let all = connect(cards.iter(), config);
        Self { provider, all }
    }

    /// Number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.all.len() as u32
    }

    /// What becomes of a call on all ranks.
    pub fn end(&self, call: impl Fn(&Communicator, u32) -> Request) -> Vec<Outcome> {
        let posted: Vec<_> = self.all.iter().map(|one| (one, call(one, one.rank()))).collect();
        ended(&self.provider, posted)
    }

    /// A call that goes well on all ranks.
    pub fn call(&self, call: impl Fn(&Communicator, u32) -> Result<Request, Box<Failed>>) -> Vec<Done> {
        let all = self.end(|one, rank| call(one, rank).expect("accepted"));
        all.into_iter().map(|end| end.expect("success")).collect()
    }

    /// The same, of which every rank gets what is expected of it.
    pub fn gets(
        &self,
        expected: impl Fn(u32) -> Vec<u8>,
        call: impl Fn(&Communicator, u32) -> Result<Request, Box<Failed>>,
    ) {
        for (rank, done) in (0..).zip(self.call(call)) {
            let (got, expected) = (done.receive.to_vec().expect("read"), expected(rank));
            assert!(got == expected, "rank {rank} of {}: {} bytes", self.ranks(), expected.len());
        }
    }

    /// What comes of a call on each rank, by rank, where each leaves as soon as its own call is over. `idle` is called
    /// when all have been polled.
    pub fn leaving(mut self, call: impl Fn(&Communicator, u32) -> Request, idle: impl Fn()) -> Vec<Outcome> {
        let mut requests: Vec<Option<Request>> = self.all.iter().map(|one| Some(call(one, one.rank()))).collect();
        let mut ends: Vec<Option<Outcome>> = self.all.iter().map(|_| None).collect();
        let start_ps = self.provider.relax().now_ps();
        while !self.all.is_empty() {
            assert!(self.provider.relax().now_ps() - start_ps < BOUND_PS, "hangs");
            self.all.retain(|one| {
                let rank = one.rank() as usize;
                let Some(request) = requests[rank].take() else { return false };
                ends[rank] = match request.test() {
                    Ok(Test::Pending(request)) => {
                        requests[rank] = Some(request);
                        None
                    }
                    Ok(Test::Done(done)) => Some(Ok(done)),
                    Err(failed) => Some(Err(failed)),
                };
                ends[rank].is_none()
            });
            idle();
            self.provider.relax().relax();
        }
        ends.into_iter().flatten().collect()
    }

    /// An operation in whose midst the last rank goes, so long after its beginning: with its queue pairs, or, `silent`,
    /// it makes no progress any more. The errors of all others; none of them may have success.
    pub fn without_the_last(
        mut self,
        call: impl Fn(&Communicator, u32) -> Request,
        after_ps: u64,
        silent: bool,
    ) -> Vec<Box<Failed>> {
        let mut requests: Vec<Option<Request>> = self.all.iter().map(|one| Some(call(one, one.rank()))).collect();
        let (all, others) = (requests.len(), requests.len() - 1);
        let mut ends: Vec<Option<Box<Failed>>> = (0..others).map(|_| None).collect();
        let start_ps = self.provider.relax().now_ps();
        while ends.iter().any(Option::is_none) {
            let since_ps = self.provider.relax().now_ps() - start_ps;
            assert!(since_ps < BOUND_PS, "hangs");
            let is_gone = since_ps > after_ps;
            if is_gone && !silent && self.all.len() == all {
                drop((self.all.pop(), requests.pop()));
            }
            let active = if is_gone { others } else { all };
            for (one, request) in self.all.iter().zip(&mut requests).take(active) {
                let Some(posted) = request.take() else { continue };
                match posted.test() {
                    Ok(Test::Pending(posted)) => *request = Some(posted),
                    Ok(Test::Done(_)) => panic!("rank {} has a result after {since_ps} ps", one.rank()),
                    Err(failed) => ends[one.rank() as usize] = Some(failed),
                }
            }
            self.provider.relax().relax();
        }
        ends.into_iter().flatten().collect()
    }
}

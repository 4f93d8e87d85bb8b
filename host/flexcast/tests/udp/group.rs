//! Ranks as threads.

use std::net::TcpListener;
use std::thread;

use crate::attacks::Overheard;
use flexcast::bootstrap::{StoreConfig, TcpStore};
use flexcast::{Buffer, Communicator, Config, Endpoint, Tuning, UdpOptions};

/// What rank `rank` contributes.
pub(crate) fn block(rank: u32, bytes: usize) -> Vec<u8> {
    let seed = u64::from(rank).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..bytes as u64).map(|at| ((seed ^ at).wrapping_mul(0xD129_0B26_8B4C_F47D) >> 56) as u8).collect()
}

/// Compares bytes of a buffer.
pub(crate) fn check(buffer: &Buffer, offset: usize, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    buffer.read(offset, &mut bytes).unwrap();
    if let Some(at) = bytes.iter().zip(expected).position(|(found, expected)| found != expected) {
        panic!("byte {at} of {} at {offset} is {:#x}, not {:#x}", expected.len(), bytes[at], expected[at]);
    }
}

/// So many ranks with one configuration.
pub(crate) struct Group {
    ranks: u32,
    options: UdpOptions,
    configure: Box<dyn Fn(Config) -> Config + Sync>,
    of_first: Option<Tuning>,
}

impl Group {
    pub(crate) fn new(ranks: u32, options: UdpOptions, configure: impl Fn(Config) -> Config + Sync + 'static) -> Self {
        Self { ranks, options, configure: Box::new(configure), of_first: None }
    }

    /// The same where rank 0, and nobody else, has a tuning.
    pub(crate) fn tuned(self, tuning: Tuning) -> Self {
        Self { of_first: Some(tuning), ..self }
    }

    /// Runs a program on every rank: over sockets alone, and again with shared memory.
    pub(crate) fn run(&self, program: impl Fn(&Communicator, u32) + Sync) {
        [false, true].into_iter().for_each(|shared_memory| self.run_once(shared_memory, &program));
    }

    /// Runs a program on every rank, with or without shared memory.
    pub(crate) fn run_once(&self, shared_memory: bool, program: impl Fn(&Communicator, u32) + Sync) {
        self.run_as(shared_memory, &|_, port| port, &program);
    }

    /// Runs a program on every rank, over sockets alone. `port`: given a rank and the TCP port that it has announced to
    /// the others, where they connect to it.
    pub(crate) fn run_overheard(
        &self,
        port: &(dyn Fn(u32, u16) -> u16 + Sync),
        program: impl Fn(&Communicator, u32) + Sync,
    ) {
        self.run_as(false, port, &program);
    }

    fn run_as(
        &self,
        shared_memory: bool,
        port: &(dyn Fn(u32, u16) -> u16 + Sync),
        program: &(impl Fn(&Communicator, u32) + Sync),
    ) {
        let options = &self.options.clone().shared_memory(shared_memory);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let first = std::sync::Mutex::new(Some(listener));
        thread::scope(|scope| {
            for rank in 0..self.ranks {
                let (address, first) = (address.clone(), &first);
                scope.spawn(move || {
                    let config = StoreConfig::new(rank, self.ranks, &address);
                    let listener = if rank == 0 { first.lock().unwrap().take() } else { None };
                    let mut store = match listener {
                        Some(listener) => TcpStore::with_listener(listener, config),
                        None => TcpStore::join(config),
                    }
                    .unwrap();
                    let endpoint = Endpoint::udp(options).unwrap();
                    let mut config = (self.configure)(Config::for_endpoint(&endpoint));
                    if rank == 0 && self.of_first.is_some() {
                        config = config.tuning(self.of_first.clone());
                    }
                    let mut exchange = Overheard(&mut store, port);
                    let communicator = Communicator::create(&endpoint, &mut exchange, config).unwrap();
                    program(&communicator, rank);
                });
            }
        });
    }
}

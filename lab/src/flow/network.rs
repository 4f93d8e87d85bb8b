//! Network of the flow-level simulation: where bytes of a transfer queue, and when they are through.
//!
//! A transfer passes stages, each of which serves one part after the other at its rate: the PCIe link out of the
//! source's host, the port of its card, the port of the other card, the PCIe link into the host; memory of the Arm
//! cores where it begins or ends there. A part begins at a stage when its first byte comes from the one before
//! (cut-through), and ends no earlier than its last byte comes. Long transfers go in up to four parts, so that others
//! come between. Switches have full bisection bandwidth and room for everything: a network that is overloaded holds
//! nobody back but the transfers of the same ports.

use super::params::NetworkParams;

/// Bytes of a part, at least.
const PART_BYTES: u64 = 256 << 10;
/// Parts of a transfer, at most.
const PARTS: u64 = 4;

/// Where bytes queue, at each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// From the host's memory to its card.
    HostOut,
    /// From the card's port to the network.
    Tx,
    /// From the network.
    Rx,
    /// To the host's memory.
    HostIn,
    /// Memory of the Arm cores.
    Arm,
}

const STAGES: usize = 5;

/// The memory that a transfer begins or ends at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A host's.
    Host(u32),
    /// That of the Arm cores of a host's card.
    Arm(u32),
}

impl Place {
    pub(super) const fn host(self) -> u32 {
        match self {
            Self::Host(host) | Self::Arm(host) => host,
        }
    }
}

/// A transfer under way, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransferId(u32);

impl TransferId {
    pub(super) const fn number(self) -> u32 {
        self.0
    }
}

/// What has happened to a part that has come to a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Served {
    /// When its first byte comes to the next stage; none if there is no further one.
    pub(super) next_ps: Option<u64>,
    /// When the following part may begin, if it is to begin.
    pub(super) following_ps: Option<u64>,
    /// When the whole transfer is over, if this was the last part at the last stage.
    pub(super) over_ps: Option<u64>,
}

/// A part on its way: of which transfer, at which of its stages, and when its last byte has left the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) transfer: TransferId,
    at: u8,
    bytes: u64,
    tail_ps: u64,
    is_last: bool,
}

#[derive(Debug)]
struct Transfer {
    stages: [(u32, Stage); 6],
    count: u8,
    /// Of a multicast: what goes on at each receiver with each part that has left the source.
    copies: Vec<TransferId>,
    /// Such a copy: its parts are those of another transfer.
    is_copy: bool,
    part_bytes: u64,
    left_bytes: u64,
}

/// Bytes that have passed a kind of stage, over all hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) port_bytes: u64,
    pub(super) arm_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Network {
    params: NetworkParams,
    free_ps: Vec<[u64; STAGES]>,
    /// When the memory of a host is through with what processors copy.
    copies_ps: Vec<u64>,
    transfers: Vec<Option<Transfer>>,
    free: Vec<u32>,
    traffic: Traffic,
    /// Parts of copies that come to their first stage, and when.
    fanned: Vec<(u64, Part)>,
}

impl Network {
    pub(super) fn new(params: NetworkParams, hosts: u32) -> Self {
        let hosts = hosts as usize;
        Self {
            params,
            free_ps: vec![[0; STAGES]; hosts],
            copies_ps: vec![0; hosts],
            transfers: Vec::new(),
            free: Vec::new(),
            traffic: Traffic::default(),
            fanned: Vec::new(),
        }
    }

    /// Time of a control message from one card to another, or within a host.
    pub(super) const fn message_ps(&self, from: u32, to: u32) -> u64 {
        if from == to { self.params.local_ps } else { self.params.latency_ps }
    }

    pub(super) const fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// A transfer, and its first part, which comes to its first stage when this says so: after `request_ps` for a
    /// Read's request.
    pub(super) fn begin(&mut self, from: Place, to: Place, bytes: u64, now_ps: u64) -> Part {
        let mut stages = [(0, Stage::Tx); 6];
        let mut count = 0;
        let mut push = |host: u32, stage: Stage| {
            stages[count] = (host, stage);
            count += 1;
        };
        let (source, target) = (from.host(), to.host());
        match from {
            Place::Host(host) => push(host, Stage::HostOut),
            Place::Arm(host) => push(host, Stage::Arm),
        }
        if source != target {
            push(source, Stage::Tx);
            push(target, Stage::Rx);
            self.traffic.port_bytes += bytes;
        }
        match to {
            Place::Host(host) => push(host, Stage::HostIn),
            Place::Arm(host) => push(host, Stage::Arm),
        }
        for place in [from, to] {
            self.traffic.arm_bytes += if matches!(place, Place::Arm(_)) { bytes } else { 0 };
        }
        let id = self.add(stages, count as u8, bytes, Vec::new(), false);
        self.cut(id, now_ps)
    }

    fn add(
        &mut self,
        stages: [(u32, Stage); 6],
        count: u8,
        bytes: u64,
        copies: Vec<TransferId>,
        is_copy: bool,
    ) -> TransferId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.transfers.push(None);
            self.transfers.len() as u32 - 1
        });
        let part_bytes = bytes.div_ceil(PARTS).max(PART_BYTES);
        self.transfers[id as usize] = Some(Transfer { stages, count, copies, is_copy, part_bytes, left_bytes: bytes });
        TransferId(id)
    }

    /// A multicast from memory of the Arm cores of a host to that of others, one for each that receives, those of a
    /// host one behind the other: the first part, and the transfers that are over where each has it. It leaves the
    /// source's port once, and comes through the port of each other host once.
    pub(super) fn begin_multicast(
        &mut self,
        from: u32,
        to: &[u32],
        bytes: u64,
        now_ps: u64,
    ) -> (Part, Vec<TransferId>) {
        let mut copies = Vec::with_capacity(to.len());
        let mut last = None;
        for &host in to {
            let mut stages = [(host, Stage::Arm); 6];
            let crosses = host != from && last != Some(host);
            if crosses {
                stages[0] = (host, Stage::Rx);
            }
            last = Some(host);
            self.traffic.arm_bytes += bytes;
            copies.push(self.add(stages, if crosses { 2 } else { 1 }, bytes, Vec::new(), true));
        }
        self.traffic.arm_bytes += bytes;
        let mut stages = [(from, Stage::Tx); 6];
        stages[0] = (from, Stage::Arm);
        self.traffic.port_bytes += if to.iter().any(|host| *host != from) { bytes } else { 0 };
        let id = self.add(stages, 2, bytes, copies.clone(), false);
        (self.cut(id, now_ps), copies)
    }

    /// Parts of multicasts that come to their receivers, since the last call.
    pub(super) fn take_fanned(&mut self) -> Vec<(u64, Part)> {
        std::mem::take(&mut self.fanned)
    }

    /// The next part of a transfer.
    fn cut(&mut self, id: TransferId, now_ps: u64) -> Part {
        let (mut bytes, mut is_last) = (0, true);
        if let Some(transfer) = &mut self.transfers[id.0 as usize] {
            bytes = transfer.left_bytes.min(transfer.part_bytes);
            transfer.left_bytes -= bytes;
            is_last = transfer.left_bytes == 0;
        }
        Part { transfer: id, at: 0, bytes, tail_ps: now_ps, is_last }
    }

    const fn rate(&self, stage: Stage) -> u64 {
        match stage {
            Stage::HostOut | Stage::HostIn => self.params.host_bytes_per_s,
            Stage::Tx | Stage::Rx => self.params.port_bytes_per_s,
            Stage::Arm => self.params.arm_bytes_per_s,
        }
    }

    /// The first byte of a part comes to a stage now.
    pub(super) fn serve(&mut self, part: &mut Part, now_ps: u64) -> Served {
        let Some(transfer) = &self.transfers[part.transfer.0 as usize] else {
            return Served { next_ps: None, following_ps: None, over_ps: None };
        };
        let (host, stage) = transfer.stages[part.at as usize];
        let crosses = |(_, stage): (u32, Stage)| stage == Stage::Tx;
        // The network is between the two ports; the rest of a card takes no time except by its rate.
        let way_ps = if crosses((host, stage)) { self.params.latency_ps } else { 0 };
        let is_end = part.at + 1 == transfer.count;
        let service_ps = time_ps(part.bytes, self.rate(stage));
        let free = &mut self.free_ps[host as usize][stage as usize];
        let start_ps = now_ps.max(*free);
        *free = start_ps + service_ps;
        part.tail_ps = (start_ps + service_ps).max(part.tail_ps) + way_ps;
        let following_ps = (part.at == 0 && !part.is_last && !transfer.is_copy).then_some(start_ps + service_ps);
        if is_end {
            let copies =
                transfer.copies.iter().map(|copy| (start_ps + way_ps, Part { transfer: *copy, at: 0, ..*part }));
            self.fanned.extend(copies);
            let over_ps = part.is_last.then_some(part.tail_ps);
            if over_ps.is_some() {
                self.transfers[part.transfer.0 as usize] = None;
                self.free.push(part.transfer.0);
            }
            return Served { next_ps: None, following_ps, over_ps };
        }
        part.at += 1;
        Served { next_ps: Some(start_ps + way_ps), following_ps, over_ps: None }
    }

    /// The part that follows, when [`Served::following_ps`] has come.
    pub(super) fn follow(&mut self, transfer: TransferId, now_ps: u64) -> Part {
        self.cut(transfer, now_ps)
    }

    /// When a processor of a host has copied so many bytes, which it begins now.
    pub(super) fn copy(&mut self, host: u32, bytes: u64, now_ps: u64) -> u64 {
        let memory = &mut self.copies_ps[host as usize];
        let start_ps = now_ps.max(*memory);
        *memory = start_ps + time_ps(bytes, self.params.copies_bytes_per_s);
        (*memory).max(now_ps + time_ps(bytes, self.params.copy_bytes_per_s))
    }
}

/// Time of so many bytes at a rate.
pub(crate) const fn time_ps(bytes: u64, bytes_per_s: u64) -> u64 {
    (bytes as u128 * 1_000_000_000_000 / bytes_per_s as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::super::params::Preset;
    use super::super::queue::Queue;
    use super::*;

    /// When transfers that begin at these times are over.
    fn run(network: &mut Network, transfers: &[(u64, Place, Place, u64)]) -> Vec<u64> {
        enum What {
            Begin(usize),
            Part(usize, Part),
            Follow(usize, TransferId),
        }
        let mut queue = Queue::new();
        for (number, (at_ps, ..)) in transfers.iter().enumerate() {
            queue.plan(*at_ps, What::Begin(number));
        }
        let mut over = vec![0; transfers.len()];
        while let Some((now_ps, what)) = queue.next() {
            let (number, mut part) = match what {
                What::Begin(number) => {
                    let (_, from, to, bytes) = transfers[number];
                    (number, network.begin(from, to, bytes, now_ps))
                }
                What::Part(number, part) => (number, part),
                What::Follow(number, transfer) => (number, network.follow(transfer, now_ps)),
            };
            let served = network.serve(&mut part, now_ps);
            if let Some(at_ps) = served.next_ps {
                queue.plan(at_ps, What::Part(number, part));
            }
            if let Some(at_ps) = served.following_ps {
                queue.plan(at_ps, What::Follow(number, part.transfer));
            }
            if let Some(at_ps) = served.over_ps {
                over[number] = at_ps;
            }
        }
        assert_eq!(network.transfers.iter().flatten().count(), 0);
        over
    }

    fn network() -> Network {
        let params = NetworkParams {
            latency_ps: 1_000_000,
            local_ps: 500_000,
            port_bytes_per_s: 20_000_000_000,
            host_bytes_per_s: 10_000_000_000,
            arm_bytes_per_s: 10_000_000_000,
            copy_bytes_per_s: 5_000_000_000,
            copies_bytes_per_s: 10_000_000_000,
        };
        Network::new(params, 4)
    }

    #[test]
    fn a_transfer_takes_the_latency_and_its_bytes_at_the_slowest_stage() {
        // 1 MB at 10 GB/s: 100 us.
        let alone = run(&mut network(), &[(0, Place::Host(0), Place::Host(1), 1_000_000)]);
        assert_eq!(alone, [101_000_000]);
        let arm = run(&mut network(), &[(7, Place::Arm(2), Place::Host(2), 1000)]);
        assert_eq!(arm, [100_007]);
    }

    #[test]
    fn transfers_of_a_port_share_it() {
        let two = [(0, Place::Host(0), Place::Host(1), 1_000_000), (0, Place::Host(2), Place::Host(1), 1_000_000)];
        let over = run(&mut network(), &two);
        // The link into host 1 carries 2 MB.
        assert_eq!(over.iter().max(), Some(&201_000_000));
        // Parts go in turn: neither waits for all of the other.
        assert!(over.iter().min().is_some_and(|first| *first > 170_000_000), "{over:?}");
        let others = [(0, Place::Host(0), Place::Host(1), 1_000_000), (0, Place::Host(2), Place::Host(3), 1_000_000)];
        assert_eq!(run(&mut network(), &others), [101_000_000; 2]);
    }

    #[test]
    fn processors_of_a_host_share_its_memory() {
        let mut network = network();
        assert_eq!(network.copy(0, 1_000_000, 0), 200_000_000);
        assert_eq!(network.copy(0, 1_000_000, 0), 200_000_000);
        assert_eq!(network.copy(0, 1_000_000, 0), 300_000_000);
        assert_eq!(network.copy(1, 1_000_000, 0), 200_000_000);
    }

    #[test]
    fn point_to_point_is_as_published() {
        // 4 MB between hosts behind PCIe 3, between cards, and messages without data.
        let params = Preset::Graham.params().network;
        let bytes = 4_000_000;
        for (from, to, published) in [(Place::Host(0), Place::Host(1), 13.92), (Place::Arm(0), Place::Arm(1), 24.75)] {
            let over = run(&mut Network::new(params, 2), &[(0, from, to, bytes)])[0];
            let gb_per_s = bytes as f64 / over as f64 * 1000.0;
            assert!((gb_per_s / published - 1.0).abs() < 0.05, "{gb_per_s} GB/s, published {published}");
        }
        let empty = run(&mut Network::new(params, 2), &[(0, Place::Host(0), Place::Host(1), 0)])[0];
        assert_eq!(empty, 1_160_000);
    }
}

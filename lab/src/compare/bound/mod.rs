//! One rank of the bound: Allgather and Broadcast by IP multicast, with nothing done about losses.
//!
//! Each rank sends its bytes once, to all others, and is done when it has all of theirs. Nothing is acknowledged, and a
//! repetition in which a packet was lost does not count. With offloads, packets leave and arrive as super-packets of up
//! to 64 KiB, which cross links and bridge whole; without, one system call carries several packets.

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use nix::time::{ClockId, clock_gettime};

use super::Op;
use super::counters::{self, Counters};
use super::network::{INTERFACE, MTU, Network};
use super::sample::{Sample, Task};
use crate::options::whole;

mod multicast;
mod peers;

use multicast::Socket;
use peers::Peers;

/// How long a rank waits for a packet before the rest counts as lost.
const QUIET: Duration = Duration::from_millis(300);
/// Bytes of headers of a UDP datagram over IPv4.
const UDP_HEADERS: u32 = 28;
/// Places in the pattern at which buffers begin.
const SHIFTS: usize = 4096;

/// Name of the command of the command-line tool.
pub const COMMAND: &str = "multicast-bound";

/// Arguments of one rank, whose place among the others is given by the variables of torchrun: RANK, WORLD_SIZE,
/// MASTER_ADDR and MASTER_PORT.
#[derive(Clone, Debug, Args)]
pub struct BoundArgs {
    /// allgather or bcast.
    #[arg(value_enum)]
    pub op: Op,
    /// Timed repetitions.
    #[arg(value_parser = whole::<usize>(1, u32::MAX as usize))]
    pub repetitions: usize,
    /// Repetitions before them.
    #[arg(value_parser = whole::<usize>(0, u32::MAX as usize))]
    pub warm_up: usize,
    /// Interface whose bytes are counted.
    pub interface: String,
    /// Sizes in bytes.
    #[arg(required = true, value_parser = whole::<usize>(1, u32::MAX as usize))]
    pub sizes: Vec<usize>,
    /// One datagram a packet, without offloads.
    #[arg(long)]
    pub plain: bool,
}

/// Why a rank cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum BoundError {
    /// A variable is not set, or not as it must be.
    #[error("variable {name}: {reason}; `flexcast compare` sets it")]
    Variable {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A socket or file.
    #[error("rank {rank}: {what}: {source}")]
    Io {
        /// Whose.
        rank: usize,
        /// What was done.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Too few repetitions without a loss.
    #[error(
        "{lost} of {all} repetitions of {bytes} bytes have lost packets, which nothing repairs here; give smaller \
         --sizes"
    )]
    Lost {
        /// Repetitions with losses.
        lost: usize,
        /// Repetitions.
        all: usize,
        /// The size.
        bytes: usize,
    },
    /// Wrong bytes.
    #[error("rank {rank}: byte {at} of what rank {from} sent is wrong")]
    Differs {
        /// Who received it.
        rank: usize,
        /// Who sent it.
        from: usize,
        /// Which byte.
        at: usize,
    },
    /// An operation that it has not.
    #[error("{0}: multicast alone has allgather and bcast")]
    Op(&'static str),
}

/// The processes of all ranks.
#[must_use]
pub fn commands(program: &Path, network: &Network, task: &Task, port: u16, plain: bool) -> Vec<Command> {
    let of_rank = |rank| {
        let mut command = network.on(rank, program);
        command.arg(COMMAND).args(task.words(INTERFACE)).args(plain.then_some("--plain"));
        command.envs(variables(network, rank, port));
        command
    };
    (0..network.ranks()).map(of_rank).collect()
}

/// The variables by which the processes of a job find one another, as torchrun sets them.
#[must_use]
pub fn variables(network: &Network, rank: u32, port: u16) -> [(&'static str, String); 6] {
    [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", network.ranks().to_string()),
        ("LOCAL_RANK", "0".to_owned()),
        ("LOCAL_WORLD_SIZE", "1".to_owned()),
        ("MASTER_ADDR", network.address(0)),
        ("MASTER_PORT", port.to_string()),
    ]
}

/// Runs one rank; rank 0 hands each size to `print` as it is done.
///
/// # Errors
/// [`BoundError`].
pub fn run(args: &BoundArgs, print: &mut dyn FnMut(&Sample)) -> Result<(), BoundError> {
    if !matches!(args.op, Op::Allgather | Op::Bcast) {
        return Err(BoundError::Op(args.op.name()));
    }
    let peers = Peers::join()?;
    let rank = peers.rank;
    let socket = Socket::new((MTU - UDP_HEADERS) as usize, args.plain);
    let socket = socket.map_err(|source| BoundError::Io { rank, what: "multicast socket", source })?;
    let mut own = Rank { args, peers, socket, sequence: 0 };
    for bytes in &args.sizes {
        if let Some(sample) = own.measure(*bytes)? {
            print(&sample);
        }
    }
    Ok(())
}

/// One rank at work.
struct Rank<'a> {
    args: &'a BoundArgs,
    peers: Peers,
    socket: Socket,
    /// Number of the repetition, over all sizes: late packets of an earlier one are recognized by it.
    sequence: u32,
}

impl Rank<'_> {
    /// All repetitions of one size; what rank 0 makes of them.
    fn measure(&mut self, bytes: usize) -> Result<Option<Sample>, BoundError> {
        let (warm_up, repetitions) = (self.args.warm_up, self.args.repetitions);
        let pattern = pattern(bytes + SHIFTS);
        let (op, ranks) = (self.args.op, self.peers.ranks);
        // All, or the root; ranks take turns as root.
        let senders_of = |repetition: usize| match op {
            Op::Allgather => 0..ranks,
            _ => repetition % ranks..repetition % ranks + 1,
        };
        let mut received = vec![0; senders_of(0).len() * bytes];
        let (mut times, mut cpu, mut before) = (Vec::with_capacity(repetitions), 0.0, Counters::default());
        for repetition in 0..warm_up + repetitions {
            let sent_by = |from: usize| &pattern[shift(from, repetition)..][..bytes];
            let senders = senders_of(repetition);
            let own = senders.contains(&self.peers.rank).then(|| sent_by(self.peers.rank));
            if repetition == warm_up {
                self.barrier()?;
                before = self.counters()?;
            }
            self.barrier()?;
            let (cpu_before, begin) = (cpu_seconds(), Instant::now());
            let complete = self.exchange(own, &mut received, &senders, bytes)?;
            let (elapsed, cpu_after) = (begin.elapsed(), cpu_seconds());
            if complete {
                self.check(&received, &senders, bytes, &sent_by)?;
            }
            if repetition >= warm_up {
                times.push(if complete { elapsed.as_secs_f64() * 1e6 } else { f64::INFINITY });
                cpu += cpu_after - cpu_before;
            }
        }
        self.barrier()?;
        let after = self.counters()?;
        // As many barriers alone, whose bytes are no part of the operation.
        (0..repetitions).try_for_each(|_| self.barrier())?;
        self.barrier()?;
        let (all, barriers) = (after.since(before), self.counters()?.since(after));
        let per_operation = |all: u64, barriers: u64| (all as f64 - barriers as f64) / repetitions as f64;
        let sent = per_operation(all.sent, barriers.sent);
        let mut own = vec![sent, sent + per_operation(all.received, barriers.received), cpu / repetitions as f64];
        own.extend(times);
        let ranks = self.peers.gather(&own).map_err(|source| self.failed("results of the others", source))?;
        ranks.map(|ranks| summary(bytes, &ranks)).transpose()
    }

    /// Sends the own bytes, if any, and takes those of the others; whether all have come.
    fn exchange(
        &mut self,
        own: Option<&[u8]>,
        received: &mut [u8],
        senders: &Range<usize>,
        bytes: usize,
    ) -> Result<bool, BoundError> {
        self.sequence += 1;
        let rank = self.peers.rank;
        if let Some(own) = own {
            received[(rank - senders.start) * bytes..][..bytes].copy_from_slice(own);
        }
        let failed = |source| BoundError::Io { rank, what: "multicast", source };
        let own = own.unwrap_or_default();
        let mut missing = (senders.len() - usize::from(!own.is_empty())) * bytes;
        let mut sent = 0;
        while sent < own.len() || missing > 0 {
            if sent < own.len() {
                sent += self.socket.send(self.sequence, rank, own, sent).map_err(failed)?;
            }
            let mut quiet_since = None;
            while missing > 0 {
                let taken = self.socket.receive(|sequence, from, offset, payload| {
                    let fits = sequence == self.sequence
                        && senders.contains(&from)
                        && from != rank
                        && offset + payload.len() <= bytes;
                    if fits {
                        received[(from - senders.start) * bytes + offset..][..payload.len()].copy_from_slice(payload);
                    }
                    if fits { payload.len() } else { 0 }
                });
                match taken.map_err(failed)? {
                    Some(taken) => {
                        missing = missing.saturating_sub(taken);
                        quiet_since = None;
                    }
                    None if sent < own.len() => break,
                    // Like MPI it polls, and lets others run.
                    None if quiet_since.get_or_insert_with(Instant::now).elapsed() < QUIET => std::thread::yield_now(),
                    None => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    fn check<'a>(
        &self,
        received: &[u8],
        senders: &Range<usize>,
        bytes: usize,
        sent_by: &dyn Fn(usize) -> &'a [u8],
    ) -> Result<(), BoundError> {
        for (slot, from) in senders.clone().enumerate() {
            let (came, sent) = (&received[slot * bytes..][..bytes], sent_by(from));
            if came != sent {
                let at = came.iter().zip(sent).position(|(came, sent)| came != sent).unwrap_or_default();
                return Err(BoundError::Differs { rank: self.peers.rank, from, at });
            }
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), BoundError> {
        self.peers.barrier().map_err(|source| self.failed("barrier", source))
    }

    fn counters(&self) -> Result<Counters, BoundError> {
        let text = std::fs::read_to_string("/proc/self/net/dev");
        let text = text.map_err(|source| self.failed("counters of the interface", source))?;
        Ok(counters::sum(&counters::parse(&text, &self.args.interface)))
    }

    fn failed(&self, what: &'static str, source: std::io::Error) -> BoundError {
        BoundError::Io { rank: self.peers.rank, what, source }
    }
}

/// What all ranks have reported: bytes into the switch, over ports, processor time, and the times of the repetitions.
fn summary(bytes: usize, ranks: &[Vec<f64>]) -> Result<Sample, BoundError> {
    let sum = |at: usize| ranks.iter().filter_map(|rank| rank.get(at)).sum::<f64>();
    let all = ranks.first().map_or(0, |rank| rank.len().saturating_sub(3));
    let largest =
        |at: usize| ranks.iter().filter_map(|rank| rank.get(3 + at)).fold(0.0, |most: f64, time| most.max(*time));
    let samples: Vec<f64> = (0..all).map(largest).filter(|time| time.is_finite()).collect();
    let lost = all - samples.len();
    if samples.is_empty() || lost > all / 2 {
        return Err(BoundError::Lost { lost, all, bytes });
    }
    Ok(Sample { bytes: bytes as u64, switch_bytes: sum(0), port_bytes: sum(1), cpu_s: sum(2), samples_us: samples })
}

/// Where in the pattern the bytes of a rank begin: elsewhere in every repetition.
fn shift(from: usize, repetition: usize) -> usize {
    (from * 1031 + repetition * 17) % SHIFTS
}

fn pattern(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..bytes).map(next).collect()
}

/// Processor time of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID);
    time.map_or(0.0, |time| Duration::from(time).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_counts_and_losses_do_not() {
        let ranks = [vec![10.0, 30.0, 0.5, 1.0, 5.0, 2.0], vec![1.0, 3.0, 0.25, 4.0, f64::INFINITY, 1.0]];
        let sample = summary(64, &ranks).unwrap();
        assert_eq!((sample.switch_bytes, sample.port_bytes, sample.cpu_s), (11.0, 33.0, 0.75));
        assert_eq!(sample.samples_us, [4.0, 2.0]);
        let lost = [vec![0.0, 0.0, 0.0, f64::INFINITY, f64::INFINITY, 1.0]];
        let error = summary(64, &lost).unwrap_err().to_string();
        assert!(error.starts_with("2 of 3 repetitions of 64 bytes"), "{error}");
    }

    #[test]
    fn buffers_differ_between_ranks_and_repetitions() {
        let pattern = pattern(SHIFTS + 64);
        let of = |from, repetition| &pattern[shift(from, repetition)..][..64];
        assert!(of(0, 0) != of(0, 1) && of(0, 0) != of(1, 0) && of(1, 1) != of(0, 0));
    }
}

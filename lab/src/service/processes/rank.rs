//! One rank of the demonstration, a process of its own: it does what its standard input says.

use std::io::{self, BufRead, IoSliceMut, Write};
use std::time::{Duration, Instant};

use flexcast_proto::service::wire::{Group, NO_CORE, Place};
use flexcast_proto::service::{Cause, Delivery, FailedParty, LocalCopies, Locality, Region, StagedCause, Topology};
use flexcast_service::daemon::read_secret;
use flexcast_service::{Error, LocalCopy, MemoryId, Session, SessionError, SessionTiming, StagedCall, endpoint_of};
use flexio::{ProtectionDomain, Provider};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use thiserror::Error;

use super::super::ServiceError;
use super::super::world::{Load, ServiceOp, blocks, content, memory, places};
use super::words::{Answer, Computed, Ending, Kind, Order, Start, now_ns};

/// Root of the Broadcasts.
const ROOT: u32 = 0;
/// Computing between two polls of a flag.
const SLICE: Duration = Duration::from_micros(50);
/// Between two polls of a rank that waits.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Why a rank cannot go on.
#[derive(Debug, Error)]
enum RankError {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Service(#[from] Error),
    #[error(transparent)]
    Made(#[from] ServiceError),
    #[error(transparent)]
    Card(#[from] flexio::Error),
    #[error("{what} has not come within {waited_ms} ms")]
    Late { what: &'static str, waited_ms: u64 },
    #[error(
        "memory of rank {holder}, process {pid}, cannot be read: {source}; where Yama restricts that \
         (/proc/sys/kernel/yama/ptrace_scope), set it to 0 or 1"
    )]
    Copy { holder: u32, pid: u32, source: nix::errno::Errno },
    #[error("{0}")]
    Order(String),
}

/// A collective that this rank has called.
#[derive(Clone, Copy)]
enum Call {
    Alias(flexcast_proto::service::ContextId),
    Staged(StagedCall),
}

struct Posted {
    op: ServiceOp,
    turn: u32,
    at: Instant,
    /// None: the call itself has failed.
    call: Result<Call, Ending>,
}

struct Rank {
    start: Start,
    session: Session,
    load: Load,
    peers: Vec<u32>,
    /// Of Alltoallv and Allgatherv: what goes out, and what comes in.
    alias: [MemoryId; 2],
    /// Of staged collectives.
    staged: [MemoryId; 2],
    posted: Vec<Posted>,
    progress_calls: u64,
}

/// Serves until the input ends.
///
/// # Errors
/// An answer cannot be written.
pub fn serve(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut rank: Option<Rank> = None;
    for line in input.lines() {
        let order = serde_json::from_str(&line?).map_err(io::Error::other)?;
        let answer = obey(&mut rank, order).unwrap_or_else(|error| Answer::Failed(error.to_string()));
        writeln!(output, "{}", serde_json::to_string(&answer)?)?;
        output.flush()?;
    }
    Ok(())
}

fn obey(rank: &mut Option<Rank>, order: Order) -> Result<Answer, RankError> {
    if let Order::Start(start) = order {
        let (made, answer) = Rank::new(*start)?;
        *rank = Some(made);
        return Ok(answer);
    }
    let rank = rank.as_mut().ok_or_else(|| RankError::Order("the first order must be the start".to_owned()))?;
    match order {
        Order::Start(_) => {}
        Order::Peers(peers) => rank.peers = peers,
        Order::Post { ops, turn } => {
            for op in ops {
                rank.post(op, turn)?;
            }
        }
        Order::Compute => return rank.compute().map(Answer::Computed),
        Order::Watch => return rank.watch().map(Answer::Ended),
        Order::Leave => rank.leave()?,
    }
    Ok(Answer::Done)
}

/// Computes for a while: numbers that depend on each other, and no call of anybody.
fn compute(seed: &mut u64) -> Duration {
    let begun = Instant::now();
    while begun.elapsed() < SLICE {
        for _ in 0..1000 {
            *seed = std::hint::black_box(seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
    begun.elapsed()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Rank {
    fn new(start: Start) -> Result<(Self, Answer), RankError> {
        let provider = match &start.libraries {
            Some(folder) => Provider::from_folder(folder)?,
            None => emu_provider::shared(),
        };
        let pd = ProtectionDomain::new(&provider.open(&start.device)?)?;
        // Ranks of a host copy blocks of an Allgatherv from each other, as programs of MPI do. The card's library has
        // allowed the daemon alone to.
        _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
        let secret = read_secret(&start.secret).map_err(|error| RankError::Order(error.to_string()))?;
        let Start { group, rank, hosts, ranks_per_host, processes_per_host, bytes, .. } = start;
        let ranks = hosts * ranks_per_host;
        let locality = |rank: u32| Locality { host: rank / ranks_per_host, socket: 0 };
        let localities: Vec<Locality> = (0..ranks).map(locality).collect();
        let topology = Topology::new(&localities, processes_per_host).map_err(ServiceError::from)?;
        let process = |rank: u32| endpoint_of(start.processes[topology.process_of(rank).unwrap_or(0) as usize]);
        let place =
            |(rank, locality): (u32, &Locality)| Place { locality: *locality, core: NO_CORE, process: process(rank) };
        let all: Vec<Place> = (0..).zip(&localities).map(place).collect();
        let begun = Instant::now();
        let mut session = Session::connect(&pd, process(rank), &secret, SessionTiming::default())?;
        let connect_us = micros(begun.elapsed());
        let begun = Instant::now();
        let load = Load { bytes, varies: true };
        let most = |other| load.between(rank, other).max(load.between(other, rank)).max(load.of(other));
        let most: u64 = (0..ranks).map(most).sum();
        let client = session.client();
        let alias = [client.share(memory(&pd, most)?)?, client.share(memory(&pd, most)?)?];
        let staged = [client.share(memory(&pd, bytes)?)?, client.share(memory(&pd, bytes * u64::from(ranks))?)?];
        let named = Group::new(group, u64::from(group), rank, processes_per_host, &all).map_err(ServiceError::from)?;
        client.join(&named)?;
        let (peers, posted, progress_calls) = Default::default();
        let mut this = Self { start, session, load, peers, alias, staged, posted, progress_calls };
        this.drive("the group", |rank| {
            let client = rank.session.client();
            for memory in [alias, staged].into_iter().flatten() {
                if client.key(memory)?.is_none() {
                    return Ok(false);
                }
            }
            Ok(client.has_joined(group, rank.start.rank)?)
        })?;
        let join_us = micros(begun.elapsed());
        Ok((this, Answer::Joined { connect_us, join_us }))
    }

    fn ranks(&self) -> u32 {
        self.start.hosts * self.start.ranks_per_host
    }

    fn bound(&self) -> Duration {
        Duration::from_millis(self.start.bound_ms)
    }

    /// Takes what has been said, and copies what this rank is to copy.
    fn progress(&mut self) -> Result<(), RankError> {
        self.progress_calls += 1;
        self.session.progress()?;
        while let Some(copy) = self.session.client().next_copy() {
            self.copy(&copy)?;
        }
        Ok(())
    }

    fn copy(&mut self, copy: &LocalCopy) -> Result<(), RankError> {
        let counts = self.lengths(ServiceOp::Allgatherv).1;
        let place = places(&counts)[copy.source as usize] as usize;
        let pid = self.peers.get(copy.holder as usize).copied().unwrap_or_default();
        let mut bytes = vec![0; copy.from.bytes as usize];
        let mut done = 0;
        while done < bytes.len() {
            let from = RemoteIoVec { base: copy.from.address as usize + done, len: bytes.len() - done };
            let read = process_vm_readv(Pid::from_raw(pid as i32), &mut [IoSliceMut::new(&mut bytes[done..])], &[from]);
            match read {
                Ok(count) if count > 0 => done += count,
                Ok(_) => return Ok(()),
                // It has died: its service process reports it.
                Err(nix::errno::Errno::ESRCH) => return Ok(()),
                Err(source) => return Err(RankError::Copy { holder: copy.holder, pid, source }),
            }
        }
        let client = self.session.client();
        client.region(self.alias[1]).write(place, &bytes)?;
        match client.copied(copy) {
            Err(Error::Gone) => Ok(()),
            sent => Ok(sent?),
        }
    }

    fn drive(
        &mut self,
        what: &'static str,
        mut is_over: impl FnMut(&mut Self) -> Result<bool, RankError>,
    ) -> Result<(), RankError> {
        let begun = Instant::now();
        while !is_over(self)? {
            self.progress()?;
            if begun.elapsed() > self.bound() {
                return Err(RankError::Late { what, waited_ms: self.start.bound_ms });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Bytes of blocks that this rank sends, and is to receive.
    fn lengths(&self, op: ServiceOp) -> (Vec<u64>, Vec<u64>) {
        let (load, rank, bytes) = (self.load, self.start.rank, self.start.bytes);
        let all = 0..self.ranks();
        match op {
            ServiceOp::Alltoallv => all.map(|other| (load.between(rank, other), load.between(other, rank))).unzip(),
            ServiceOp::Allgatherv => (vec![load.of(rank)], all.map(|other| load.of(other)).collect()),
            ServiceOp::Broadcast => (vec![bytes], vec![bytes]),
            ServiceOp::Allgather => (vec![bytes], vec![bytes; all.len()]),
        }
    }

    /// What is where after a collective.
    fn expected(&self, op: ServiceOp, turn: u32) -> (MemoryId, Vec<u8>) {
        let (_, from) = self.lengths(op);
        let rank = self.start.rank;
        let target = if op == ServiceOp::Alltoallv { rank } else { 0 };
        let memory = match op {
            ServiceOp::Alltoallv | ServiceOp::Allgatherv => self.alias[1],
            ServiceOp::Broadcast if rank == ROOT => self.staged[0],
            ServiceOp::Broadcast | ServiceOp::Allgather => self.staged[1],
        };
        let sources = if op == ServiceOp::Broadcast { ROOT.. } else { 0.. };
        (memory, sources.zip(&from).flat_map(|(source, len)| content(source, target, turn, *len)).collect())
    }

    fn post(&mut self, op: ServiceOp, turn: u32) -> Result<(), RankError> {
        // Messages of its service process are handled; if it is gone the call says so.
        _ = self.progress();
        let at = Instant::now();
        let call = match self.call(op, turn) {
            Ok(call) => Ok(call),
            Err(error) => Err(self.failed(op, &error)),
        };
        self.posted.push(Posted { op, turn, at, call });
        Ok(())
    }

    fn call(&mut self, op: ServiceOp, turn: u32) -> Result<Call, RankError> {
        let (to, from) = self.lengths(op);
        let (group, rank) = (self.start.group, self.start.rank);
        let data: Vec<u8> = (0..).zip(&to).flat_map(|(other, len)| content(rank, other, turn, *len)).collect();
        let [out, into] = if op.is_staged() { self.staged } else { self.alias };
        let client = self.session.client();
        client.region(out).write(0, &data)?;
        client.region(into).fill(0xA5);
        let order = || RankError::Order("a call before the keys of its memory are known".to_owned());
        let (send, receive) = (client.key(out)?.ok_or_else(order)?, client.key(into)?.ok_or_else(order)?);
        let send = Region { bytes: to.iter().sum(), ..send };
        let whole = Region { bytes: from.iter().sum(), ..receive };
        let (to_places, from_places) = (places(&to), places(&from));
        Ok(match op {
            ServiceOp::Alltoallv => {
                let send = blocks(send, &to, &to_places);
                Call::Alias(client.alltoallv(group, rank, &send, &blocks(receive, &from, &from_places))?)
            }
            ServiceOp::Allgatherv => {
                let receive = blocks(receive, &from, &from_places);
                Call::Alias(client.allgatherv(group, rank, Some(send), &receive, LocalCopies::Host)?)
            }
            ServiceOp::Broadcast => {
                let buffer = if rank == ROOT { send } else { whole };
                Call::Staged(client.broadcast((group, rank), ROOT, Delivery::Flat, buffer, None)?)
            }
            ServiceOp::Allgather => Call::Staged(client.allgather((group, rank), Delivery::Flat, send, whole, None)?),
        })
    }

    fn compute(&mut self) -> Result<Vec<Computed>, RankError> {
        let (mut ended, mut seed) = (Vec::new(), 1);
        for Posted { op, turn, at, call } in std::mem::take(&mut self.posted) {
            let call = call.map_err(|ending| RankError::Order(ending.text))?;
            let (mut computed, begun, calls) = (Duration::ZERO, Instant::now(), self.progress_calls);
            loop {
                let client = self.session.client();
                let is_flagged = match call {
                    Call::Alias(context) => client.is_flagged(context, self.start.rank)?,
                    Call::Staged(call) => client.is_staged_flagged(call, None)?,
                };
                if is_flagged {
                    break;
                }
                computed += compute(&mut seed);
                // Ranks of a host that share no memory copy blocks of an Allgatherv from each other on request. All
                // else needs nobody.
                if op == ServiceOp::Allgatherv && self.start.ranks_per_host > 1 {
                    self.progress()?;
                }
                if begun.elapsed() > self.bound() {
                    // The messages that have come say why.
                    self.progress()?;
                    self.end(call)?;
                    return Err(RankError::Late { what: "a flag", waited_ms: self.start.bound_ms });
                }
            }
            let (flag_us, computed_us, calls) = (micros(at.elapsed()), micros(computed), self.progress_calls - calls);
            if !self.end(call)? {
                return Err(RankError::Order(format!("{op} has its flag, but has not ended")));
            }
            let (memory, expected) = self.expected(op, turn);
            let mut found = vec![0; expected.len()];
            self.session.client().region(memory).read(0, &mut found)?;
            ended.push(Computed { op, is_right: found == expected, flag_us, computed_us, calls });
        }
        Ok(ended)
    }

    fn end(&mut self, call: Call) -> Result<bool, RankError> {
        let rank = self.start.rank;
        let client = self.session.client();
        Ok(match call {
            Call::Alias(context) => client.end(context, rank)?,
            Call::Staged(call) => client.end_staged(call, None)?,
        })
    }

    /// Waits until all that was called has ended, whatever the end.
    fn watch(&mut self) -> Result<Vec<Ending>, RankError> {
        let (begun, mut ends) = (Instant::now(), Vec::new());
        let mut open = std::mem::take(&mut self.posted);
        while !open.is_empty() {
            let progress = self.progress();
            let mut left = Vec::new();
            for posted in open {
                let end = match &posted.call {
                    Err(ending) => Some(ending.clone()),
                    Ok(call) => match (self.end(*call), &progress) {
                        (Ok(true), _) => Some(self.ended(posted.op, Kind::Well, "ended well".to_owned())),
                        (Ok(false), Ok(())) => None,
                        (Err(error), _) => Some(self.failed(posted.op, &error)),
                        (Ok(false), Err(error)) => Some(self.failed(posted.op, error)),
                    },
                };
                match end {
                    Some(ending) => ends.push(ending),
                    None if begun.elapsed() > self.bound() => {
                        ends.push(self.ended(posted.op, Kind::Nothing, "nothing was reported".to_owned()));
                    }
                    None => left.push(posted),
                }
            }
            open = left;
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(ends)
    }

    fn ended(&self, op: ServiceOp, kind: Kind, text: String) -> Ending {
        let session = self.session.end().map(|end| format!("{end:?}").to_lowercase());
        Ending { op, kind, rank: None, process: None, text, session, seen_ns: now_ns() }
    }

    fn failed(&self, op: ServiceOp, error: &RankError) -> Ending {
        let failed_rank = match error {
            RankError::Service(Error::Failed(failure)) => Some((failure.failed_rank, failure.cause == Cause::Died)),
            RankError::Service(Error::StagedFailed(failure)) => {
                Some((failure.failed_rank, failure.cause == StagedCause::Died))
            }
            _ => None,
        };
        let kind = match (failed_rank, error) {
            (Some((_, true)), _) => Kind::Died,
            (Some(_), _) => Kind::Failed,
            (_, RankError::Service(Error::Gone)) => Kind::Gone,
            (_, RankError::Service(Error::Refused(_))) => Kind::Refused,
            (_, RankError::Card(_) | RankError::Service(Error::Card(_))) => Kind::Card,
            _ => Kind::Other,
        };
        let mut ending = self.ended(op, kind, error.to_string());
        match failed_rank {
            Some((FailedParty::Rank(rank), _)) => ending.rank = Some(rank),
            Some((FailedParty::Process(process), _)) => ending.process = Some(process),
            None => {}
        }
        ending
    }

    fn leave(&mut self) -> Result<(), RankError> {
        let (group, rank) = (self.start.group, self.start.rank);
        self.session.client().leave(group, rank)?;
        self.drive("the leave of the group", |own| Ok(own.session.client().has_left(group, rank)))
    }
}

//! One run: a communicator of two ranks, a Broadcast as often as asked, every byte compared.

use std::time::Instant;

use flexcast::{Buffer, Communicator, Done, Endpoint, Firmware, Pending, Request, Test};
use flexcast_abi::rpc::BRING_UP;
use flexcast_abi::{Statistics, bring_up_answer};
use flexio::{Application, Device, Process, Provider};
use sha2::{Digest as _, Sha256};

use super::TputError;
use super::plan::Plan;
use super::report::{DeviceCounters, Kind, Report, Totals};
use crate::accesses::Accesses;
use crate::memory::{self, MemoryError};

/// Ranks by their number: who receives, and who is the root.
pub(super) const RECEIVER: u32 = 0;
pub(super) const ROOT: u32 = 1;

/// A device image as read from a file.
#[derive(Clone, Debug)]
pub struct ImageFile {
    /// Name for messages.
    pub name: String,
    /// The ELF.
    pub elf: Vec<u8>,
}

/// Who takes part.
#[derive(Debug)]
pub struct Cards {
    /// Receives on its DPA.
    pub server: Device,
    /// Sends.
    pub client: Device,
}

impl Cards {
    /// Opens both cards: by name, or the first as receiver and the second (where there is one) as sender.
    ///
    /// # Errors
    /// [`flexio::Error::UnknownDevice`] and whatever opening a card can give.
    pub fn open(provider: &Provider, server: Option<&str>, client: Option<&str>) -> Result<Self, TputError> {
        let [server, client] = names(provider, server, client)?;
        Ok(Self { server: provider.open(&server)?, client: provider.open(&client)? })
    }
}

/// Names of the receiving and the sending card: those given, or the first and the second, where there is one.
///
/// # Errors
/// The provider cannot list its cards.
pub fn names(provider: &Provider, server: Option<&str>, client: Option<&str>) -> Result<[String; 2], TputError> {
    let devices = provider.devices()?;
    let nth = |index: usize| devices.get(index).or(devices.last()).map_or("mlx5_0", |device| device.name.as_str());
    Ok([server.unwrap_or_else(|| nth(0)).to_owned(), client.unwrap_or_else(|| nth(1)).to_owned()])
}

/// What a run reports while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// Repetitions that have ended, warm-up included.
    pub ended: u32,
    /// Repetitions in all.
    pub repetitions: u32,
}

/// Broadcasts `source` from one card to the other as the plan says. `names`: the receiving and the sending card's,
/// which may be one card.
///
/// # Errors
/// [`TputError`], with the reason of the library where it refuses something or an operation fails.
pub fn run(
    provider: &Provider,
    names: &[String; 2],
    image: &ImageFile,
    plan: &Plan,
    source: &[u8],
    model: &str,
    tick: &mut dyn FnMut(Tick),
) -> Result<Report, TputError> {
    let started = Instant::now();
    let application: Application = Firmware { name: &image.name, elf: &image.elf }.load(provider)?;
    let [server, client] = names;
    let receiving = Endpoint::open_with(provider, server, &application)?;
    let sending = if client == server { None } else { Some(Endpoint::open_with(provider, client, &application)?) };
    let sending = sending.as_ref().unwrap_or(&receiving);
    let config = plan.params.config(plan.bytes);
    let pending =
        [(&receiving, RECEIVER), (sending, ROOT)].map(|(card, rank)| Pending::new(card, rank, 2, config.clone()));
    let [receiver, root] = pending;
    let (receiver, root) = (receiver?, root?);
    let infos = [receiver.connect_info(), root.connect_info()];
    let mut pair = Pair { receiver: receiver.connect(&infos)?, root: root.connect(&infos)? };
    let totals = repeat(provider, &receiving, sending, &mut pair, plan, source, tick)?;
    let is_virtual = provider.relax().is_virtual();
    let (kind, model) = if is_virtual { (Kind::Emulated, model) } else { (Kind::Measured, "none") };
    Ok(Report::new(plan, &totals, digest(source), kind, model, started.elapsed().as_secs_f64()))
}

/// Both ranks.
struct Pair {
    receiver: Communicator,
    root: Communicator,
}

fn repeat(
    provider: &Provider,
    receiving: &Endpoint,
    sending: &Endpoint,
    pair: &mut Pair,
    plan: &Plan,
    source: &[u8],
    tick: &mut dyn FnMut(Tick),
) -> Result<Totals, TputError> {
    let is_virtual = provider.relax().is_virtual();
    let mut totals = Totals { digest_ok: true, ..Totals::default() };
    let mut send = sending.buffer(source.len())?;
    send.write(0, source)?;
    let mut receive = receiving.buffer(source.len())?;
    for repetition in 0..plan.runs() {
        receive.fill(!source.first().copied().unwrap_or(0));
        let before = pair.receiver.receive_statistics()?;
        let posts = pair.root.send_statistics()?;
        let accesses = if is_virtual { Accesses::now()? } else { None };
        let Ended { root, receiver, equal } = operate(provider, pair, receive, send, source)?;
        (send, receive) = (root.receive, receiver.receive);
        totals.digest_ok &= equal;
        if repetition >= plan.params.warm_up {
            Accesses::add_since(&mut totals.accesses, accesses.as_ref())?;
            totals.device.add(&before, &pair.receiver.receive_statistics()?);
            let now = pair.root.send_statistics()?;
            totals.sent_chunks += now.posted - posts.posted;
            totals.send_instructions += now.loop_instructions - posts.loop_instructions;
            totals.recovered_chunks += receiver.report.recovered_chunks;
            let (of_receiver, of_root) = (receiver.report.phases.in_ps(), root.report.phases.in_ps());
            // The operation is over for both when the receiver has released it, or the root, whichever is later.
            let first_ps = of_receiver.posted_ps.min(of_root.posted_ps);
            let last_ps = of_receiver.released_ps.max(of_root.released_ps).unwrap_or(first_ps);
            totals.span_ps += last_ps.saturating_sub(first_ps);
            let data_ps = of_receiver.complete_ps.zip(of_root.sending_ps);
            totals.data_ps += data_ps.map_or(0, |(complete, sending)| complete.saturating_sub(sending));
        }
        tick(Tick { ended: repetition + 1, repetitions: plan.runs() });
    }
    Ok(totals)
}

/// An operation of both ranks that has ended.
struct Ended {
    receiver: Done,
    root: Done,
    /// Whether the receiver had every byte at the very moment of the notification.
    equal: bool,
}

/// Posts on both ranks and drives them until both have ended. Each operation has bounds of its own in the library.
fn operate(
    provider: &Provider,
    pair: &mut Pair,
    receive: Buffer,
    send: Buffer,
    source: &[u8],
) -> Result<Ended, TputError> {
    let mut equal = None;
    let mut receiver = Under::Way(pair.receiver.broadcast(receive, ROOT).map_err(|refused| refused.error)?);
    let mut root = Under::Way(pair.root.broadcast(send, ROOT).map_err(|refused| refused.error)?);
    loop {
        receiver = receiver.poll(&mut pair.receiver)?;
        if let (Under::Over(done), None) = (&receiver, equal) {
            equal = Some(done.receive.to_vec()? == source);
        }
        root = root.poll(&mut pair.root)?;
        match (receiver, root) {
            (Under::Over(receiver), Under::Over(root)) => {
                return Ok(Ended { receiver: *receiver, root: *root, equal: equal == Some(true) });
            }
            (under_way, other) => (receiver, root) = (under_way, other),
        }
        provider.relax().relax();
    }
}

/// An operation of one rank.
enum Under {
    Way(Request),
    Over(Box<Done>),
}

impl Under {
    fn poll(self, communicator: &mut Communicator) -> Result<Self, TputError> {
        // Also when its own part is over: the other rank may still need it.
        communicator.progress()?;
        let Under::Way(request) = self else { return Ok(self) };
        Ok(match request.test().map_err(|failed| failed.error)? {
            Test::Pending(request) => Under::Way(request),
            Test::Done(done) => Under::Over(Box::new(done)),
        })
    }
}

impl DeviceCounters {
    /// Adds what the workers have counted from `before` to `now`.
    pub(super) fn add(&mut self, before: &Statistics, now: &Statistics) {
        self.cqes += now.cqes - before.cqes;
        self.instructions += now.instructions - before.instructions;
        self.cycles += now.cycles - before.cycles;
        self.loop_cqes += now.loop_cqes - before.loop_cqes;
        self.loop_instructions += now.loop_instructions - before.loop_instructions;
        self.loop_cycles += now.loop_cycles - before.loop_cycles;
        self.duplicates += now.duplicates - before.duplicates;
        self.out_of_range += now.out_of_range - before.out_of_range;
        self.wrong_length += now.wrong_length - before.wrong_length;
        self.wrong_id += now.wrong_id - before.wrong_id;
        self.errors += now.error_cqes + now.unexpected_opcode - before.error_cqes - before.unexpected_opcode;
        self.activations += now.activations - before.activations;
    }
}

/// Calls the image's bring-up RPC and checks its answer, which only code built with this ABI gives.
///
/// # Errors
/// [`TputError::BringUp`], or the failure of the call.
pub fn bring_up(process: &Process) -> Result<u64, TputError> {
    let argument = 0x0123_4567_89AB_CDEF;
    let answer = process.call(&BRING_UP, argument)?;
    let expected = bring_up_answer(argument);
    if answer == expected { Ok(answer) } else { Err(TputError::BringUp { argument, answer, expected }) }
}

/// SHA-256 in hexadecimal.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `bytes` bytes that depend on `seed` and nothing else, and in which no two chunks are alike (SplitMix64).
///
/// # Errors
/// [`MemoryError::Refused`] where there is no memory for so many.
pub fn made_up_bytes(bytes: u64, seed: u64) -> Result<Vec<u8>, MemoryError> {
    let words = bytes.div_ceil(8);
    let mut out = memory::room("made-up bytes", words.saturating_mul(8))?;
    let mut state = seed;
    for _ in 0..words {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = state;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        out.extend_from_slice(&(word ^ word >> 31).to_le_bytes());
    }
    out.truncate(bytes as usize);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_bytes_depend_on_the_seed_only() {
        let made_up = |bytes, seed| made_up_bytes(bytes, seed).unwrap();
        assert_eq!(made_up(13, 1), made_up(13, 1));
        assert_eq!(made_up(13, 1)[..8], made_up(8, 1)[..]);
        assert_ne!(made_up(64, 1), made_up(64, 2));
        assert!(made_up(0, 1).is_empty());
        assert!(made_up_bytes(u64::MAX, 1).is_err() && made_up_bytes(1 << 62, 1).is_err());
        assert_eq!(hex(&[0, 0xAB]), "00ab");
    }
}

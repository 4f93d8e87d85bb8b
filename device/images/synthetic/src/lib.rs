//! The receive datapath on queues that this crate fills itself: it plays the host that sets up, the network that delivers and the card
//! that copies, all in memory, one after the other. The same code runs wherever RISC-V does: as an image on the DPA, and as a bare
//! program under any RISC-V machine (device/virt). Lines, with results and instruction counts, must be the same everywhere.
//!
//! What takes part are addresses and rings; no payload moves.
#![cfg_attr(target_arch = "riscv64", no_std)]
#![forbid(unsafe_code)]

mod memory;
mod rig;

use core::fmt::Write as _;

use dpa::Next;
use flexcast_abi::{Transport, WorkerContext};
use heapless::String;

use crate::rig::{Kind, Rig};

/// Longest line.
pub const LINE_BYTES: usize = 200;

/// One line of results.
pub type Line = String<LINE_BYTES>;

/// Rounds after which a scenario that does not end is given up: each delivers up to a ring of messages.
const MAX_ROUNDS: u32 = 10_000;

/// Runs every scenario and hands out one line for each. Of `place`, what belongs to the executor is used: outbox, window, key, and the
/// host addresses of flag and report.
pub fn run(place: &WorkerContext, mut tell: impl FnMut(&str)) {
    for transport in [Transport::Uc, Transport::Ud] {
        for batch in [1, 16, 32, 64] {
            for kind in [Kind::InOrder, Kind::Scattered, Kind::Disturbed] {
                tell(&scenario(place, transport, batch, kind));
            }
        }
    }
}

fn scenario(place: &WorkerContext, transport: Transport, batch: u32, kind: Kind) -> Line {
    let mut line = Line::new();
    let name = match transport {
        Transport::Uc => "uc",
        Transport::Ud => "ud",
    };
    // A line that is cut off differs from the others' and is noticed.
    let _ = write!(line, "{name} batch {batch} {kind}: ");
    let mut context = rig::context(place, transport, batch);
    if let Err(fault) = datapath::prepare(&mut context) {
        let _ = write!(line, "context refused, fault {}", fault as u32);
        return line;
    }
    rig::arm(&mut context, kind);
    let mut rig = Rig::new(transport, kind);
    let mut rounds = 0;
    loop {
        let next = datapath::receive(&mut context, transport);
        rig.copy(&context);
        rounds += 1;
        let delivered = if context.state.armed.sequence == 0 { 0 } else { rig.deliver() };
        let at_rest = delivered == 0 && next == Next::Reschedule && rig.is_done(&context);
        if at_rest || rounds == MAX_ROUNDS {
            break;
        }
    }
    let state = &context.state;
    let statistics = &state.statistics;
    let _ = write!(
        line,
        "rounds {rounds} cqes {} left {} status {} duplicates {} range {} id {} length {} copies {} instructions {} memory {:016x}",
        state.consumed,
        state.remaining,
        state.status,
        statistics.duplicates,
        statistics.out_of_range,
        statistics.wrong_id,
        statistics.wrong_length,
        statistics.copy_cqes,
        statistics.loop_instructions,
        memory::digest(),
    );
    line
}

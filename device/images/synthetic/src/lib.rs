//! The receive datapath on queues that this crate fills itself: it plays the host that sets up, the network that
//! delivers and the card that copies, all in memory, one after the other. What it drives is what a communicator's
//! threads run: `prepare_receive` and `contexts`, a receive context woken by its control queue. The same code runs
//! wherever RISC-V does: as an image on the DPA, and as a bare program under any RISC-V machine (device/virt). Lines,
//! with results and instruction counts, must be the same everywhere.
//!
//! What takes part are addresses and rings; no payload moves.
#![cfg_attr(target_arch = "riscv64", no_std)]
#![forbid(unsafe_code)]

mod fixture;
mod memory;
mod text;

use dpa::Next;
use flexcast_abi::{ReceiveThread, Transport};
use heapless::String;

use crate::fixture::{Fixture, Kind};
use crate::text::{put, put_decimal, put_hexadecimal};

/// Longest line.
pub const LINE_BYTES: usize = 200;

/// One line of results.
pub type Line = String<LINE_BYTES>;

/// Rounds after which a scenario that does not end is given up: each delivers up to a ring of messages.
const MAX_ROUNDS: u32 = 10_000;

/// Runs every scenario and hands out one line for each. `thread` has one receive context, and both hold what belongs to
/// the executor: outbox, window and key, and the receive context's host addresses of flag and report. Each scenario
/// writes the rest.
pub fn run(thread: &mut ReceiveThread, mut print: impl FnMut(&str)) {
    for transport in [Transport::Uc, Transport::Ud] {
        for batch in [2, 16, 32, 64] {
            for kind in [Kind::InOrder, Kind::Scattered, Kind::Runs, Kind::Rows, Kind::Disturbed] {
                print(&scenario(thread, transport, batch, kind));
            }
        }
    }
}

fn scenario(thread: &mut ReceiveThread, transport: Transport, batch: u32, kind: Kind) -> Line {
    let mut line = Line::new();
    let name = match transport {
        Transport::Uc => "uc",
        Transport::Ud => "ud",
    };
    put(&mut line, name);
    put(&mut line, " batch ");
    put_decimal(&mut line, u64::from(batch));
    put(&mut line, " ");
    put(&mut line, kind.name());
    put(&mut line, ":");
    fixture::set_up(thread, transport, batch);
    if let Err((fault, _)) = datapath::prepare_receive(thread) {
        put(&mut line, " context refused, fault ");
        put_decimal(&mut line, u64::from(fault as u32));
        return line;
    }
    fixture::arm(kind);
    let mut fixture = Fixture::new(transport, kind);
    let mut rounds = 0;
    let state = loop {
        let next = datapath::receive(thread, transport);
        let state = fixture::state(thread);
        fixture.copy(&state);
        rounds += 1;
        let delivered = if state.armed.sequence == 0 { 0 } else { fixture.deliver() };
        let at_rest = delivered == 0 && next == Next::Reschedule && fixture.is_done(&state);
        if at_rest || rounds == MAX_ROUNDS {
            break state;
        }
    };
    let statistics = &state.statistics;
    for (name, value) in [
        (" rounds ", u64::from(rounds)),
        (" cqes ", state.consumed),
        (" left ", state.remaining),
        (" status ", u64::from(state.status)),
        (" duplicates ", statistics.duplicates),
        (" range ", statistics.out_of_range),
        (" id ", statistics.wrong_id),
        (" length ", statistics.wrong_length),
        (" copies ", state.send_consumed),
        (" instructions ", statistics.loop_instructions),
    ] {
        put(&mut line, name);
        put_decimal(&mut line, value);
    }
    put(&mut line, " memory ");
    put_hexadecimal(&mut line, memory::digest());
    line
}

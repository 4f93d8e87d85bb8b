//! Interface of carriers: what moves the bytes of a communicator's operations.
//!
//! The [engine](super) knows when an operation begins, what the protocol asks for, how long that may take and how it
//! ends. A carrier knows queues, sockets and cards. The engine calls it in this order, each time that it advances:
//!
//! 1. [`Carrier::receive`] takes what has come, and notifies the protocol of it;
//! 2. [`Carrier::arm`] is given the operation that begins, until it takes it;
//! 3. [`Carrier::advance`] finds what is lost and what is late;
//! 4. [`Carrier::send_message`], [`Carrier::multicast`] and [`Carrier::read`] carry the protocol's actions out;
//! 5. [`Carrier::send_data`] sends what has room;
//! 6. [`Carrier::may_end`] and [`Carrier::ended`] end an operation that all ranks are done with,
//!    [`Carrier::has_let_go`] one that has failed;
//! 7. [`Carrier::flush`] gives what waits to the card or to the system.

use std::fmt;

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::wire::{Availability, Encoded};
use flexcast_proto::{Failure, PieceSet};

use super::operation::{Exchange, Purpose};
use super::protocol::Protocol;
use super::{Admission, Engine, Operation, Operations, Posted};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::Config;
use crate::op::decision::Decision;
use crate::op::outcome::{Done, Failed, Outcome};
use crate::plan::Plan;

/// What moves the bytes of a communicator's operations. All times are by [`Carrier::now_ps`].
pub(crate) trait Carrier: Send + Sized + 'static {
    /// What decides.
    type Protocol: Protocol;
    /// What operations of blocks can be run for.
    type Purpose: Purpose;
    /// What the carrier keeps of an operation of blocks.
    type Stream: fmt::Debug + Send;
    /// What it keeps of an exchange.
    type Work: fmt::Debug + Send;

    /// The clock, in picoseconds.
    fn now_ps(&self) -> u64;

    /// The clock once what has come is taken, which began at `now_ps`: virtual time does not go on meanwhile.
    fn now_after_receive(&self, now_ps: u64) -> u64 {
        now_ps
    }

    /// What it takes on.
    fn admission(&self, config: &Config) -> Admission;

    /// Takes note of what has happened by now, since an operation is about to begin.
    ///
    /// # Errors
    /// A library call has failed.
    fn before_begin(&mut self, _ops: &mut Operations<Self>, _now_ps: u64) -> Result<()> {
        Ok(())
    }

    /// How an operation of blocks goes.
    fn decide(&mut self, ops: &mut Operations<Self>, plan: &Plan) -> Decision;

    /// Begins an operation that is none of blocks, or what has to come before it.
    ///
    /// # Errors
    /// It cannot be carried: with its buffers.
    fn begin_collective(engine: &mut Engine<Self>, posted: Posted<Collective>, now_ps: u64) -> Result<(), Box<Failed>>;

    /// Begins an operation of blocks that goes by messages between pairs of ranks, as [`Carrier::decide`] has said.
    ///
    /// # Errors
    /// It cannot be carried: with its buffers.
    fn begin_direct(
        engine: &mut Engine<Self>,
        posted: Posted,
        decision: Decision,
        now_ps: u64,
    ) -> Result<(), Box<Failed>>;

    /// Brings the own block of an operation to the receive buffer, or begins to.
    ///
    /// # Errors
    /// It does not fit, or there is no memory.
    fn prepare(&mut self, ops: &mut Operations<Self>, posted: &mut Posted, decision: &Decision)
    -> Result<Self::Stream>;

    /// Gives the current operation, which is deferred and is to be multicast, to the card or the sockets, and to the
    /// protocol. Returns whether it could; otherwise it is called again.
    ///
    /// # Errors
    /// The operation cannot be carried.
    fn arm(&mut self, ops: &mut Operations<Self>, now_ps: u64) -> Result<bool>;

    /// An operation has begun, at once when it was posted.
    fn begun(engine: &mut Engine<Self>, _now_ps: u64) -> Result<()> {
        // The first messages go at once; what fails here is found by whoever asks next.
        if let Err(error) = engine.move_on() {
            engine.ops.core.set_fault(error);
        }
        Ok(())
    }

    /// Whether the card may have got some of the commands of an operation that could not be started. Then what they
    /// name is to be out of its reach.
    fn withdraw(&mut self, _operation: &mut Operation<Self>) -> Withdrawn {
        Withdrawn::Clean
    }

    /// Takes what has come. Returns whether there was anything.
    ///
    /// # Errors
    /// A library or system call has failed.
    fn receive(&mut self, ops: &mut Operations<Self>, now_ps: u64) -> Result<bool>;

    /// Notifies the protocol of what is there, what is lost, and of the time; moves the exchange under way on.
    /// `moved`: something has come. Returns whether anything has happened.
    ///
    /// # Errors
    /// A library or system call has failed.
    fn advance(engine: &mut Engine<Self>, moved: bool, now_ps: u64) -> Result<bool>;

    /// Sends a message of operation number `operation` to a rank, with eager data behind it.
    ///
    /// # Errors
    /// A library or system call has failed.
    fn send_message(
        &mut self,
        ops: &mut Operations<Self>,
        to: u32,
        operation: u32,
        message: (Encoded, Vec<u8>),
    ) -> Result<()>;

    /// It is this rank's turn to multicast the own block of the current operation.
    ///
    /// # Errors
    /// A library or system call has failed.
    fn multicast(&mut self, ops: &mut Operations<Self>, now_ps: u64) -> Result<()>;

    /// Reads what is missing of pieces from a rank. `at`: where that has them; none if it has not said so.
    ///
    /// # Errors
    /// A library or system call has failed.
    fn read(
        &mut self,
        ops: &mut Operations<Self>,
        from: u32,
        pieces: &PieceSet,
        at: Option<Availability>,
    ) -> Result<()>;

    /// Sends of the own block what has room. Returns whether anything has happened.
    ///
    /// # Errors
    /// A library or system call has failed.
    fn send_data(&mut self, _ops: &mut Operations<Self>, _now_ps: u64) -> Result<bool> {
        Ok(false)
    }

    /// Has sent what waits, and peers probed that do not answer.
    ///
    /// # Errors
    /// A library or system call has failed.
    fn flush(&mut self, _ops: &mut Operations<Self>, _now_ps: u64) -> Result<()> {
        Ok(())
    }

    /// The operation under way has failed, and the communicator with it.
    ///
    /// # Errors
    /// A library or system call has failed.
    fn failed(&mut self, _ops: &mut Operations<Self>, _failure: Failure, _now_ps: u64) -> Result<()> {
        Ok(())
    }

    /// Whether the current operation, which all ranks are done with, may end: the own sends are over, and what this
    /// rank has sent of it is out.
    ///
    /// # Errors
    /// A library or system call has failed.
    fn may_end(&mut self, _ops: &mut Operations<Self>, _now_ps: u64) -> Result<bool> {
        Ok(true)
    }

    /// An operation has ended well: what is learned of it, and what its carrying has held.
    ///
    /// # Errors
    /// A library or system call has failed.
    fn ended(&mut self, _ops: &mut Operations<Self>, _operation: &mut Operation<Self>, _now_ps: u64) -> Result<()> {
        Ok(())
    }

    /// Ends an operation that has gone well, or goes on with what it was run for.
    fn finish(engine: &mut Engine<Self>, operation: Operation<Self>, _now_ps: u64) {
        let Operation { request, send, receive, report, .. } = operation;
        engine.ops.core.requests.finish(request, Ok(Done { send, receive, report }));
    }

    /// Whether nothing of the card reaches the buffers of the current operation any more, which has failed, and others
    /// know why. To be called until it has.
    ///
    /// # Errors
    /// A library or system call has failed.
    fn has_let_go(&mut self, _ops: &mut Operations<Self>, _now_ps: u64) -> Result<LetGo> {
        Ok(LetGo::Yes)
    }

    /// An operation has failed, and its carrying has ended or is waited for no longer: what it has held besides its
    /// buffers.
    fn abandon(&mut self, _operation: &mut Operation<Self>) {}

    /// The error of an operation that has failed.
    fn error_of(
        &mut self,
        ops: &mut Operations<Self>,
        operation: Option<&mut Operation<Self>>,
        name: &'static str,
        failure: Failure,
    ) -> Error {
        _ = operation;
        ops.core.requests.failed(name, failure, None)
    }

    /// The new registration of a buffer that peers may hold the key of.
    ///
    /// # Errors
    /// It cannot be registered.
    fn renew(&mut self, buffer: Buffer) -> Result<Buffer> {
        // No peer ever had a key.
        Ok(buffer)
    }

    /// Whether the exchange under way, which is over or has failed, may end.
    fn may_end_exchange(&mut self, _ops: &mut Operations<Self>, _now_ps: u64) -> bool {
        true
    }

    /// Ends an exchange.
    ///
    /// # Errors
    /// Memory cannot be registered anew.
    fn end_exchange(&mut self, ops: &mut Operations<Self>, exchange: Exchange<Self>, _now_ps: u64) -> Result<Outcome> {
        Ok(exchange.into_outcome(|name, failure| self.error_of(ops, None, name, failure)))
    }

    /// When the engine is to advance next even if nothing comes; none if nothing is waited for.
    fn deadline_ps(&self, ops: &Operations<Self>) -> Option<u64> {
        ops.protocol.deadline_ps().filter(|_| !ops.is_free())
    }

    /// Whether the engine has something to do at once.
    fn is_due(&self) -> bool {
        false
    }

    /// Whether a caller whose operations are over may stay away: see [`Datapath::may_be_left`](super::Datapath).
    fn may_be_left(&self, _ops: &Operations<Self>) -> bool {
        true
    }

    /// Something has happened that the network has not brought: the engine is to advance at once.
    fn wake(&mut self) {}

    /// Whether the card has written that the operation posted last is over; false where none does.
    ///
    /// # Errors
    /// A library call has failed.
    fn is_flagged(&self, _ops: &Operations<Self>) -> Result<bool> {
        Ok(false)
    }

    /// What has come so far.
    ///
    /// # Errors
    /// A library call has failed.
    fn receive_statistics(&self) -> Result<Statistics> {
        Ok(Statistics::default())
    }

    /// What has been sent so far.
    ///
    /// # Errors
    /// A library call has failed.
    fn send_statistics(&self) -> Result<SendReport> {
        Ok(SendReport::default())
    }
}

/// What an operation that could not be started leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withdrawn {
    /// Nothing: the buffers are the user's as they are.
    Clean,
    /// Commands that may have reached the card: the buffers get new keys.
    Renew,
    /// Work of the card, which may go on: the buffers stay here.
    Held,
}

/// How far a carrier has let go of the buffers of a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LetGo {
    /// Nothing reaches them any more.
    Yes,
    /// Something still may, for a bounded time.
    NotYet,
    /// Nobody will ever know: what has been posted may still be carried out.
    Never,
}

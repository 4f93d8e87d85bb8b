//! Start of an operation: the own block's way to its place, and the first commands to the card.

use flexcast_proto::Algorithm;
use flexcast_proto::wire::Availability;

use super::operation::{DpaStream, Operation, OwnBlock, Receiving, Sending, Sides};
use super::{DpaCarrier, DpaOperations};
use crate::carrier::dpa::copier::Copier;
use crate::carrier::dpa::protocol::{DpaProtocol, Posting};
use crate::engine::Posted;
use crate::engine::carrier::Withdrawn;
use crate::engine::descriptor::silence_ps;
use crate::error::Result;
use crate::op::buffer::Buffer;
use crate::op::stream::Transport;
use crate::plan::Plan;
use crate::plan::chains::{Order, order};

impl DpaCarrier {
    /// Brings the own block on its way, and keeps what follows from that.
    pub(super) fn prepare_stream(
        &mut self,
        ops: &DpaOperations,
        posted: &mut Posted,
        algorithm: Algorithm,
    ) -> Result<DpaStream> {
        let (own_block, copied) = self.place_own_block(ops, posted, algorithm)?;
        Ok(DpaStream::new(algorithm, own_block, copied))
    }

    /// Gives an operation to the card if that can be given commands now. Returns whether it has.
    pub(super) fn arm_operation(
        &mut self,
        ops: &mut DpaOperations,
        operation: &mut Operation,
        now_ps: u64,
    ) -> Result<bool> {
        let (own, config) = (ops.core.place.rank(), &ops.core.config);
        if !self.receive.is_ready()? || !self.send.is_free()? {
            return Ok(false);
        }
        // Every id is in use by packets that may still arrive: later.
        let Ok(collective_id) = self.ids.take(now_ps) else { return Ok(false) };
        operation.stream.collective_id = collective_id;
        let ids = (operation.number, collective_id);
        if let Some(control) = &mut self.control {
            control.expect_losses(ops.losses.are_expected());
        }
        // Where a root sends to each rank by itself, streams are many and short.
        let in_groups = config.transport != Transport::UcUnicast;
        let expects = in_groups && ops.losses.are_expected() && !ops.stall.reorders();
        let reporting = expects && ops.protocol.is_on_host();
        let with = (config.chunk_bytes, reporting);
        self.receive.arm(&operation.plan, own, &mut operation.receive, ids, with)?;
        let Order { chains, turn, .. } = order(&operation.plan, config, own);
        let descriptor = ops.describe(operation, config, chains);
        let stream = &mut operation.stream;
        stream.cutoff_ps = descriptor.cutoff_ps;
        ops.losses.begin();
        stream.silence_ps = silence_ps(config, chains);
        stream.turn_ps = if config.transport == Transport::UcUnicast { descriptor.cutoff_ps } else { 0 };
        let source = operation.source(own)?;
        let region = operation.receive.region()?;
        let here = Availability { address: region.addr().get(), rkey: region.rkey() };
        // A rank alone has nobody to multicast to.
        let sends = turn.is_some() && ops.core.place.ranks() > 1;
        let mut sending = Sending::Idle;
        match &mut ops.protocol {
            DpaProtocol::Host(conversation) => {
                conversation.start((descriptor, turn), here, operation.plan.foreign_pieces());
                // Targets of single ranks are not known yet.
                if sends && config.transport != Transport::UcUnicast {
                    self.send.prepare(&operation.plan, source, ids, config)?;
                }
            }
            DpaProtocol::Card(card) => {
                let mut send_sequence = 0;
                if sends {
                    // The threads send without another command, when it is this rank's turn.
                    self.send.start(&operation.plan, source, ids, config, None, true)?;
                    send_sequence = self.send.sequence();
                    sending = Sending::Posted;
                }
                let (lkey, receive_sequence) = (region.lkey(), self.receive.sequence());
                card.start(&Posting { descriptor, turn, here, lkey, receive_sequence, send_sequence });
            }
        }
        operation.stream.sides = Some(Sides { receiving: Receiving::Posted { since_ps: now_ps }, sending });
        Ok(true)
    }

    /// Takes an operation back that could not be started.
    pub(super) fn withdraw_operation(&mut self, operation: &mut Operation) -> Withdrawn {
        if operation.algorithm.is_direct() {
            self.pairs.group = None;
        }
        self.receive.disarm(&mut operation.receive);
        self.lost.extend(operation.stream.copied.take());
        // Some of the commands may have reached the card: by new keys, what they name is out of its reach.
        if operation.stream.own_block == OwnBlock::Copying { Withdrawn::Held } else { Withdrawn::Renew }
    }

    /// Brings the own block to the receive buffer: long ones by the card, where chunks are not staged and the protocol
    /// can wait. Returns where it is, and the copy of it that is sent, if that is neither in the send nor in the
    /// receive buffer.
    fn place_own_block(
        &mut self,
        ops: &DpaOperations,
        posted: &mut Posted,
        algorithm: Algorithm,
    ) -> Result<(OwnBlock, Option<Buffer>)> {
        let Posted { plan, send, receive, .. } = posted;
        let by_workers = algorithm == Algorithm::Multicast;
        let Some(send) = send else {
            let copied = if by_workers { self.copy_of_source(plan, receive)? } else { None };
            return Ok((OwnBlock::Placed, copied));
        };
        let (at, bytes) = (plan.block(ops.core.place.rank()).offset, send.len() as u64);
        let copier = &mut self.copier;
        // Where chunks are staged, their copies fill the path round the card.
        let is_free = ops.core.config.transport.is_zero_copy();
        let late = is_free && ops.protocol.is_on_host() && by_workers;
        if late && Copier::takes(bytes) && !copier.is_busy() {
            copier.copy((send.region()?, bytes), (receive.region()?, at), plan.foreign_bytes())?;
            return Ok((OwnBlock::Copying, None));
        }
        receive.copy_from(at as usize, send, 0, send.len())?;
        Ok((OwnBlock::Placed, None))
    }

    /// The own block of an operation in place, copied to where nobody writes, if Writes of this rank come back to the
    /// receive buffer. All of a Broadcast is the root's, whose card gets no key for it.
    fn copy_of_source(&self, plan: &Plan, receive: &Buffer) -> Result<Option<Buffer>> {
        let (own, foreign) = (plan.receive_bytes() - plan.foreign_bytes(), plan.foreign_bytes());
        if own == 0 || foreign == 0 || !self.send.writes_come_back() {
            return Ok(None);
        }
        let block = plan.block(self.place.rank());
        let mut copied = Buffer::registered_with(self.card.pd(), block.bytes as usize)?;
        copied.copy_from(0, receive, block.offset as usize, block.bytes as usize)?;
        Ok(Some(copied))
    }
}

//! Set-up of the progress thread and its queues.

use std::mem::size_of;

use flexcast_abi::progress::{COMMAND_BYTES, MACHINE_BYTES, MESSAGE_BYTES, NOBODY, PREPARE_PROGRESS};
use flexcast_abi::{
    ABI_HASH, ABI_VERSION, ContextMemory, DeviceAddress, HostLine, KeptMemory, MessageMemory, ProgressCommand,
    ProgressDetail, ProgressPeer, ProgressReport, ProgressSetUp, ProgressThread, Shared as SharedLine, Signals,
    TableMemory,
};
use flexcast_proto::RankInfo;
use flexio::{
    Access, CompletionQueue, Connection, CqTarget, DeviceBuffer, DpaCompletionQueue, DpaDepths, DpaQueuePair,
    MemoryKey, MemoryRegion, Path, QueueDepths, QueuePair, Retry, Transport,
};
use zerocopy::IntoBytes as _;

use super::{COMMAND_AT, CardProtocol, Repair, Rows, Shared};
use crate::carrier::connect_info::{ConnectInfo, Purpose};
use crate::carrier::dpa::card::{DpaCard, TakenUnits};
use crate::carrier::dpa::mailbox::{Mailbox, SHORT_BYTES};
use crate::carrier::dpa::protocol::Connect;
use crate::carrier::dpa::receive::{accepted, cq_memory, receive_memory, send_memory};
use crate::error::Result;
use crate::op::config::Config;
use crate::plan::tuner::Losses;

/// log2 of the receives posted to each peer: as many as the host's own connections have.
const LOG_RECEIVES: u8 = 4;
/// log2 of the send queue entries of each peer: eight messages, each with eager data.
const LOG_SENDS: u8 = 4;
/// Timeout of the connection for reads, 4.096 us x 2^4 = 66 us, if that of the others is not shorter. Whoever answers
/// too late for its eight tries is read from over the connection for messages.
const READ_TIMEOUT_EXPONENT: u8 = 4;

impl CardProtocol {
    /// Makes the thread and its queues, with a connection, not yet connected, for each of `peers` (ascending).
    /// `signals`: the line by which the communicator's threads signal. The thread has the unit of a place.
    pub(crate) fn new(
        card: &DpaCard,
        config: &Config,
        place: RankInfo,
        (units, unit): (&TakenUnits, usize),
        peers: &[u32],
        (host, shared, signals): (MemoryRegion, Shared, DeviceBuffer),
    ) -> Result<Self> {
        let process = card.process();
        let memory = DeviceBuffer::zeroed(process, COMMAND_AT + size_of::<ProgressCommand>() as u64)?;
        let key = MemoryKey::new(&memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let handler = units.handler(unit, process, "progress", memory.addr().get())?;
        let (mailbox, mailbox_target) = Mailbox::new(card, &handler, 1 + COMMAND_BYTES.div_ceil(SHORT_BYTES))?;
        let depths = DpaDepths { log_send: Some(LOG_SENDS), log_receive: Some(LOG_RECEIVES) };
        let of_peers = peers.len() as u32 * ((1 << LOG_SENDS) + (1 << LOG_RECEIVES));
        let completions = (of_peers + (1 << LOG_SENDS)).next_power_of_two();
        let target = CqTarget::Thread(&handler);
        let cq = DpaCompletionQueue::new(card.outbox(), completions.ilog2() as u8, target)?;
        let mut connections = Vec::with_capacity(peers.len());
        for (index, rank) in (0..).zip(peers) {
            connections.push((
                *rank,
                DpaQueuePair::builder(Transport::Rc, depths).by_command().user_index(index).build(&cq, &cq)?,
            ));
        }
        let repair = if peers.is_empty() {
            None
        } else {
            let depths = DpaDepths { log_send: Some(LOG_SENDS), log_receive: None };
            let reader = DpaQueuePair::builder(Transport::Rc, depths)
                .by_command()
                .user_index(peers.len() as u32)
                .build(&cq, &cq)?;
            // Nothing is posted to the one that answers; a queue has one entry at least.
            let unused = CompletionQueue::new(card.device(), 1)?;
            let depths = QueueDepths { send: 1, receive: 1 };
            let answerer = QueuePair::builder(card.pd(), Transport::Rc, depths).build(&unused, &unused)?;
            answerer.init(Access::REMOTE_READ, 0)?;
            Some(Repair { reader, answerer })
        };
        let line = Signals {
            progress: handler.id(),
            contexts: config.subgroups,
            senders: config.send_threads,
            ..Default::default()
        };
        signals.write(0, line.as_bytes())?;
        let rows = match config.eager_bytes {
            0 => None,
            eager_bytes => Some(Rows::new(card.pd(), eager_bytes as usize)?),
        };
        Ok(Self {
            place,
            handler,
            mailbox,
            mailbox_target,
            memory: key,
            cq,
            peers: connections,
            repair,
            signals,
            tables: Vec::new(),
            messages: None,
            host,
            shared,
            command: ProgressCommand::default(),
            sequence: 0,
            given_ps: 0,
            acknowledged: 0,
            timed: false,
            completion: ProgressReport { deadline_ps: u64::MAX, ..Default::default() },
            detail: ProgressDetail::default(),
            eager_bytes: config.eager_bytes,
            rows,
            gathering: None,
            operation: 0,
            summary: None,
            cut_off: false,
            release_given: true,
            finish_given: true,
            failure_given: false,
            lost: None,
            losses: Losses::default(),
            follows: false,
            timeout_ps: 4_096_000 << config.retry_exponent.min(31),
        })
    }

    /// Connects to the peers and lets the thread run. `senders`: activation ids of the send threads.
    ///
    /// # Errors
    /// A peer has no such queue pairs; the card refuses.
    pub(crate) fn connect(&mut self, connect: Connect<'_>, senders: &[u32]) -> Result<()> {
        let Connect { card, config, all, communicator, first_operation, views } = connect;
        let process = card.process();
        let own = self.place.rank();
        let slots = (1u64 << LOG_SENDS) + (1 << LOG_RECEIVES);
        let messages_bytes = self.peers.len().max(1) as u64 * slots * MESSAGE_BYTES;
        let messages = DeviceBuffer::zeroed(process, messages_bytes)?;
        let message_key = MemoryKey::new(&messages, Access::LOCAL_WRITE)?;
        let retry = Retry { timeout_exponent: config.retry_exponent, count: 7 };
        let path = Path { traffic_class: config.control_class, ..Path::default() };
        let mut contexts = Vec::with_capacity(self.peers.len());
        for ((rank, qp), number) in self.peers.iter_mut().zip(0..) {
            let (rows_remote, rows_rkey) = all[*rank as usize].rows;
            contexts.push(ProgressPeer {
                rows_remote,
                rows_rkey,
                receive_queue: receive_memory(qp),
                send_queue: send_memory(qp),
                rank: *rank,
                first_slot: number * slots,
                ..Default::default()
            });
            // Firmware receives no greetings: cards refuse strangers, by the numbers of their packets.
            let (own, peer) = ((&all[own as usize], qp.number()), &all[*rank as usize]);
            let (remote, first_psn) = ConnectInfo::silent(communicator, own, peer, Purpose::Control)?;
            qp.connect(&Connection::to(remote).first_psn(first_psn).path(path).retry(retry))?;
        }
        if let Some(Repair { reader, answerer }) = &mut self.repair {
            contexts.push(ProgressPeer { send_queue: send_memory(reader), rank: NOBODY, ..Default::default() });
            let (left, right) = (&all[self.place.left() as usize], &all[self.place.right() as usize]);
            let own = &all[own as usize];
            let (remote, first_psn) =
                ConnectInfo::silent(communicator, (own, answerer.qpn()), right, Purpose::Answers)?;
            answerer.connect(&Connection::to(remote).first_psn(first_psn).path(path).retry(retry))?;
            let timeout_exponent = config.retry_exponent.min(READ_TIMEOUT_EXPONENT);
            let retry = Retry { timeout_exponent, ..retry };
            let (remote, first_psn) =
                ConnectInfo::silent(communicator, (own, reader.number()), left, Purpose::Requests)?;
            reader.connect(&Connection::to(remote).first_psn(first_psn).path(path).retry(retry))?;
        }
        let senders: Vec<u64> = senders.iter().copied().map(u64::from).collect();
        let sender_count = senders.len() as u32;
        let senders = DeviceBuffer::from_bytes(process, senders.as_bytes())?;
        let count = contexts.len() as u32;
        let context_bytes = if contexts.is_empty() { &[0; 64] } else { contexts.as_bytes() };
        let contexts = DeviceBuffer::from_bytes(process, context_bytes)?;
        let machine = DeviceBuffer::zeroed(process, MACHINE_BYTES)?;
        let (view_count, views) = (views.len() as u32, DeviceBuffer::from_bytes(process, views.as_bytes())?);
        let address = |buffer: &DeviceBuffer| DeviceAddress::new(buffer.addr().get());
        let host = |offset: usize| self.host.addr().get() + offset as u64;
        let rows = self.rows.as_ref();
        let set_up = ProgressSetUp {
            abi_hash: ABI_HASH,
            abi_version: ABI_VERSION,
            communicator,
            rank: own,
            ranks: self.place.ranks(),
            budget: config.budget,
            first_operation,
            outbox_id: card.outbox().id(),
            window_id: card.window().id(),
            window_mkey: self.host.lkey(),
            message_lkey: message_key.id(),
            message_cq: cq_memory(&self.cq),
            control_cq: cq_memory(&self.mailbox_target.cq),
            control_queue: receive_memory(&self.mailbox_target.qp),
            signals: SharedLine::new(address(&self.signals)),
            command: HostLine::new(DeviceAddress::new(self.memory.buffer().addr().offset(COMMAND_AT).get())),
            senders: TableMemory::new(address(&senders), sender_count),
            rows_host: rows.map_or(0, Rows::address),
            rows_bytes: rows.map_or(0, |rows| rows.stride() as u32),
            rows_lkey: rows.map_or(0, |rows| rows.memory.lkey()),
            report_host: host(self.shared.reports()),
            flag_host: host(self.shared.flag()),
            ..Default::default()
        };
        let context = ProgressThread {
            set_up,
            contexts: ContextMemory::new(address(&contexts), count),
            messages: MessageMemory::new(address(&messages), (messages_bytes / 8) as u32),
            machine: KeptMemory::new(address(&machine), (MACHINE_BYTES / 8) as u32),
            views: ContextMemory::new(address(&views), view_count),
            ..Default::default()
        };
        let memory = self.memory.buffer();
        let context = memory.write_context(0, &context)?;
        accepted("progress thread", process.call(&PREPARE_PROGRESS, context)?)?;
        self.handler.run(memory.addr().get())?;
        self.operation = first_operation;
        self.tables = vec![machine, contexts, senders, views];
        self.messages = Some(message_key);
        card.activate(&self.handler)
    }
}

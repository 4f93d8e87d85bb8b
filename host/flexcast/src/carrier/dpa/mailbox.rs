//! Mailbox from the host to a DPA thread: a reliable connection over the own card, on which the host writes the
//! thread's context lines and then wakes it.

use flexio::{
    Access, CompletionQueue, Connection, CqTarget, DpaCompletionQueue, DpaDepths, DpaQueuePair, EventHandler,
    InlineRequest, LocalSlice, QueueDepths, QueuePair, RemoteQp, SendKind, SendRequest, Transport,
};

use crate::carrier::dpa::card::DpaCard;
use crate::error::Result;

/// log2 of the messages that a thread may have waiting: it has answered one before the host writes the one after the
/// next.
const LOG_DEPTH: u8 = 3;
/// Longest line that travels in its entry.
pub(crate) const SHORT_BYTES: usize = 192;

/// A range of DPA memory under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRange {
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

/// A line that is written from registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) from: LocalSlice,
    pub(crate) to: DeviceRange,
}

/// The host's end of the connection to a thread.
#[derive(Debug)]
pub(crate) struct Mailbox {
    qp: QueuePair,
    cq: CompletionQueue,
    busy: bool,
    /// Lines of the next message that are written from memory.
    long: Vec<SendRequest<'static>>,
    /// Those that go with their entries: their bytes lie one behind another.
    short: Vec<(DeviceRange, usize)>,
    bytes: Vec<u8>,
}

/// The thread's end.
#[derive(Debug)]
pub(crate) struct MailboxTarget {
    pub(crate) qp: DpaQueuePair,
    pub(crate) cq: DpaCompletionQueue,
}

impl Mailbox {
    /// For messages of at most `lines` lines, short or not.
    pub(crate) fn new(card: &DpaCard, handler: &EventHandler, lines: usize) -> Result<(Self, MailboxTarget)> {
        let depths = DpaDepths { log_send: None, log_receive: Some(LOG_DEPTH) };
        let device_cq = DpaCompletionQueue::new(card.outbox(), LOG_DEPTH, CqTarget::Thread(handler))?;
        let cq = CompletionQueue::new(card.device(), 2)?;
        let mut device_qp =
            DpaQueuePair::builder(Transport::Rc, depths).access(Access::REMOTE_WRITE).build(&device_cq, &device_cq)?;
        let depths = QueueDepths { send: lines as u32 + 1, receive: 1 };
        let qp = QueuePair::builder(card.pd(), Transport::Rc, depths).inline(SHORT_BYTES as u32).build(&cq, &cq)?;
        qp.init(Access::LOCAL_WRITE, 0)?;
        let port = card.device().port();
        let own = RemoteQp { qpn: qp.qpn(), gid: port.gid, mac: card.device().info().mac, first_psn: 0 };
        device_qp.connect(&Connection::to(own))?;
        qp.connect(&Connection::to(device_qp.endpoint(0)))?;
        let (long, short) = (Vec::with_capacity(lines), Vec::with_capacity(lines));
        let bytes = Vec::with_capacity(lines * SHORT_BYTES);
        Ok((Self { qp, cq, busy: false, long, short, bytes }, MailboxTarget { cq: device_cq, qp: device_qp }))
    }

    /// Whether the last message has arrived, so that its lines may be written anew.
    pub(crate) fn is_free(&mut self) -> Result<bool> {
        if self.busy {
            let mut first = None;
            self.cq.poll_each(|completion| {
                first.get_or_insert(completion);
            })?;
            if let Some(completion) = first {
                self.cq.check(&completion, "the wake-up of a DPA thread")?;
                self.busy = false;
            }
        }
        Ok(!self.busy)
    }

    /// Adds a line to the next message, before all short ones. Only when [`Mailbox::is_free`].
    pub(crate) fn write_from(&mut self, line: Line) {
        self.long.push(SendRequest {
            id: 0,
            kind: SendKind::Write { remote_addr: line.to.address, rkey: line.to.rkey },
            local: Some(line.from),
            immediate: None,
            signaled: false,
        });
    }

    /// Adds a line of at most [`SHORT_BYTES`], which the card need not fetch from memory. Only when
    /// [`Mailbox::is_free`].
    pub(crate) fn write(&mut self, bytes: &[u8], to: DeviceRange) {
        debug_assert!(bytes.len() <= SHORT_BYTES, "{} bytes", bytes.len());
        self.short.push((to, bytes.len()));
        self.bytes.extend_from_slice(bytes);
    }

    /// Has the lines written and wakes the thread with the last short one, or behind the others; nothing if there are
    /// no lines.
    pub(crate) fn ring(&mut self) -> Result<()> {
        let Self { qp, long, short, bytes, .. } = self;
        let behind = match (short.is_empty(), long.last()) {
            (true, None) => return Ok(()),
            (true, Some(&SendRequest { kind, .. })) => {
                Some(InlineRequest { id: 0, kind, bytes: &[], immediate: Some(0), signaled: true })
            }
            (false, _) => None,
        };
        let posted = qp.post_sends(long).and_then(|()| qp.post_inline(carried(short, bytes).chain(behind)));
        self.clear();
        posted?;
        self.busy = true;
        Ok(())
    }

    fn clear(&mut self) {
        self.long.clear();
        self.short.clear();
        self.bytes.clear();
    }
}

/// Writes of lines whose bytes lie one behind another; the last one completes visibly, and wakes the thread.
fn carried<'b>(lines: &'b [(DeviceRange, usize)], bytes: &'b [u8]) -> impl Iterator<Item = InlineRequest<'b>> {
    let (mut left, mut rest) = (lines.len(), bytes);
    lines.iter().map(move |(to, len)| {
        let (bytes, behind) = rest.split_at(*len);
        (left, rest) = (left - 1, behind);
        let kind = SendKind::Write { remote_addr: to.address, rkey: to.rkey };
        InlineRequest { id: 0, kind, bytes, immediate: (left == 0).then_some(0), signaled: left == 0 }
    })
}

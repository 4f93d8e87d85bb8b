//! How the host speaks to a DPA thread without stopping for it: a reliable connection over the own card, on which it writes the thread's
//! context lines and then wakes it.

use flexio::{
    Access, CompletionQueue, CqTarget, DpaCompletionQueue, DpaDepths, DpaQueuePair, EventHandler, LocalSlice,
    QueueDepths, QueuePair, RemoteQp, SendKind, SendRequest, Transport,
};

use crate::card::Card;
use crate::error::Result;
use crate::tower::Tower;

/// log2 of the messages that a thread may have waiting: it has answered one before the host writes the one after the next.
const LOG_DEPTH: u8 = 3;
/// A range of DPA memory under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRange {
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

/// A line to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) from: LocalSlice,
    pub(crate) to: DeviceRange,
}

/// The host's end of the connection to a thread.
#[derive(Debug)]
pub(crate) struct Wake<'c> {
    qp: QueuePair<'c>,
    cq: &'c CompletionQueue<'c>,
    busy: bool,
    requests: Vec<SendRequest<'static>>,
}

/// The thread's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Woken<'c> {
    pub(crate) cq: &'c DpaCompletionQueue<'c>,
    pub(crate) qp: &'c DpaQueuePair<'c>,
}

impl<'c> Wake<'c> {
    /// For messages of at most `lines` lines.
    pub(crate) fn new(
        card: &'c Card<'_>,
        tower: &mut Tower<'c>,
        handler: &'c EventHandler<'c>,
        lines: usize,
    ) -> Result<(Self, Woken<'c>)> {
        let depths = DpaDepths { log_send: None, log_receive: Some(LOG_DEPTH) };
        let device_cq = DpaCompletionQueue::new(card.outbox(), LOG_DEPTH, CqTarget::Thread(handler))?;
        let cq = CompletionQueue::new(card.device(), 2)?;
        let (device_cq, cq) = (tower.keep(device_cq), tower.keep(cq));
        let mut device_qp = DpaQueuePair::reliable(device_cq, device_cq, depths, Access::REMOTE_WRITE, 0)?;
        let depths = QueueDepths { send: lines as u32 + 1, receive: 1 };
        let qp = QueuePair::new(card.pd(), Transport::Rc, cq, cq, depths)?;
        qp.init(Access::LOCAL_WRITE, 0)?;
        let port = card.device().port();
        let own = RemoteQp { qpn: qp.qpn(), gid: port.gid, mac: card.device().info().mac, first_psn: 0 };
        device_qp.connect(&own, 0)?;
        qp.connect(&device_qp.endpoint(0), 0)?;
        let device_qp = tower.keep(device_qp);
        let requests = Vec::with_capacity(lines + 1);
        Ok((Self { qp, cq, busy: false, requests }, Woken { cq: device_cq, qp: device_qp }))
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

    /// Adds a line to the next message. Only when [`Wake::is_free`].
    pub(crate) fn write(&mut self, line: Line) {
        self.requests.push(SendRequest {
            id: 0,
            kind: SendKind::Write { remote_addr: line.to.address, rkey: line.to.rkey },
            local: Some(line.from),
            immediate: None,
            signaled: false,
        });
    }

    /// Has the lines written and wakes the thread; nothing if there are none.
    pub(crate) fn ring(&mut self) -> Result<()> {
        let Some(last) = self.requests.last() else { return Ok(()) };
        let kind = last.kind;
        self.requests.push(SendRequest { id: 0, kind, local: None, immediate: Some(0), signaled: true });
        let posted = self.qp.post_sends(&self.requests);
        self.requests.clear();
        posted?;
        self.busy = true;
        Ok(())
    }
}

//! Receives that messages take: of a queue pair's own ring, or of a queue that it shares.

use super::datapath::Datapath;
use crate::cx::Cx;
use crate::effects::{AsyncEvent, FailureCause};
use crate::queue_pair::QueuePair;
use crate::wqe::{BLOCK_BYTES, parse_receive};

impl Datapath {
    /// The receives that the next message may take.
    ///
    /// # Errors
    /// The doorbell record cannot be read, or posts more than the ring holds.
    pub(crate) fn posted_receives(&mut self, qp: &mut QueuePair, cx: &mut Cx<'_>) -> Result<u16, FailureCause> {
        let Some(share) = qp.rq.shared else { return qp.posted_receives(cx.mem) };
        if share.own.is_some() {
            return Ok(1);
        }
        let Some(shared) = self.shared.get_mut(share.queue) else { return Ok(0) };
        let posted = shared.posted(cx.mem);
        posted.inspect_err(|cause| cx.fx.async_events.push(AsyncEvent::SrqError { srqn: share.queue, cause: *cause }))
    }

    /// Raises the event of a shared receive queue whose receives are fewer than its limit.
    pub(crate) fn check_limit(&mut self, srqn: u32, cx: &mut Cx<'_>) {
        let Some(shared) = self.shared.get_mut(srqn) else { return };
        match shared.is_low(cx.mem) {
            Ok(true) => cx.fx.async_events.push(AsyncEvent::SrqLimit { srqn }),
            Ok(false) => {}
            Err(cause) => cx.fx.async_events.push(AsyncEvent::SrqError { srqn, cause }),
        }
    }

    /// The next receive is this queue pair's from now on, and nobody else's, until it completes.
    ///
    /// # Errors
    /// As [`posted_receives`](Self::posted_receives); an entry of a shared queue cannot be read.
    pub(crate) fn take_receive(&mut self, qp: &mut QueuePair, cx: &mut Cx<'_>) -> Result<(), FailureCause> {
        let Some(share) = qp.rq.shared.as_mut().filter(|share| share.own.is_none()) else { return Ok(()) };
        let Some(shared) = self.shared.get_mut(share.queue) else { return Ok(()) };
        let (index, is_low) = shared.take(cx.mem)?;
        if is_low {
            cx.fx.async_events.push(AsyncEvent::SrqLimit { srqn: share.queue });
        }
        share.own = Some(index);
        qp.rq.consumer = index;
        Ok(())
    }

    /// Takes the next receive and parses it into `rq.segments`; gives its capacity.
    ///
    /// # Errors
    /// As [`take_receive`](Self::take_receive).
    pub(crate) fn load_receive(&mut self, qp: &mut QueuePair, cx: &mut Cx<'_>) -> Result<u64, FailureCause> {
        self.take_receive(qp, cx)?;
        let shared = qp.rq.shared.and_then(|share| self.shared.get(share.queue));
        let (stride, head) = match shared {
            Some(shared) => (1 << shared.attr.log_stride, shared.head_bytes()),
            None => (1 << qp.attr.log_rq_stride, 0),
        };
        // Most receives have few segments; the longest has 1 KiB of them.
        let (mut short, mut long);
        let bytes = if stride <= BLOCK_BYTES {
            short = [0; BLOCK_BYTES];
            &mut short[..stride]
        } else {
            long = [0; 1024];
            &mut long[..stride]
        };
        match shared {
            Some(shared) => shared.read(qp.rq.consumer, bytes, cx.mem)?,
            None => qp
                .read_receive_ring(qp.rq.consumer, bytes, cx.mem)
                .map_err(|fault| FailureCause::QueueMemory { addr: fault.addr })?,
        }
        Ok(parse_receive(&bytes[head..], &mut qp.rq.segments))
    }

    /// The protection domain that keys of receives must be of.
    pub(crate) fn receive_pd(&self, qp: &QueuePair) -> u32 {
        let shared = qp.rq.shared.and_then(|share| self.shared.get(share.queue));
        shared.map_or(qp.attr.pd, |shared| shared.attr.pd)
    }
}

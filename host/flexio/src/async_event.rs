//! Failures that no completion reports.

use std::fmt;

use verbs_sys as sys;

use crate::device::{Device, verbs_ok};
use crate::error::{Error, Result};

/// A failure of a queue, a port or the whole card, as the card reported it.
///
/// Installed libraries report queues made through verbs here; those that FlexIO and DevX make have event channels of
/// their own. The emulator reports both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue takes no more completions: it has overrun, or its memory is gone. What should have arrived in
    /// it is lost, and its queue pairs are in the error state.
    CompletionQueue {
        /// Its number.
        number: u32,
    },
    /// A queue pair is in the error state.
    QueuePair {
        /// Its number.
        number: u32,
        /// Why.
        failure: QueuePairFailure,
    },
    /// The card has failed; nothing on it works any more.
    Device,
    /// Something else, such as a port that changed its state.
    Other {
        /// `enum ibv_event_type` of libibverbs.
        code: u32,
    },
}

/// Why a queue pair failed without a completion of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairFailure {
    /// A doorbell beyond its ring, unreachable queue memory, or a completion queue that failed.
    Fatal,
    /// Its peer sent a malformed request.
    InvalidRequest,
    /// Its peer tried an access that it may not make.
    AccessViolation,
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CompletionQueue { number } => write!(
                f,
                "completion queue {number:#x} has failed: it overran, or its memory is gone; make it deeper, or \
                 consume faster"
            ),
            Self::QueuePair { number, failure } => {
                let why = match failure {
                    QueuePairFailure::Fatal => "its doorbell, its memory or its completion queue failed",
                    QueuePairFailure::InvalidRequest => "its peer sent an invalid request",
                    QueuePairFailure::AccessViolation => "its peer tried an access that it may not make",
                };
                write!(f, "queue pair {number:#x} is in the error state: {why}")
            }
            Self::Device => f.write_str("the card has failed; close it and open it again"),
            Self::Other { code } => write!(f, "asynchronous event {code} of the card"),
        }
    }
}

impl Device {
    /// The next asynchronous event, if one has arrived; never waits. Call it when completions stay out, and once at the
    /// end of a run: an overrun loses completions without telling anybody else.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the card's event descriptor cannot be read.
    pub fn take_async_event(&self) -> Result<Option<AsyncEvent>> {
        let verbs = self.provider().verbs();
        self.do_not_wait()?;
        let mut event = sys::ibv_async_event::default();
        // SAFETY: the context is open and the event writable.
        if unsafe { (verbs.ibv_get_async_event)(self.context(), &raw mut event) } != 0 {
            let errno = std::io::Error::last_os_error();
            if errno.kind() == std::io::ErrorKind::WouldBlock {
                return Ok(None);
            }
            return Err(Error::Verbs { call: "ibv_get_async_event", errno, detail: self.info().name.clone() });
        }
        let found = match event.event_type {
            sys::IBV_EVENT_CQ_ERR => {
                self.completion_queue_number(&event).map(|number| AsyncEvent::CompletionQueue { number })
            }
            sys::IBV_EVENT_QP_FATAL => Ok(queue_pair(&event, QueuePairFailure::Fatal)),
            sys::IBV_EVENT_QP_REQ_ERR => Ok(queue_pair(&event, QueuePairFailure::InvalidRequest)),
            sys::IBV_EVENT_QP_ACCESS_ERR => Ok(queue_pair(&event, QueuePairFailure::AccessViolation)),
            sys::IBV_EVENT_DEVICE_FATAL => Ok(AsyncEvent::Device),
            code => Ok(AsyncEvent::Other { code }),
        };
        // SAFETY: the event came from `ibv_get_async_event` and is acknowledged once.
        unsafe { (verbs.ibv_ack_async_event)(&raw mut event) };
        found.map(Some)
    }

    fn do_not_wait(&self) -> Result<()> {
        // SAFETY: the context is open, so its descriptor is; both calls only read and set flags.
        let set = unsafe {
            let fd = (*self.context()).async_fd;
            let flags = libc::fcntl(fd, libc::F_GETFL);
            flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
        };
        if set {
            return Ok(());
        }
        let errno = std::io::Error::last_os_error();
        Err(Error::Verbs { call: "fcntl", errno, detail: format!("event descriptor of {}", self.info().name) })
    }

    fn completion_queue_number(&self, event: &sys::ibv_async_event) -> Result<u32> {
        let mut out = sys::mlx5dv_cq::default();
        let mut object = sys::mlx5dv_obj::default();
        // SAFETY: an event of this type is about a completion queue.
        object.cq.in_ = unsafe { event.element.cq };
        object.cq.out = &raw mut out;
        // SAFETY: the queue is live until the event is acknowledged, and `out` is writable.
        let errno =
            unsafe { (self.provider().verbs().mlx5dv_init_obj)(&raw mut object, u64::from(sys::MLX5DV_OBJ_CQ)) };
        verbs_ok("mlx5dv_init_obj", errno, || "number of a failed completion queue".to_owned())?;
        Ok(out.cqn)
    }
}

fn queue_pair(event: &sys::ibv_async_event, failure: QueuePairFailure) -> AsyncEvent {
    // SAFETY: an event of this type is about a queue pair, which is live until the event is acknowledged.
    let number = unsafe { (*event.element.qp).qp_num };
    AsyncEvent::QueuePair { number, failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_name_their_object() {
        let event = AsyncEvent::CompletionQueue { number: 0x401 };
        assert!(event.to_string().starts_with("completion queue 0x401 has failed"), "{event}");
        let failure = QueuePairFailure::AccessViolation;
        let event = AsyncEvent::QueuePair { number: 0x1002, failure };
        assert!(event.to_string().contains("0x1002"), "{event}");
    }
}

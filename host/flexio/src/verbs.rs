//! Completion queues of the host.

use std::ffi::CStr;
use std::sync::Arc;

use verbs_sys as sys;

use crate::device::{Device, non_null, warn_unless_ok};
use crate::error::{Error, Result};
use crate::raw::Raw;
use crate::wait::Bound;

/// A completion queue that the host polls.
///
/// It exists until this, its clones and the queue pairs that complete into it are gone. Of several threads that poll,
/// each completion reaches one.
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    device: Device,
    raw: Raw<sys::ibv_cq>,
}

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The id given when it was posted.
    pub id: u64,
    /// 0, or the work-completion status of the failure.
    pub status: u32,
    /// Vendor's syndrome of a failure.
    pub vendor: u32,
    /// Local queue pair.
    pub qpn: u32,
    /// Bytes received; with UD this counts the 40 bytes of the routing header.
    pub byte_len: u32,
    /// Queue pair that has sent it, of a datagram that was received.
    pub source_qpn: u32,
    /// The immediate, if one arrived.
    pub immediate: Option<u32>,
}

impl CompletionQueue {
    /// Creates a queue for at least `depth` completions.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn new(device: &Device, depth: u32) -> Result<Self> {
        let entries = i32::try_from(depth).map_err(|_| Error::OutOfRange {
            what: "depth of a completion queue",
            value: u64::from(depth),
            limit: format!("at most {}", i32::MAX),
        })?;
        // SAFETY: the context is open; null user data and no event channel are allowed.
        let raw = unsafe {
            (device.provider().verbs().ibv_create_cq)(
                device.context(),
                entries,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0,
            )
        };
        let raw = non_null("ibv_create_cq", raw, || format!("{depth} entries"))?;
        Ok(Self(Arc::new(Queue { device: device.clone(), raw })))
    }

    /// The card.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_cq {
        self.0.raw.as_ptr()
    }

    /// Takes what has completed, failures included; at most 32 at a time.
    ///
    /// # Errors
    /// [`Error::Verbs`] when the queue itself has failed (an overrun).
    pub fn poll(&self) -> Result<Vec<Completion>> {
        let mut done = Vec::new();
        self.poll_each(|completion| done.push(completion))?;
        Ok(done)
    }

    /// Hands what has completed to `take`, and returns how many that were. Like [`CompletionQueue::poll`], but
    /// allocates nothing.
    ///
    /// # Errors
    /// [`Error::Verbs`] when the queue itself has failed (an overrun).
    pub fn poll_each(&self, take: impl FnMut(Completion)) -> Result<usize> {
        let mut entries = [sys::ibv_wc::default(); 32];
        let call = self.device().provider().verbs();
        // SAFETY: the queue is live and there is room for 32 entries.
        let got = unsafe { sys::inline::poll_cq(self.raw(), entries.len() as i32, entries.as_mut_ptr()) };
        let got = usize::try_from(got).map_err(|_| Error::Verbs {
            call: "ibv_poll_cq",
            errno: std::io::Error::last_os_error(),
            detail: "the queue has overrun or its card is gone".to_owned(),
        })?;
        drop(call);
        entries[..got].iter().map(completion).for_each(take);
        Ok(got)
    }

    /// Waits until something has completed, and turns failures into errors.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Completion`], [`Error::Verbs`].
    pub fn wait(&self, bound: Bound, what: &str) -> Result<Vec<Completion>> {
        let done = self.device().provider().wait(bound, what, || {
            let done = self.poll()?;
            Ok((!done.is_empty()).then_some(done))
        })?;
        for completion in &done {
            self.check(completion, what)?;
        }
        Ok(done)
    }

    /// An error for a completion that failed.
    ///
    /// # Errors
    /// [`Error::Completion`].
    pub fn check(&self, completion: &Completion, what: &str) -> Result<()> {
        if completion.status == sys::IBV_WC_SUCCESS {
            return Ok(());
        }
        // SAFETY: any value is accepted; the result is a static C string.
        let name = unsafe { (self.device().provider().verbs().ibv_wc_status_str)(completion.status) };
        let status_name = if name.is_null() {
            "unknown"
        } else {
            // SAFETY: not null, a static string of the library, which is never unloaded.
            unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("unknown")
        };
        Err(Error::Completion {
            what: what.to_owned(),
            status: completion.status,
            status_name,
            vendor: completion.vendor,
            qpn: completion.qpn,
        })
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: created in `new`; queue pairs that use it hold a count of this object, so none does.
        let errno = unsafe { (self.device.provider().verbs().ibv_destroy_cq)(self.raw.as_ptr()) };
        warn_unless_ok("ibv_destroy_cq", errno);
    }
}

fn completion(raw: &sys::ibv_wc) -> Completion {
    let with_immediate = raw.status == sys::IBV_WC_SUCCESS && raw.wc_flags & sys::IBV_WC_WITH_IMM != 0;
    // SAFETY: both members of the union are 32-bit integers, and the entry is initialised.
    let immediate = with_immediate.then(|| u32::from_be(unsafe { raw.__bindgen_anon_1.imm_data }));
    Completion {
        id: raw.wr_id,
        status: raw.status,
        vendor: raw.vendor_err,
        qpn: raw.qp_num,
        byte_len: raw.byte_len,
        source_qpn: raw.src_qp,
        immediate,
    }
}

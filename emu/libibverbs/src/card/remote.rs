//! A process that uses another one's cards: requests go there, and answers come back.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use emu_bridge::{Lost, Remote, RemoteClock};
use emu_machine::FunctionId;

use super::request::{Answer, CardInfo, PROBE, Request};
use crate::errno::{Errno, Result};

impl From<Lost> for Errno {
    fn from(lost: Lost) -> Self {
        let value = match lost {
            Lost::Nobody { .. } | Lost::Refused { .. } => libc::ENODEV,
            Lost::Silent { .. } => libc::ETIMEDOUT,
            // As the drivers of cards that have been removed.
            Lost::Ended { .. } => libc::EIO,
        };
        Self::new(value, lost.to_string())
    }
}

fn message(id: FunctionId, request: &Request) -> Result<Vec<u8>> {
    serde_json::to_vec(&(id, request))
        .map_err(|error| Errno::new(libc::EPROTO, format!("a request cannot be written: {error}")))
}

fn ask(link: &Remote, id: FunctionId, request: &Request) -> Result<Answer> {
    let answer = link.call(&message(id, request)?)?;
    let answer = serde_json::from_slice(&answer);
    match answer
        .map_err(|error| Errno::new(libc::EPROTO, format!("the answer of the card's process is none: {error}")))?
    {
        Answer::Refused { errno, reason } => Err(Errno::new(errno, reason)),
        answer => Ok(answer),
    }
}

/// The cards of the other process; at the first call it shows that it reaches this one's memory.
///
/// # Errors
/// It does not, or is gone.
pub(crate) fn cards(link: &Remote) -> Result<&'static [CardInfo]> {
    static CARDS: OnceLock<std::result::Result<Vec<CardInfo>, (i32, String)>> = OnceLock::new();
    let cards = CARDS.get_or_init(|| {
        allow(link.pid());
        let open = Request::Open { probe: PROBE.as_ptr() as u64 };
        ask(link, FunctionId::host(0), &open).and_then(Answer::cards).map_err(|Errno { value, reason }| (value, reason))
    });
    cards.as_deref().map_err(|(value, reason)| Errno::new(*value, reason.as_str()))
}

/// Lets the process with the card access this one's memory, where Yama asks for that.
fn allow(pid: i32) {
    if pid > 0 {
        // SAFETY: the call takes numbers alone. Without Yama it fails, and is not needed.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(pid.cast_unsigned())) };
    }
}

/// Has a request carried out there.
///
/// # Errors
/// What the card refuses; the process is gone.
pub(crate) fn call(link: &Remote, id: FunctionId, request: Request) -> Result<Answer> {
    cards(link)?;
    // What this thread has written is there when the card is notified of it.
    fence(Ordering::SeqCst);
    ask(link, id, &request)
}

/// The same for a doorbell, which nobody waits for.
///
/// # Errors
/// The process is gone.
pub(crate) fn send(link: &Remote, id: FunctionId, request: Request) -> Result<()> {
    fence(Ordering::SeqCst);
    Ok(link.send(&message(id, &request)?)?)
}

/// Loads from, or stores to, memory that a card in another process reads and writes meanwhile: what was stored before
/// is there before it, and what is read behind it is as new.
pub(crate) fn publish<R>(f: impl FnOnce() -> R) -> R {
    fence(Ordering::SeqCst);
    let result = f();
    fence(Ordering::SeqCst);
    result
}

static CLOCK: Mutex<RemoteClock> = Mutex::new(RemoteClock::new());

/// Virtual time of the other process's machine, in picoseconds.
pub(crate) fn now_ps(link: &Remote) -> u64 {
    let ask = || call(link, FunctionId::host(0), Request::Now).and_then(Answer::time_ps).ok();
    CLOCK.lock().unwrap_or_else(PoisonError::into_inner).now_ps(link, ask)
}

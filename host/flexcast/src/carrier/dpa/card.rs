//! A card whose DPA runs the firmware: what all communicators of a process share.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use flexcast_abi::rpc::{ACTIVATE, BRING_UP};
use flexcast_abi::{Activation, bring_up_answer};
use flexio::{Affinity, Application, Device, EventHandler, Outbox, Process, ProtectionDomain, Provider, Window};

use crate::error::{Error, Result};
use crate::op::units::{ThreadPlacement, Units};
use flexcast_rc::linger::Lingering;

/// An open card whose DPA runs the library's firmware. The process on the card ends with the last of its handles,
/// communicators and buffers.
#[derive(Clone)]
pub(crate) struct DpaCard(Arc<Opened>);

struct Opened {
    lingering: Arc<Lingering>,
    window: Window,
    outbox: Outbox,
    process: Process,
    units: Mutex<Units>,
    serial: AtomicU32,
    /// Image `sparse` next to this one.
    aggregators: OnceLock<DpaCard>,
}

impl fmt::Debug for DpaCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DpaCard").field("device", self.device().info()).finish_non_exhaustive()
    }
}

impl DpaCard {
    /// Opens the card `device` and starts firmware on its DPA.
    ///
    /// # Errors
    /// As [`Endpoint::open`](crate::Endpoint::open).
    pub(crate) fn open(provider: &Provider, device: &str, application: &Application) -> Result<Self> {
        let device = provider.open(device)?;
        let pd = ProtectionDomain::new(&device)?;
        let process = Process::new(application, &pd)?;
        let argument = 0x0123_4567_89AB_CDEF;
        let answer = process.call(&BRING_UP, argument)?;
        let expected = bring_up_answer(argument);
        if answer != expected {
            return Err(Error::BringUp { image: application.name().to_owned(), answer, expected });
        }
        let window = Window::new(&process)?;
        let outbox = Outbox::new(&process)?;
        let (units, serial) = (Mutex::new(Units::new()), AtomicU32::new(0));
        let (lingering, aggregators) = (Arc::default(), OnceLock::new());
        Ok(Self(Arc::new(Opened { lingering, window, outbox, process, units, serial, aggregators })))
    }

    pub(crate) fn device(&self) -> &Device {
        self.0.process.device()
    }

    pub(crate) fn now_ps(&self) -> u64 {
        self.device().provider().relax().now_ps()
    }

    /// Bytes that the card's communicators together want in the DPA's last-level cache.
    pub(crate) fn hot_bytes(&self) -> u64 {
        self.units().hot_bytes
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        self.0.process.pd()
    }

    /// What is kept of connections that communicators have given up.
    pub(crate) fn lingering(&self) -> &Arc<Lingering> {
        &self.0.lingering
    }

    pub(crate) fn process(&self) -> &Process {
        &self.0.process
    }

    pub(crate) fn window(&self) -> &Window {
        &self.0.window
    }

    pub(crate) fn outbox(&self) -> &Outbox {
        &self.0.outbox
    }

    /// The execution units that are free. A panic elsewhere leaves them as they are.
    fn units(&self) -> MutexGuard<'_, Units> {
        self.0.units.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes execution units, whose threads want so many bytes in the last-level cache.
    ///
    /// # Errors
    /// [`Error::Budget`] when there are not so many.
    pub(crate) fn take_units(&self, count: u32, placement: ThreadPlacement, hot_bytes: u64) -> Result<TakenUnits> {
        let mut all = self.units();
        let units = Mutex::new(all.take(count, placement)?);
        all.hot_bytes += hot_bytes;
        Ok(TakenUnits { card: self.clone(), units, placement, hot_bytes })
    }

    /// Wakes a thread once, so that it arms its queues; from then on they wake it.
    pub(crate) fn activate(&self, handler: &EventHandler) -> Result<()> {
        match self.process().call(&ACTIVATE, handler.id())? {
            Activation::Woken => Ok(()),
            refused @ Activation::Refused => {
                let (number, code) = (handler.id(), refused as u64);
                Err(Error::Context { what: "thread", number, code, name: "not woken".to_owned() })
            }
        }
    }

    /// Where image `sparse` is, once it is started.
    pub(crate) fn aggregators(&self) -> &OnceLock<DpaCard> {
        &self.0.aggregators
    }

    /// A number that no other communicator of this card has had.
    pub(crate) fn next_serial(&self) -> u32 {
        self.0.serial.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

/// Execution units, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct TakenUnits {
    card: DpaCard,
    units: Mutex<Vec<u32>>,
    placement: ThreadPlacement,
    hot_bytes: u64,
}

impl TakenUnits {
    fn places(&self) -> MutexGuard<'_, Vec<u32>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.places().len()
    }

    /// A thread of a process on the unit of a place; where the card refuses that, on the next that it does not.
    ///
    /// # Errors
    /// [`Error::Units`] when it refuses all, [`Error::Flexio`].
    pub(crate) fn handler(&self, place: usize, process: &Process, entry: &str, argument: u64) -> Result<EventHandler> {
        let mut tried = Vec::new();
        loop {
            let unit = self.places()[place];
            tried.push(unit);
            let refusal = match EventHandler::new(process, entry, argument, Affinity::Unit(unit)) {
                // Others say that the process has ended, or that the card does not answer.
                Err(error @ flexio::Error::FlexIo { status: flexio::Status(1), .. }) => error,
                made => {
                    self.card.units().accepted(unit);
                    return Ok(made?);
                }
            };
            let Some(next) = self.card.units().replace(unit, self.placement, &tried) else {
                return Err(Error::Units { tried: ranges(tried), refusal });
            };
            self.places()[place] = next;
        }
    }
}

/// Numbers as ranges.
fn ranges(mut numbers: Vec<u32>) -> String {
    numbers.sort_unstable();
    let ranges = numbers.chunk_by(|before, next| before + 1 == *next);
    let texts: Vec<String> = ranges
        .map(|range| match range {
            [first, .., last] => format!("{first} to {last}"),
            _ => range.iter().map(ToString::to_string).collect(),
        })
        .collect();
    texts.join(", ")
}

impl Drop for TakenUnits {
    fn drop(&mut self) {
        let mut all = self.card.units();
        all.give_back(&self.places());
        all.hot_bytes -= self.hot_bytes;
    }
}

//! A card with the firmware on it: what all communicators of a process share.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flexcast_abi::{ABI_HASH, ABI_VERSION, bring_up_answer};
use flexio::{
    AbiExpectation, Access, Application, Device, EventHandler, HostBuffer, MemoryRegion, Outbox, Process,
    ProtectionDomain, Provider, Window,
};

use crate::api::buffer::Buffer;
use crate::api::report::duration;
use crate::dpa::units::Units;
use crate::error::{Error, Result};

/// A device image as read from a file.
#[derive(Clone, Copy, Debug)]
pub struct Firmware<'a> {
    /// Name for messages, such as that of the file.
    pub name: &'a str,
    /// The ELF of image `allgather`, built with this library's ABI.
    pub elf: &'a [u8],
}

impl Firmware<'_> {
    /// Checks the image and gives it to the provider's library.
    ///
    /// # Errors
    /// [`Error::Flexio`]: no ELF for the DPA, or built with another ABI.
    pub fn load(&self, provider: &Provider) -> Result<Application> {
        let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
        Ok(Application::load(provider, self.name, self.elf, Some(abi))?)
    }
}

/// An open card whose DPA runs the library's firmware. What is made from it keeps it: the process on the card ends with the last of the card's
/// handles, communicators and buffers. A clone is the same card.
#[derive(Clone)]
pub struct Card(Arc<Opened>);

struct Opened {
    window: Window,
    outbox: Outbox,
    process: Process,
    units: Mutex<Units>,
    serial: AtomicU32,
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card").field("device", self.device().info()).finish_non_exhaustive()
    }
}

impl Card {
    /// Opens the card `device` (such as `mlx5_0`) and starts `firmware` on its DPA.
    ///
    /// # Errors
    /// [`Error::Flexio`]: no such card, an image that is not an ELF for the DPA or was built with another ABI, a refusal of the card.
    /// [`Error::BringUp`]: the firmware runs but answers with another ABI's number.
    pub fn open(provider: &Provider, device: &str, firmware: Firmware<'_>) -> Result<Self> {
        Self::open_with(provider, device, &firmware.load(provider)?)
    }

    /// [`Card::open`] with firmware that was loaded before, by [`Firmware::load`]: several cards of one program share it.
    ///
    /// # Errors
    /// As [`Card::open`].
    pub fn open_with(provider: &Provider, device: &str, application: &Application) -> Result<Self> {
        let device = provider.open(device)?;
        let pd = ProtectionDomain::new(&device)?;
        let process = Process::new(application, &pd)?;
        let argument = 0x0123_4567_89AB_CDEF;
        let answer = process.call("bring_up", argument)?;
        let expected = bring_up_answer(argument);
        if answer != expected {
            return Err(Error::BringUp { image: application.name().to_owned(), answer, expected });
        }
        let window = Window::new(&process)?;
        let outbox = Outbox::new(&process)?;
        let (units, serial) = (Mutex::new(Units::new()), AtomicU32::new(0));
        Ok(Self(Arc::new(Opened { window, outbox, process, units, serial })))
    }

    /// A buffer of `len` zeroed bytes that collectives can send from and receive into. May be 0 bytes long.
    ///
    /// # Errors
    /// [`Error::Flexio`] when the memory cannot be registered.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        let memory = HostBuffer::zeroed(len.max(1))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Ok(Buffer::new(MemoryRegion::register(self.pd(), memory, access)?, len))
    }

    /// Registers a buffer anew: whoever still has its keys cannot reach it any more.
    pub(crate) fn renew(&self, buffer: Buffer) -> Result<Buffer> {
        if let Some(shared) = buffer.shared() {
            shared.expose();
            return Ok(buffer);
        }
        let (region, len) = buffer.into_region();
        let Some(memory) = region.into_buffer() else { return self.buffer(len) };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Ok(Buffer::new(MemoryRegion::register(self.pd(), memory, access)?, len))
    }

    /// The card.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.0.process.device()
    }

    /// The clock by which waits are bounded, from an arbitrary origin: virtual time on the emulator.
    #[must_use]
    pub fn now(&self) -> Duration {
        duration(self.now_ps())
    }

    pub(crate) fn now_ps(&self) -> u64 {
        self.device().provider().relax().now_ps()
    }

    /// Bytes that the card's communicators together want in the DPA's last-level cache ([`Footprint::hot_bytes`](crate::Footprint::hot_bytes)).
    /// More than it holds is warned of: they work, and wait for memory.
    #[must_use]
    pub fn hot_bytes(&self) -> u64 {
        self.units().hot_bytes
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        self.0.process.pd()
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
    pub(crate) fn units(&self) -> MutexGuard<'_, Units> {
        self.0.units.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a thread once, so that it arms its queues; from then on they wake it.
    pub(crate) fn activate(&self, handler: &EventHandler) -> Result<()> {
        match self.process().call("activate", u64::from(handler.id()))? {
            0 => Ok(()),
            code => Err(Error::Context { what: "thread", number: handler.id(), code, name: "not woken".to_owned() }),
        }
    }

    /// A number that no other communicator of this card has had.
    pub(crate) fn next_serial(&self) -> u32 {
        self.0.serial.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

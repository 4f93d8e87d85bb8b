//! A card with the firmware on it: what all communicators of a process share.

use std::cell::RefCell;
use std::fmt;

use flexcast_abi::{ABI_HASH, ABI_VERSION, bring_up_answer};
use flexio::{
    AbiExpectation, Access, Application, Device, EventHandler, HostBuffer, MemoryRegion, Outbox, Process,
    ProtectionDomain, Provider, Window,
};

use crate::api::buffer::Buffer;
use crate::dpa::units::Units;
use crate::error::{Error, Result};
use crate::memory::tower::Tower;

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
    pub fn load<'p>(&self, provider: &'p Provider) -> Result<Application<'p>> {
        let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
        Ok(Application::load(provider, self.name, self.elf, Some(abi))?)
    }
}

/// An open card whose DPA runs the library's firmware. Communicators and buffers are made from it and cannot outlive it:
///
/// ```compile_fail,E0505
/// # fn f(provider: &flexio::Provider, firmware: flexcast::Firmware<'_>, exchange: &mut dyn flexcast::bootstrap::Exchange) {
/// use flexcast::{Card, Communicator, Config};
///
/// let card = Card::open(provider, "mlx5_0", firmware).unwrap();
/// let mut communicator = Communicator::create(&card, exchange, Config::default()).unwrap();
/// drop(card); // borrowed: queues and threads of the communicator are on it
/// communicator.progress().unwrap();
/// # }
/// ```
pub struct Card<'p> {
    device: &'p Device<'p>,
    pd: &'p ProtectionDomain<'p>,
    process: &'p Process<'p>,
    window: &'p Window<'p>,
    outbox: &'p Outbox<'p>,
    units: RefCell<Units>,
    serial: RefCell<u32>,
    // Last: everything above refers into it.
    _tower: Tower<'p>,
}

impl fmt::Debug for Card<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card").field("device", self.device.info()).finish_non_exhaustive()
    }
}

impl<'p> Card<'p> {
    /// Opens the card `device` (such as `mlx5_0`) and starts `firmware` on its DPA.
    ///
    /// # Errors
    /// [`Error::Flexio`]: no such card, an image that is not an ELF for the DPA or was built with another ABI, a refusal of the card.
    /// [`Error::BringUp`]: the firmware runs but answers with another ABI's number.
    #[allow(unsafe_code)]
    pub fn open(provider: &'p Provider, device: &str, firmware: Firmware<'_>) -> Result<Self> {
        // SAFETY: `Card` owns the tower as its last field, and hands references out with its own lifetime only.
        let mut tower = unsafe { Tower::new() };
        let application = tower.keep(firmware.load(provider)?);
        Self::start(tower, provider, device, application)
    }

    /// [`Card::open`] with firmware that was loaded before, by [`Firmware::load`]: several cards of one program share it.
    ///
    /// # Errors
    /// As [`Card::open`].
    #[allow(unsafe_code)]
    pub fn open_with(provider: &'p Provider, device: &str, application: &'p Application<'p>) -> Result<Self> {
        // SAFETY: as in `open`.
        Self::start(unsafe { Tower::new() }, provider, device, application)
    }

    fn start(
        mut tower: Tower<'p>,
        provider: &'p Provider,
        device: &str,
        application: &'p Application<'p>,
    ) -> Result<Self> {
        let device = tower.keep(provider.open(device)?);
        let pd = tower.keep(ProtectionDomain::new(device)?);
        let process = tower.keep(Process::new(application, pd)?);
        let argument = 0x0123_4567_89AB_CDEF;
        let answer = process.call("bring_up", argument)?;
        let expected = bring_up_answer(argument);
        if answer != expected {
            return Err(Error::BringUp { image: application.name().to_owned(), answer, expected });
        }
        let window = tower.keep(Window::new(process)?);
        let outbox = tower.keep(Outbox::new(process)?);
        let (units, serial) = (RefCell::new(Units::new()), RefCell::new(0));
        Ok(Self { device, pd, process, window, outbox, units, serial, _tower: tower })
    }

    /// A buffer of `len` zeroed bytes that collectives can send from and receive into. May be 0 bytes long.
    ///
    /// # Errors
    /// [`Error::Flexio`] when the memory cannot be registered.
    pub fn buffer(&self, len: usize) -> Result<Buffer<'_>> {
        let memory = HostBuffer::zeroed(len.max(1))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Ok(Buffer::new(MemoryRegion::register(self.pd(), memory, access)?, len))
    }

    /// Registers a buffer anew: whoever still has its keys cannot reach it any more.
    pub(crate) fn renew<'c>(&'c self, buffer: Buffer<'c>) -> Result<Buffer<'c>> {
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
    pub fn device(&self) -> &Device<'_> {
        self.device
    }

    /// The clock by which waits are bounded, in picoseconds: virtual time on the emulator.
    #[must_use]
    pub fn now_ps(&self) -> u64 {
        self.device.provider().relax().now_ps()
    }

    /// Bytes that the card's communicators together want in the DPA's last-level cache ([`Footprint::hot_bytes`](crate::Footprint::hot_bytes)).
    /// More than it holds is warned of: they work, and wait for memory.
    #[must_use]
    pub fn hot_bytes(&self) -> u64 {
        self.units.borrow().hot_bytes
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain<'_> {
        self.pd
    }

    pub(crate) fn process(&self) -> &Process<'_> {
        self.process
    }

    pub(crate) fn window(&self) -> &Window<'_> {
        self.window
    }

    pub(crate) fn outbox(&self) -> &Outbox<'_> {
        self.outbox
    }

    pub(crate) fn units(&self) -> &RefCell<Units> {
        &self.units
    }

    /// Wakes a thread once, so that it arms its queues; from then on they wake it.
    pub(crate) fn kick(&self, handler: &EventHandler<'_>) -> Result<()> {
        match self.process.call("kick", u64::from(handler.id()))? {
            0 => Ok(()),
            code => Err(Error::Context { what: "thread", number: handler.id(), code, name: "not woken".to_owned() }),
        }
    }

    /// A number that no other communicator of this card has had.
    pub(crate) fn next_serial(&self) -> u32 {
        let mut serial = self.serial.borrow_mut();
        *serial = serial.wrapping_add(1);
        *serial
    }
}

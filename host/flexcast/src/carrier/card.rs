//! Cards: what carries the collectives of a process.

use std::fmt;
use std::time::Duration;

use flexcast_abi::{ABI_HASH, ABI_VERSION};
use flexio::{AbiExpectation, Application, Device, ProtectionDomain, Provider};

use crate::carrier::dpa::card::DpaCard;
use crate::carrier::udp::{Interface, UdpOptions};
use crate::carrier::verbs::{VerbsCard, VerbsOptions};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::config::Config;
use crate::op::report::duration;

/// A device image as read from a file.
#[derive(Clone, Copy, Debug)]
pub struct Firmware<'a> {
    /// Name for messages, such as that of the file.
    pub name: &'a str,
    /// The ELF of the image, built with this library's ABI: `allgather` for a [`Card`], `sparse` for aggregators.
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

/// What moves the data of a card's communicators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DatapathKind {
    /// Threads of the card's DPA.
    Dpa,
    /// This process, by multicast of an RDMA card that needs no DPA.
    Verbs,
    /// This process, by IP multicast over an Ethernet interface.
    Udp,
}

impl DatapathKind {
    /// Its name in options, variables and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dpa => "dpa",
            Self::Verbs => "verbs",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for DatapathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An open card: one whose DPA runs the library's firmware ([`Card::open`]), any RDMA card ([`Card::verbs`]), or any
/// network interface of this computer ([`Card::udp`]). What is made from it keeps it. A clone is the same card.
///
/// An RDMA card answers peers of communicators that are gone for up to 16.8 ms more (with the default of
/// [`Config::retry_exponent`](crate::Config::retry_exponent)), since acknowledgements can be lost; whoever drops the
/// last clone waits for the rest of that time.
#[derive(Clone, Debug)]
pub struct Card(Kind);

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Dpa(DpaCard),
    Verbs(VerbsCard),
    Udp(Interface),
}

impl Card {
    /// Opens the card `device` (such as `mlx5_0`) and starts `firmware` on its DPA.
    ///
    /// # Errors
    /// [`Error::Flexio`](crate::Error::Flexio): no such card, an image that is not an ELF for the DPA or was built with
    /// another ABI, a refusal of the card. [`Error::BringUp`](crate::Error::BringUp): the firmware runs but answers
    /// with another ABI's number.
    pub fn open(provider: &Provider, device: &str, firmware: Firmware<'_>) -> Result<Self> {
        Self::open_with(provider, device, &firmware.load(provider)?)
    }

    /// [`Card::open`] with firmware that was loaded before, by [`Firmware::load`]: several cards of one program share
    /// it.
    ///
    /// # Errors
    /// As [`Card::open`].
    pub fn open_with(provider: &Provider, device: &str, application: &Application) -> Result<Self> {
        DpaCard::open(provider, device, application).map(|card| Self(Kind::Dpa(card)))
    }

    /// Opens the RDMA card `device` (such as `mlx5_0`): this process receives and sends, by multicast of datagrams, and
    /// what is lost is read over reliable connections. No DPA and no firmware is needed.
    ///
    /// # Errors
    /// [`Error::Flexio`](crate::Error::Flexio): no such card, or a refusal of it.
    /// [`Error::Config`](crate::Error::Config): an option that the card cannot have.
    pub fn verbs(provider: &Provider, device: &str, options: &VerbsOptions) -> Result<Self> {
        VerbsCard::open(provider, device, options).map(|card| Self(Kind::Verbs(card)))
    }

    /// Takes a network interface of this computer: collectives go by IP multicast, and what is lost over TCP. No
    /// privileges and no RDMA device are needed.
    ///
    /// # Errors
    /// [`Error::Interface`](crate::Error::Interface): there is none of that name or address, it is down, or it has no
    /// address.
    pub fn udp(options: &UdpOptions) -> Result<Self> {
        Interface::open(options).map(|interface| Self(Kind::Udp(interface)))
    }

    /// Starts `firmware`, image `sparse`, on the card's DPA, beside what runs there. Communicators with
    /// [`Aggregation::Dpa`](crate::Aggregation::Dpa) need it. Of a card on which it runs nothing changes.
    ///
    /// # Errors
    /// As [`Card::open`]; [`Error::Argument`] for a network interface.
    pub fn start_aggregators(&self, firmware: Firmware<'_>) -> Result<()> {
        let (place, device) = match &self.0 {
            Kind::Dpa(card) => (card.aggregators(), card.device()),
            Kind::Verbs(card) => (card.aggregators(), card.device()),
            Kind::Udp(_) => {
                let reason = "a network interface has no DPA: open an RDMA card, or let flexcast-aggregator add";
                return Err(Error::Argument { operation: "start_aggregators", reason: reason.to_owned() });
            }
        };
        if place.get().is_none() {
            let application = firmware.load(device.provider())?;
            let started = DpaCard::open(device.provider(), &device.info().name, &application)?;
            // Another thread may have been faster: then this one ends.
            _ = place.set(started);
        }
        Ok(())
    }

    pub(crate) const fn kind(&self) -> &Kind {
        &self.0
    }

    pub(crate) const fn of(kind: Kind) -> Self {
        Self(kind)
    }

    /// Where memory is registered that the card reaches; none if it reaches none.
    pub(crate) fn pd(&self) -> Option<&ProtectionDomain> {
        match &self.0 {
            Kind::Dpa(card) => Some(card.pd()),
            Kind::Verbs(card) => Some(card.pd()),
            Kind::Udp(_) => None,
        }
    }

    /// What moves the data of its communicators.
    #[must_use]
    pub const fn datapath(&self) -> DatapathKind {
        match self.0 {
            Kind::Dpa(_) => DatapathKind::Dpa,
            Kind::Verbs(_) => DatapathKind::Verbs,
            Kind::Udp(_) => DatapathKind::Udp,
        }
    }

    /// A buffer of `len` zeroed bytes that collectives can send from and receive into. May be 0 bytes long.
    ///
    /// # Errors
    /// [`Error::Flexio`](crate::Error::Flexio) when there is not so much memory, or it cannot be registered.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        self.pd().map_or_else(|| Buffer::of_host(len), |pd| Buffer::registered_with(pd, len))
    }

    /// The RDMA device; none if the card is a network interface.
    #[must_use]
    pub fn device(&self) -> Option<&Device> {
        self.pd().map(ProtectionDomain::device)
    }

    /// The network interface, if the card is one.
    #[must_use]
    pub const fn interface(&self) -> Option<&Interface> {
        match &self.0 {
            Kind::Dpa(_) | Kind::Verbs(_) => None,
            Kind::Udp(interface) => Some(interface),
        }
    }

    /// The clock by which waits are bounded, from an arbitrary origin: virtual time on the emulator.
    #[must_use]
    pub fn now(&self) -> Duration {
        match &self.0 {
            Kind::Dpa(card) => duration(card.now_ps()),
            Kind::Verbs(card) => duration(card.now_ps()),
            Kind::Udp(interface) => duration(interface.now_ps()),
        }
    }

    /// Bytes that the card's communicators together want in the DPA's last-level cache
    /// ([`Footprint::hot_bytes`](crate::Footprint::hot_bytes)). More than it holds is warned of: they work, and wait
    /// for memory.
    #[must_use]
    pub fn hot_bytes(&self) -> u64 {
        match &self.0 {
            Kind::Dpa(card) => card.hot_bytes(),
            Kind::Verbs(_) | Kind::Udp(_) => 0,
        }
    }
}

impl Config {
    /// The defaults for this card: those of [`Config::default`]; beside an emulated one a cutoff slack of 100 ms, and 1
    /// s for recovery; over a network interface chunks as long as its datagrams carry.
    #[must_use]
    pub fn for_card(card: &Card) -> Self {
        match card.kind() {
            Kind::Dpa(card) => Self::for_kind(card.device().provider().kind()),
            Kind::Verbs(card) => Self::for_kind(card.device().provider().kind()),
            Kind::Udp(interface) => Self::for_interface(interface),
        }
    }
}

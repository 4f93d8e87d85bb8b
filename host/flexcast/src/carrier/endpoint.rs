//! Endpoints: what a process communicates through.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flexcast_abi::{ABI_HASH, ABI_VERSION};
use flexio::{AbiExpectation, Application, Device, ProtectionDomain, Provider};

use crate::carrier::Parts;
use crate::carrier::dpa::card::DpaCard;
use crate::carrier::loopback::Loopback;
use crate::carrier::udp::{Interface, UdpOptions};
use crate::carrier::verbs::VerbsEndpoint;
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::config::Config;
use crate::op::report::duration;

/// A device image as read from a file.
#[derive(Clone, Copy, Debug)]
pub struct Firmware<'a> {
    /// Name for messages, such as that of the file.
    pub name: &'a str,
    /// The ELF of the image, built with this library's ABI: `allgather` for an [`Endpoint`], `sparse` for aggregators.
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

/// What moves the data of an endpoint's communicators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DatapathKind {
    /// Threads of the card's DPA.
    Dpa,
    /// This process, by multicast of an RDMA card that needs no DPA.
    Verbs,
    /// This process, by IP multicast over an Ethernet interface.
    Udp,
    /// Memory of this process, which has all ranks.
    Loopback,
}

impl DatapathKind {
    /// Its name in options, variables and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dpa => "dpa",
            Self::Verbs => "verbs",
            Self::Udp => "udp",
            Self::Loopback => "loopback",
        }
    }
}

impl fmt::Display for DatapathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An endpoint as its carrier knows it.
pub(crate) trait CarrierEndpoint: fmt::Debug + Send + Sync {
    fn kind(&self) -> DatapathKind;

    /// The clock by which waits are bounded, in picoseconds: that of the RDMA card's provider.
    fn now_ps(&self) -> u64 {
        self.pd().map_or(0, |pd| pd.device().provider().relax().now_ps())
    }

    /// The configuration of communicators that nobody has changed.
    fn defaults(&self) -> Config {
        let skew = self.pd().map_or(Duration::ZERO, |pd| pd.device().provider().relax().clock_skew());
        Config::for_clock_skew(skew)
    }

    /// Makes the queues and threads of a rank.
    ///
    /// # Errors
    /// The configuration or the card does not allow it.
    fn part(&self, rank: u32, ranks: u32, config: Config) -> Result<Box<dyn CarrierPart>>;

    /// Protection domain in which memory is registered that the card reaches; none of a network interface, and of
    /// loopback.
    #[must_use]
    fn pd(&self) -> Option<&ProtectionDomain> {
        None
    }

    /// The network interface, if it is one.
    fn interface(&self) -> Option<&Interface> {
        None
    }

    /// Bytes that its communicators want in the DPA's last-level cache.
    fn hot_bytes(&self) -> u64 {
        0
    }

    /// The DPA card, if firmware has the datapath.
    fn dpa(&self) -> Option<&DpaCard> {
        None
    }

    /// Where image `sparse` is, once it is started; none without a DPA.
    fn aggregators(&self) -> Option<&OnceLock<DpaCard>> {
        None
    }
}

/// A rank that knows its own queues and not yet those of the others.
pub(crate) trait CarrierPart: Send {
    /// What the other ranks must know of this one.
    fn connect_info(&self) -> Vec<u8>;

    /// Connects to the ranks that sent `infos`, in the order of ranks, the own one among them.
    ///
    /// # Errors
    /// A rank does not fit; the card refuses.
    fn connect(self: Box<Self>, endpoint: Endpoint, infos: &[Vec<u8>]) -> Result<Parts>;
}

/// What a process communicates through, once it is open: a card whose DPA runs the library's firmware
/// ([`Endpoint::open`]), any RDMA card ([`Endpoint::verbs`]), any network interface of this computer
/// ([`Endpoint::udp`]), or the memory of this process ([`Endpoint::loopback`]). What is made from it keeps it. A clone
/// is the same endpoint.
///
/// An RDMA card answers peers of communicators that are gone for up to 16.8 ms more (with the default of
/// [`Config::retry_exponent`](crate::Config::retry_exponent)), since acknowledgements can be lost; whoever drops the
/// last clone waits for the rest of that time.
#[derive(Clone, Debug)]
pub struct Endpoint(Arc<dyn CarrierEndpoint>);

impl Endpoint {
    /// Opens the card `device` (such as `mlx5_0`) and starts `firmware` on its DPA.
    ///
    /// # Errors
    /// [`Error::Flexio`](crate::Error::Flexio): no such card, an image that is not an ELF for the DPA or was built with
    /// another ABI, a refusal of the card. [`Error::BringUp`](crate::Error::BringUp): the firmware runs but answers
    /// with another ABI's number.
    pub fn open(provider: &Provider, device: &str, firmware: Firmware<'_>) -> Result<Self> {
        Self::open_with(provider, device, &firmware.load(provider)?)
    }

    /// [`Endpoint::open`] with firmware that was loaded before, by [`Firmware::load`]: several endpoints of one program
    /// share it.
    ///
    /// # Errors
    /// As [`Endpoint::open`].
    pub fn open_with(provider: &Provider, device: &str, application: &Application) -> Result<Self> {
        DpaCard::open(provider, device, application).map(Self::of)
    }

    /// Opens the RDMA card `device` (such as `mlx5_0`): this process receives and sends, by multicast of datagrams, and
    /// what is lost is read over reliable connections. No DPA and no firmware is needed.
    ///
    /// # Errors
    /// [`Error::Flexio`](crate::Error::Flexio): no such card, or a refusal of it.
    pub fn verbs(provider: &Provider, device: &str) -> Result<Self> {
        VerbsEndpoint::open(provider, device).map(Self::of)
    }

    /// Takes a network interface of this computer: collectives go by IP multicast, and what is lost over TCP. No
    /// privileges and no RDMA device are needed.
    ///
    /// # Errors
    /// [`Error::Interface`](crate::Error::Interface): there is none of that name or address, it is down, or it has no
    /// address.
    pub fn udp(options: &UdpOptions) -> Result<Self> {
        Interface::open(options).map(Self::of)
    }

    /// Starts `firmware`, image `sparse`, on the card's DPA, in addition to what runs there. Communicators with
    /// [`Aggregation::Dpa`](crate::Aggregation::Dpa) need it. Of a card on which it runs nothing changes.
    ///
    /// # Errors
    /// As [`Endpoint::open`]; [`Error::Argument`] for a network interface.
    pub fn start_aggregators(&self, firmware: Firmware<'_>) -> Result<()> {
        let (Some(place), Some(device)) = (self.0.aggregators(), self.device()) else {
            let reason = "there is no DPA here: open an RDMA card, or let flexcast-aggregator add";
            return Err(Error::Argument { operation: "start_aggregators", reason: reason.to_owned() });
        };
        if place.get().is_none() {
            let application = firmware.load(device.provider())?;
            let started = DpaCard::open(device.provider(), &device.info().name, &application)?;
            // Another thread may have been faster: then this one ends.
            _ = place.set(started);
        }
        Ok(())
    }

    /// This process's memory, for ranks that are threads of it: for tests, and for programs that are tried without any
    /// network. Nothing is lost, and nobody else takes part.
    ///
    /// ```
    /// use flexcast::reduce::DataType;
    /// use flexcast::{Allreduce, Config, Endpoint, Pending};
    ///
    /// let endpoint = Endpoint::loopback();
    /// let parts = [0, 1].map(|rank| Pending::new(&endpoint, rank, 2, Config::for_endpoint(&endpoint)).unwrap());
    /// let infos: Vec<_> = parts.iter().map(Pending::connect_info).collect();
    /// std::thread::scope(|scope| {
    ///     for part in parts {
    ///         scope.spawn(|| {
    ///             let communicator = part.connect(&infos).unwrap();
    ///             let mut buffer = communicator.endpoint().buffer(4).unwrap();
    ///             buffer.write(0, &(communicator.rank() + 1).to_le_bytes()).unwrap();
    ///             let request = communicator.post(Allreduce::sum(DataType::U32).in_place(buffer)).unwrap();
    ///             assert_eq!(request.wait().unwrap().receive.to_vec().unwrap(), 3u32.to_le_bytes());
    ///         });
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn loopback() -> Self {
        Self::of(Loopback)
    }

    pub(crate) fn of(endpoint: impl CarrierEndpoint + 'static) -> Self {
        Self(Arc::new(endpoint))
    }

    pub(crate) fn carrier(&self) -> &dyn CarrierEndpoint {
        &*self.0
    }

    /// Protection domain in which memory is registered that the card reaches; none of a network interface, and of
    /// loopback.
    #[must_use]
    pub fn pd(&self) -> Option<&ProtectionDomain> {
        self.0.pd()
    }

    /// What moves the data of its communicators.
    #[must_use]
    pub fn datapath(&self) -> DatapathKind {
        self.0.kind()
    }

    /// A buffer of `len` zeroed bytes that collectives can send from and receive into. May be 0 bytes long.
    ///
    /// # Errors
    /// [`Error::Flexio`](crate::Error::Flexio) when there is not so much memory, or it cannot be registered.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        self.pd().map_or_else(|| Buffer::of_host(len), |pd| Buffer::registered_with(pd, len))
    }

    /// The RDMA device; none of a network interface, and of loopback.
    #[must_use]
    pub fn device(&self) -> Option<&Device> {
        self.pd().map(ProtectionDomain::device)
    }

    /// The network interface, if the endpoint is one.
    #[must_use]
    pub fn interface(&self) -> Option<&Interface> {
        self.0.interface()
    }

    /// The clock by which waits are bounded, from an arbitrary origin: virtual time on the emulator.
    #[must_use]
    pub fn now(&self) -> Duration {
        duration(self.0.now_ps())
    }

    /// Bytes that the endpoint's communicators together want in the DPA's last-level cache
    /// ([`Footprint::hot_bytes`](crate::Footprint::hot_bytes)). More than it holds is warned of: they work, and wait
    /// for memory.
    #[must_use]
    pub fn hot_bytes(&self) -> u64 {
        self.0.hot_bytes()
    }
}

impl Config {
    /// The defaults for this endpoint: those of [`Config::default`]; on an emulated card a cutoff slack of 100 ms, and
    /// 1 s for recovery; over a network interface chunks as long as its datagrams carry.
    #[must_use]
    pub fn for_endpoint(endpoint: &Endpoint) -> Self {
        endpoint.carrier().defaults()
    }
}

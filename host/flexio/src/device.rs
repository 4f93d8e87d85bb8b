//! Cards and protection domains.

use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use verbs_sys as sys;

use crate::error::{Error, Result};
use crate::provider::Provider;
use crate::raw::Raw;
use crate::wait::HostWork;

/// A card as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// RDMA device name, such as `mlx5_0`; what [`Provider::open`] takes.
    pub name: String,
    /// PCI address, such as `0000:03:00.0`; may be empty.
    pub pci: String,
    /// Network interface; may be empty.
    pub interface: String,
    /// MAC address of the port.
    pub mac: Mac,
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A port address: an IPv6 address, for IPv4 in the mapped form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    fn is_ipv4_mapped(self) -> bool {
        self.0[..10] == [0; 10] && self.0[10..12] == [0xFF, 0xFF]
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

/// State of a card's port, read when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Port number; this crate uses port 1 of every card.
    pub number: u8,
    /// Path MTU code: 1 = 256 bytes, 2 = 512, 3 = 1024, 4 = 2048, 5 = 4096.
    pub mtu_code: u8,
    /// Index of [`Port::gid`] in the port's table.
    pub gid_index: u8,
    /// The RoCEv2 address in use.
    pub gid: Gid,
    /// Line rate in Gbit/s, rounded down; 0 if the card reports none that is known here.
    pub link_gbit_per_s: u32,
}

impl Port {
    /// Longest payload of one packet.
    #[must_use]
    pub fn mtu_bytes(&self) -> u32 {
        128 << self.mtu_code
    }
}

/// Line rate of a port by its codes of width and of speed per lane (InfiniBand specification, PortInfo; rdma-core,
/// `ibv_query_port`).
fn link_gbit_per_s(width: u8, speed: u8) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let lane_mbit_per_s = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    lanes * lane_mbit_per_s / 1000
}

/// An open card, until this, its clones and all objects made from it are gone.
#[derive(Clone, Debug)]
pub struct Device(Arc<OpenDevice>);

#[derive(Debug)]
struct OpenDevice {
    provider: Provider,
    context: Raw<sys::ibv_context>,
    info: DeviceInfo,
    port: Port,
    /// Virtual HCA, once it has been asked for.
    vhca_id: OnceLock<u16>,
}

/// Random bytes of the system.
pub(crate) fn random<const BYTES: usize>() -> Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| Error::Io {
        what: "random bytes of the system".to_owned(),
        source: std::io::Error::other(error.to_string()),
    })?;
    Ok(bytes)
}

impl Device {
    /// `commands`: the process may give the card commands (DevX), which objects in DPA memory need, and cards of other
    /// makers do not know.
    pub(crate) fn open(provider: &Provider, info: DeviceInfo, commands: bool) -> Result<Self> {
        let verbs = provider.verbs();
        let mut count = 0;
        // SAFETY: the out-parameter is writable.
        let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(Error::OpenDevice { name: info.name, errno: std::io::Error::last_os_error() });
        }
        let mut context = None;
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` live entries until it is freed below.
            let entry = unsafe { *list.add(index) };
            // SAFETY: `entry` is live; the name is a C string that lives as long.
            let name = unsafe { CStr::from_ptr((verbs.ibv_get_device_name)(entry)) };
            if name.to_bytes() == info.name.as_bytes() {
                let mut attr = sys::mlx5dv_context_attr { flags: sys::MLX5DV_CONTEXT_FLAGS_DEVX, ..Default::default() };
                // SAFETY: `entry` is live and `attr` writable; an open context outlives the list.
                context = Some(unsafe {
                    if commands {
                        (verbs.mlx5dv_open_device)(entry, &raw mut attr)
                    } else {
                        (verbs.ibv_open_device)(entry)
                    }
                });
                break;
            }
        }
        let errno = std::io::Error::last_os_error();
        // SAFETY: `list` came from `ibv_get_device_list` and is not used again.
        unsafe { (verbs.ibv_free_device_list)(list) };
        let Some(context) = context else {
            let errno = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(Error::OpenDevice { name: info.name, errno });
        };
        let Some(context) = NonNull::new(context) else { return Err(Error::OpenDevice { name: info.name, errno }) };
        drop(verbs);
        let mut this = OpenDevice {
            provider: provider.clone(),
            context: Raw::new(context),
            info,
            port: Port { number: 1, mtu_code: 5, gid_index: 0, gid: Gid::default(), link_gbit_per_s: 0 },
            vhca_id: OnceLock::new(),
        };
        this.port = this.query_port()?;
        Ok(Self(Arc::new(this)))
    }

    /// The provider it was opened through.
    #[must_use]
    pub fn provider(&self) -> &Provider {
        &self.0.provider
    }

    /// What a piece of work takes the host's processor in virtual time, in picoseconds; 0 where it takes what it takes,
    /// and by default.
    #[must_use]
    pub fn work_ps(&self, work: HostWork) -> u64 {
        self.0.provider.work_ps(&self.info().name, work)
    }

    /// Name, PCI address, interface, MAC.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Port 1.
    #[must_use]
    pub fn port(&self) -> &Port {
        &self.0.port
    }

    /// Bytes that nobody can guess, and that are others each time: random ones of the system. In virtual time, where
    /// runs repeat bit for bit, they are the card's address and `number`, which distinguishes those who ask.
    ///
    /// # Errors
    /// [`Error::Io`]: the system's random numbers cannot be read.
    pub fn nonce(&self, number: u64) -> Result<[u8; 16]> {
        if !self.provider().relax().is_virtual() {
            return random();
        }
        let address = u128::from_le_bytes(self.port().gid.0);
        let folded = (address ^ address >> 64) as u64;
        Ok((u128::from(folded) << 64 | u128::from(number)).to_le_bytes())
    }

    /// Most pieces of memory of one message; see
    /// [`QueuePairBuilder::lists`](crate::QueuePairBuilder::lists).
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn max_pieces(&self) -> Result<u32> {
        Ok(u32::try_from(self.attributes()?.max_sge).unwrap_or(0))
    }

    pub(crate) fn attributes(&self) -> Result<sys::ibv_device_attr> {
        let mut attr = sys::ibv_device_attr::default();
        // SAFETY: the context is open and `attr` is writable.
        let errno = unsafe { (self.provider().verbs().ibv_query_device)(self.context(), &raw mut attr) };
        verbs_ok("ibv_query_device", errno, || format!("of {}", self.info().name))?;
        Ok(attr)
    }

    pub(crate) fn known_vhca_id(&self) -> &OnceLock<u16> {
        &self.0.vhca_id
    }

    pub(crate) fn context(&self) -> *mut sys::ibv_context {
        self.0.context.as_ptr()
    }
}

impl OpenDevice {
    fn query_port(&self) -> Result<Port> {
        const PORT: u8 = 1;
        let mut attr = sys::ibv_port_attr::default();
        // SAFETY: the context is open and `attr` is writable.
        let errno =
            unsafe { sys::inline::query_port(&self.provider.verbs(), self.context.as_ptr(), PORT, &raw mut attr) };
        verbs_ok("ibv_query_port", errno, || format!("port {PORT} of {}", self.info.name))?;
        if attr.state != sys::IBV_PORT_ACTIVE {
            return Err(Error::OutOfRange {
                what: "state of port 1",
                value: u64::from(attr.state),
                limit: "4 (active): connect the cable and bring the interface up".to_owned(),
            });
        }
        // The same address appears once per RoCE version, version 2 behind version 1, so the last match is the one to
        // use.
        let mut chosen = None;
        for index in 0..attr.gid_tbl_len.clamp(0, 256) {
            let mut raw = sys::ibv_gid::default();
            // SAFETY: the context is open and `raw` is writable.
            let errno =
                unsafe { (self.provider.verbs().ibv_query_gid)(self.context.as_ptr(), PORT, index, &raw mut raw) };
            if errno != 0 {
                continue;
            }
            // SAFETY: all 16 bytes of the union are initialised, and `raw` is a view of just those.
            let gid = Gid(unsafe { raw.raw });
            let better = match chosen {
                None => true,
                Some((_, old)) => gid.is_ipv4_mapped() || !Gid::is_ipv4_mapped(old),
            };
            if !gid.is_zero() && better {
                chosen = Some((index as u8, gid));
            }
        }
        let Some((gid_index, gid)) = chosen else {
            return Err(Error::OutOfRange {
                what: "addresses of port 1",
                value: 0,
                limit: "at least 1: give the interface an IP address".to_owned(),
            });
        };
        let link_gbit_per_s = link_gbit_per_s(attr.active_width, attr.active_speed);
        Ok(Port { number: PORT, mtu_code: attr.active_mtu as u8, gid_index, gid, link_gbit_per_s })
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: opened in `open`; every object made from it holds a count of this one, so all are gone.
        let errno = unsafe { (self.provider.verbs().ibv_close_device)(self.context.as_ptr()) };
        warn_unless_ok("ibv_close_device", errno);
    }
}

/// A protection domain: memory keys and queue pairs of different domains cannot meet.
///
/// It exists until this, its clones and all objects made from it are gone.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    device: Device,
    raw: Raw<sys::ibv_pd>,
}

impl ProtectionDomain {
    /// Allocates a domain.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn new(device: &Device) -> Result<Self> {
        let verbs = device.provider().verbs();
        // SAFETY: the context is open.
        let raw = unsafe { (verbs.ibv_alloc_pd)(device.context()) };
        let raw = non_null("ibv_alloc_pd", raw, String::new)?;
        Ok(Self(Arc::new(Domain { device: device.clone(), raw })))
    }

    /// The card.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Its number in the card's commands.
    ///
    /// # Errors
    /// [`Error::Verbs`]: a card of another maker.
    pub fn number(&self) -> Result<u32> {
        let mut out = sys::mlx5dv_pd::default();
        let mut object = sys::mlx5dv_obj::default();
        object.pd.in_ = self.raw();
        object.pd.out = &raw mut out;
        let verbs = self.device().provider().verbs();
        // SAFETY: `in` is the live domain and `out` is writable, the pair that the type flag announces.
        let errno = unsafe { (verbs.mlx5dv_init_obj)(&raw mut object, u64::from(sys::MLX5DV_OBJ_PD)) };
        verbs_ok("mlx5dv_init_obj", errno, || "number of a protection domain".to_owned())?;
        Ok(out.pdn)
    }

    /// Whether both are one domain.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_pd {
        self.0.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; whatever uses it holds a count of this object, so nothing does any more.
        let errno = unsafe { (self.device.provider().verbs().ibv_dealloc_pd)(self.raw.as_ptr()) };
        warn_unless_ok("ibv_dealloc_pd", errno);
    }
}

/// For calls that return 0 or an errno value.
pub(crate) fn verbs_ok(call: &'static str, errno: i32, detail: impl FnOnce() -> String) -> Result<()> {
    if errno == 0 {
        return Ok(());
    }
    // Some providers return -1 and set errno instead.
    let errno = if errno > 0 { std::io::Error::from_raw_os_error(errno) } else { std::io::Error::last_os_error() };
    Err(Error::Verbs { call, errno, detail: detail() })
}

/// For calls that return a pointer, or null and errno.
pub(crate) fn non_null<T>(call: &'static str, raw: *mut T, detail: impl FnOnce() -> String) -> Result<Raw<T>> {
    NonNull::new(raw).map(Raw::new).ok_or_else(|| Error::Verbs {
        call,
        errno: std::io::Error::last_os_error(),
        detail: detail(),
    })
}

/// For destructors, which cannot return an error.
pub(crate) fn warn_unless_ok(call: &'static str, errno: i32) {
    if errno != 0 {
        tracing::warn!(call, errno, "object could not be destroyed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_rates_of_ports() {
        for (width, speed, rate) in
            [(2, 64, 200), (2, 16, 56), (1, 32, 25), (1, 1, 2), (8, 128, 1200), (2, 0, 0), (3, 64, 0)]
        {
            assert_eq!(link_gbit_per_s(width, speed), rate, "{width} {speed}");
        }
    }

    #[test]
    fn addresses_are_printed_as_usual() {
        assert_eq!(Mac([0x02, 0, 0, 0, 0xAB, 1]).to_string(), "02:00:00:00:ab:01");
        let mut raw = [0; 16];
        raw[10..].copy_from_slice(&[0xFF, 0xFF, 10, 0, 0, 1]);
        assert_eq!(Gid(raw).to_string(), "::ffff:10.0.0.1");
        assert!(Gid(raw).is_ipv4_mapped());
        assert!(!Gid([1; 16]).is_ipv4_mapped() && !Gid([1; 16]).is_zero());
    }

    #[test]
    fn mtu_codes_are_powers_of_two() {
        let port = |mtu_code| Port { number: 1, mtu_code, gid_index: 0, gid: Gid::default(), link_gbit_per_s: 0 };
        assert_eq!((port(1).mtu_bytes(), port(5).mtu_bytes()), (256, 4096));
    }
}

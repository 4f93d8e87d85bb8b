//! Address handles, and finding the Ethernet address behind an identifier.

use core::ffi::c_int;
use std::sync::Arc;

use emu_machine::FunctionId;
use emu_machine::nic::wire::group_mac;
use emu_machine::nic::{Gid, GidEntry, RoceVersion};
use verbs_sys::*;

use crate::card;
use crate::card::request::Request;
use crate::device::{self, Context};
use crate::errno::{Errno, Result, input, number, out, pointer, status};
use crate::handle::{self, CStruct, Object};
use crate::pd::Pd;

/// Bytes of an address vector in a UD work queue entry.
pub(crate) const AV_BYTES: usize = 48;
/// Bit 31 of the destination dword: the address vector has its extended form.
const AV_EXTENDED: u32 = 1 << 31;
const AV_GRH: u32 = 1 << 30;
/// Low end of the source ports RoCEv2 uses.
const UDP_SOURCE_PORT: u16 = 0xC000;

/// The Ethernet address of an identifier: that of the card that has it, or the group's. On a real network the kernel
/// asks its neighbours; here all of them are known, those in other processes by the rule of addresses.
///
/// # Errors
/// EHOSTUNREACH when no card has the identifier.
pub fn resolve_mac(gid: Gid) -> Result<[u8; 6]> {
    if let Some(mac) = group_mac(gid) {
        return Ok(mac);
    }
    card::call(FunctionId::default(), Request::ResolveMac { gid })?.mac()
}

/// The path of an `ibv_ah_attr`, checked.
pub(crate) struct Path {
    pub(crate) gid: Gid,
    pub(crate) mac: [u8; 6],
    pub(crate) sgid_index: u8,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) flow_label: u32,
}

pub(crate) fn path(attr: &ibv_ah_attr, gids: &[GidEntry]) -> Result<Path> {
    if attr.is_global == 0 {
        return Err(Errno::invalid("is_global is 0: RoCE addresses by GID only"));
    }
    let source = device::gid_at(gids, attr.grh.sgid_index.into())?;
    // SAFETY: any 16 bytes are a GID, and the caller's structure is initialised.
    let gid = Gid(unsafe { attr.grh.dgid.raw });
    let are_alike = source.gid.ipv4().is_some() == gid.ipv4().is_some();
    if source.version == RoceVersion::V2 && !are_alike && !(gid.is_multicast() && gid.ipv4().is_none()) {
        let reason = format!(
            "source GID index {} is {}, and the destination {gid}: one is IPv4 and one IPv6; the port has {}",
            attr.grh.sgid_index,
            source.gid,
            device::listed(gids)
        );
        return Err(Errno::invalid(reason));
    }
    let ibv_global_route { flow_label, sgid_index, hop_limit, traffic_class, .. } = attr.grh;
    let flow_label = flow_label & 0xF_FFFF;
    Ok(Path { gid, mac: resolve_mac(gid)?, sgid_index, traffic_class, hop_limit, flow_label })
}

pub(crate) struct Ah {
    public: CStruct<ibv_ah>,
    /// The vector without queue key and destination, which each work request brings.
    av: CStruct<[u8; AV_BYTES]>,
    pub(crate) id: FunctionId,
    _pd: Arc<Pd>,
}

impl Object for Ah {
    const KIND: &'static str = "address handle";
    type C = ibv_ah;
    fn c_address(&self) -> *mut ibv_ah {
        self.public.get()
    }
}

impl Ah {
    /// Where the vector lies, for `mlx5dv_init_obj`.
    pub(crate) fn av_address(&self) -> *mut [u8; AV_BYTES] {
        self.av.get()
    }

    /// The vector for one datagram.
    pub(crate) fn vector(&self, qpn: u32, qkey: u32) -> [u8; AV_BYTES] {
        // SAFETY: written at creation only.
        let mut av = unsafe { *self.av.get() };
        av[0..4].copy_from_slice(&qkey.to_be_bytes());
        av[8..12].copy_from_slice(&(AV_EXTENDED | qpn & 0xFF_FFFF).to_be_bytes());
        av
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    pointer("ibv_create_ah", || {
        let pd = handle::get::<Pd>(pd)?;
        // SAFETY: null, or initialised as the manual page asks.
        let attr = unsafe { input(attr, "attr") }?;
        if attr.port_num != 1 {
            return Err(Errno::invalid(format!("port {}: a card has port 1 alone", attr.port_num)));
        }
        let id = pd.context.id();
        let path = path(attr, &device::gids(id)?)?;
        let mut av = [0; AV_BYTES];
        av[8..12].copy_from_slice(&AV_EXTENDED.to_be_bytes());
        av[12] = attr.sl & 0xF;
        av[14..16].copy_from_slice(&UDP_SOURCE_PORT.to_be_bytes());
        av[20..26].copy_from_slice(&path.mac);
        av[26] = path.traffic_class;
        av[27] = path.hop_limit;
        let flow = AV_GRH | u32::from(path.sgid_index) << 20 | path.flow_label;
        av[28..32].copy_from_slice(&flow.to_be_bytes());
        av[32..48].copy_from_slice(&path.gid.0);
        let public = ibv_ah { context: pd.context.c_address(), pd: pd.c_address(), handle: 0 };
        Ok(handle::publish(&Arc::new(Ah { public: CStruct::new(public), av: CStruct::new(av), id, _pd: pd })))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    status("ibv_destroy_ah", || Ok(handle::retire::<Ah>(ah).map(drop)?))
}

/// The header that a datagram's receive begins with: IPv6, or a global route header, which is laid out alike but for
/// its next header, or IPv4 in its last 20 bytes. As the real library does it, the latter is believed if its checksum
/// is right.
enum RoutingHeader {
    V4 { source: Gid, destination: Gid, traffic_class: u8, hop_limit: u8 },
    V6 { source: Gid, destination: Gid, traffic_class: u8, hop_limit: u8, flow_label: u32, version: RoceVersion },
}

impl RoutingHeader {
    fn parse(bytes: &[u8; 40]) -> Option<Self> {
        let gid = |at: usize| Gid(std::array::from_fn(|i| bytes[at + i]));
        let ipv4 = |at: usize| Gid::from_ipv4([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let words = bytes[20..].chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum = words.sum::<u32>();
        let checked = (sum & 0xFFFF) + (sum >> 16) == 0xFFFF;
        if bytes[20] == 0x45 && checked {
            let (source, destination) = (ipv4(32), ipv4(36));
            return Some(Self::V4 { source, destination, traffic_class: bytes[21], hop_limit: bytes[28] });
        }
        if bytes[0] >> 4 != 6 {
            return None;
        }
        let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let (traffic_class, flow_label) = ((first >> 20) as u8, first & 0xF_FFFF);
        const UDP: u8 = 17;
        let version = if bytes[6] == UDP { RoceVersion::V2 } else { RoceVersion::V1 };
        Some(Self::V6 { source: gid(8), destination: gid(24), traffic_class, hop_limit: bytes[7], flow_label, version })
    }
}

/// The way back to the sender of a datagram.
fn way_back(id: FunctionId, port_num: u8, wc: &ibv_wc, header: &[u8; 40]) -> Result<ibv_ah_attr> {
    let mut attr = ibv_ah_attr { sl: wc.sl, port_num, ..Default::default() };
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    let header = RoutingHeader::parse(header)
        .ok_or_else(|| Errno::invalid("the receive begins with neither an IPv4 nor an IPv6 header"))?;
    let (source, destination, traffic_class, hop_limit, flow_label, version) = match header {
        RoutingHeader::V4 { source, destination, traffic_class, hop_limit } => {
            (source, destination, traffic_class, hop_limit, 0, RoceVersion::V2)
        }
        RoutingHeader::V6 { source, destination, traffic_class, hop_limit, flow_label, version } => {
            (source, destination, traffic_class, hop_limit, flow_label, version)
        }
    };
    let gids = device::gids(id)?;
    let index = gids.iter().position(|entry| *entry == GidEntry { gid: destination, version });
    let index =
        index.ok_or_else(|| Errno::invalid(format!("the datagram was for {destination}, not for this port")))?;
    attr.is_global = 1;
    let dgid = ibv_gid { raw: source.0 };
    attr.grh = ibv_global_route { dgid, flow_label, sgid_index: index as u8, hop_limit, traffic_class };
    Ok(attr)
}

/// 0, or -1.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    number("ibv_init_ah_from_wc", || {
        let id = handle::get::<Context>(context)?.id();
        // SAFETY: null, or initialised and writable as the manual page asks; any 40 bytes are a header.
        unsafe {
            let back = way_back(id, port_num, input(wc, "wc")?, input(grh.cast::<[u8; 40]>(), "grh")?)?;
            out(attr, "ah_attr")?.write(back);
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::default();
    let known = pointer("ibv_create_ah_from_wc", || {
        let id = handle::get::<Pd>(pd)?.context.id();
        // SAFETY: null, or initialised as the manual page asks; any 40 bytes are a header.
        attr = unsafe { way_back(id, port_num, input(wc, "wc")?, input(grh.cast::<[u8; 40]>(), "grh")?) }?;
        Ok(pd)
    });
    if known.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: a live protection domain and an initialised structure.
    unsafe { ibv_create_ah(pd, &raw mut attr) }
}

/// The Ethernet address behind the destination of a path; emulated ports have no VLANs.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut [u8; 6],
    vid: *mut u16,
) -> c_int {
    const NO_VLAN: u16 = 0xFFFF;
    number("ibv_resolve_eth_l2_from_gid", || {
        let id = handle::get::<Context>(context)?.id();
        // SAFETY: null, or initialised and writable as the header asks.
        unsafe {
            let path = path(input(attr, "attr")?, &device::gids(id)?)?;
            out(eth_mac, "eth_mac")?.write(path.mac);
            out(vid, "vid")?.write(NO_VLAN);
        }
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_a_datagram_is_read_as_what_it_is() {
        let mut v4 = [0_u8; 40];
        v4[20..].copy_from_slice(&[0x45, 0xB2, 0, 60, 0, 0, 0x40, 0, 9, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        assert!(RoutingHeader::parse(&v4).is_none(), "the checksum is wrong");
        let sum: u32 = v4[20..].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let check = !((sum & 0xFFFF) + (sum >> 16)) as u16;
        v4[30..32].copy_from_slice(&check.to_be_bytes());
        let Some(RoutingHeader::V4 { source, destination, traffic_class, hop_limit }) = RoutingHeader::parse(&v4)
        else {
            panic!("an IPv4 header");
        };
        assert_eq!((source.ipv4(), destination.ipv4()), (Some([192, 0, 2, 1]), Some([192, 0, 2, 2])));
        assert_eq!((traffic_class, hop_limit), (0xB2, 9));

        let mut v6 = [0_u8; 40];
        v6[..8].copy_from_slice(&[0x6B, 0x21, 0x23, 0x45, 0, 40, 17, 64]);
        (v6[8], v6[23], v6[24], v6[39]) = (0xFD, 1, 0xFD, 2);
        let Some(RoutingHeader::V6 { source, destination, traffic_class, hop_limit, flow_label, version }) =
            RoutingHeader::parse(&v6)
        else {
            panic!("an IPv6 header");
        };
        assert_eq!((source.0[15], destination.0[15], traffic_class, hop_limit, flow_label), (1, 2, 0xB2, 64, 0x1_2345));
        assert_eq!(version, RoceVersion::V2);
        v6[6] = 0x1B;
        let parsed = RoutingHeader::parse(&v6);
        assert!(matches!(parsed, Some(RoutingHeader::V6 { version: RoceVersion::V1, .. })));
    }
}

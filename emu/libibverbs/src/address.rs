//! Address handles, and finding the Ethernet address behind an identifier.

use core::ffi::c_int;
use std::sync::Arc;

use emu_machine::nic::Gid;
use emu_machine::with_world;
use verbs_sys::*;

use crate::errno::{Errno, Result, input, pointer, status};
use crate::handle::{self, CStruct, Object};
use crate::pd::Pd;

/// Bytes of an address vector in a UD work queue entry.
pub(crate) const AV_BYTES: usize = 48;
/// Bit 31 of the destination dword: the address vector has its extended form.
const AV_EXTENDED: u32 = 1 << 31;
const AV_GRH: u32 = 1 << 30;
/// Low end of the source ports RoCEv2 uses.
const UDP_SOURCE_PORT: u16 = 0xC000;

/// The Ethernet address of an identifier: that of the card that has it, or the group's. On a real network the kernel asks
/// its neighbours; here all of them are known.
///
/// # Errors
/// EHOSTUNREACH when no card has the identifier.
pub fn resolve_mac(gid: Gid) -> Result<[u8; 6]> {
    if gid.is_multicast() {
        let [.., a, b, c, d] = gid.0;
        return Ok(if gid.ipv4().is_some() { [0x01, 0x00, 0x5E, b & 0x7F, c, d] } else { [0x33, 0x33, a, b, c, d] });
    }
    with_world(|world| {
        for index in 0..world.card_count() {
            let config = world.card(index)?.nic.config();
            if config.gids.contains(&gid) {
                return Ok(config.mac);
            }
        }
        Err(Errno::new(libc::EHOSTUNREACH, format!("no card has the GID {gid}")))
    })?
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

pub(crate) fn path(attr: &ibv_ah_attr, gids: usize) -> Result<Path> {
    if attr.is_global == 0 {
        return Err(Errno::invalid("is_global is 0: RoCE addresses by GID only"));
    }
    if usize::from(attr.grh.sgid_index) >= gids {
        return Err(Errno::invalid(format!("source GID index {}: the port has {gids}", attr.grh.sgid_index)));
    }
    // SAFETY: any 16 bytes are a GID, and the caller's structure is initialised.
    let gid = Gid(unsafe { attr.grh.dgid.raw });
    let ibv_global_route { flow_label, sgid_index, hop_limit, traffic_class, .. } = attr.grh;
    let flow_label = flow_label & 0xF_FFFF;
    Ok(Path { gid, mac: resolve_mac(gid)?, sgid_index, traffic_class, hop_limit, flow_label })
}

pub(crate) fn gid_count(card: usize) -> Result<usize> {
    Ok(with_world(|world| world.card(card).map(|card| card.nic.config().gids.len()))??)
}

pub(crate) struct Ah {
    public: CStruct<ibv_ah>,
    /// The vector without queue key and destination, which each work request brings.
    av: CStruct<[u8; AV_BYTES]>,
    pub(crate) card: usize,
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
        let card = pd.context.card;
        let path = path(attr, gid_count(card)?)?;
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
        Ok(handle::publish(&Arc::new(Ah { public: CStruct::new(public), av: CStruct::new(av), card, _pd: pd })))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    status("ibv_destroy_ah", || Ok(handle::retire::<Ah>(ah).map(drop)?))
}

//! Devices: listing, opening, querying.

use core::ffi::{c_char, c_int};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use emu_bridge::{NAMES_VARIABLE, device_names};
use emu_machine::nic::{GidEntry, MAX_RD_ATOMIC, PortAddresses, RoceVersion};
use emu_machine::{Function, FunctionId, MAX_CARDS};
use verbs_sys::*;

use crate::card::info::{LOCAL_ACK_DELAY, MAX_MESSAGE_BYTES, port_of};
use crate::card::remote;
use crate::card::request::{CardInfo, PortInfo};
use crate::card::session;
use crate::errno::{Errno, Result, number, out, pointer, status};
use crate::failures::Events;
use crate::handle::{self, CStruct, Object};
use crate::machine::{on_machine, on_nic, with_world};

/// What stands for a firmware version.
pub(crate) const FIRMWARE: &str = concat!("emulated-", env!("CARGO_PKG_VERSION"));
/// Vendor id of the cards, as in their node GUIDs.
const VENDOR_ID: u32 = 0x02C9;
/// PCI device id of BlueField-3's integrated network controller.
const VENDOR_PART_ID: u32 = 0xA2DC;
/// Begins the paths of emulated devices: no file of the computer is meant by accident.
pub(crate) const EMULATED: &str = "emulated:";
/// Deepest completion queue.
pub(crate) const MAX_CQE: c_int = (1 << 22) - 1;
/// Most gather or scatter entries of a work request.
pub(crate) const MAX_SGE: u32 = 30;
/// Bytes of memory on the card that a process may have through a function.
pub(crate) const MAX_DM_BYTES: u64 = 128 << 10;
/// Most receives of a shared queue: its ring has one entry more.
pub(crate) const MAX_SHARED_RECEIVES: u32 = (1 << 15) - 1;
/// Port capability: addresses are IP based (RoCEv2).
const PORT_IP_BASED_GIDS: u32 = 1 << 26;
/// Rates that a port can report, in Gbit/s, with the codes of width (1 lane: 1, 4: 2, 8: 4) and of speed per lane (2.5
/// Gbit/s: 1, 5: 2, 10: 4, 14: 16, 25: 32, 50: 64, 100: 128).
const PORT_RATES: [(u64, u8, u8); 13] = [
    (0, 1, 1),
    (5, 1, 2),
    (10, 2, 1),
    (20, 2, 2),
    (25, 1, 32),
    (40, 2, 4),
    (50, 1, 64),
    (56, 2, 16),
    (100, 2, 32),
    (200, 2, 64),
    (400, 2, 128),
    (800, 4, 128),
    (1200, 8, 128),
];
const PHYS_STATE_LINK_UP: u8 = 5;
/// Bytes of the structure behind the exported symbol `ibv_query_port`.
const COMPAT_PORT_ATTR_BYTES: usize = core::mem::offset_of!(ibv_port_attr, port_cap_flags2);

/// The devices of the calling thread's machine, in the order in which they are listed; see
/// [`World::functions`](emu_machine::World::functions).
#[must_use]
pub fn functions() -> Vec<FunctionId> {
    known().unwrap_or_default()
}

fn known() -> Result<Vec<FunctionId>> {
    // Where the machine's description says that others use its cards, it is this library that serves them.
    emu_bridge::serve_with(session::begin);
    Ok(match elsewhere()? {
        None => with_world(|world| world.functions())?,
        Some(cards) => cards.iter().map(|info| FunctionId::host(info.card)).collect(),
    })
}

/// The cards of the process whose cards this one uses, if it has none itself.
fn elsewhere() -> Result<Option<&'static [CardInfo]>> {
    emu_bridge::attached()?.map(remote::cards).transpose()
}

/// A card of the process whose cards this one uses.
fn card_elsewhere(cards: &'static [CardInfo], id: FunctionId) -> Result<&'static CardInfo> {
    let found = cards.iter().find(|info| FunctionId::host(info.card) == id);
    found.ok_or_else(|| Errno::new(libc::ENODEV, format!("{id} is not one of the other process's")))
}

/// RDMA device name of a function: `mlx5_N` of card N for the host's, `mlx5_N_arm` for that of its Arm cores. Real ones
/// are in the lists of two operating systems, and both called `mlx5_N`. The variable [`NAMES_VARIABLE`] gives those of
/// the host others; names that cannot be are reported, and then none is taken.
#[must_use]
pub fn device_name(id: FunctionId) -> String {
    static NAMES: OnceLock<Vec<Option<String>>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        let cards = functions().iter().map(|id| id.card + 1).max();
        let names = device_names(&std::env::var(NAMES_VARIABLE).unwrap_or_default(), cards);
        names.inspect_err(|error| emu_bridge::say(format_args!("{NAMES_VARIABLE}: {error}"))).unwrap_or_default()
    });
    match id.function {
        Function::Host => names.get(id.card).cloned().flatten().unwrap_or_else(|| format!("mlx5_{}", id.card)),
        Function::Arm => format!("mlx5_{}_arm", id.card),
    }
}

/// The kernel's number of a device.
fn device_index(id: FunctionId) -> usize {
    match id.function {
        Function::Host => id.card,
        Function::Arm => MAX_CARDS + id.card,
    }
}

pub(crate) struct Device {
    public: CStruct<ibv_device>,
    pub(crate) id: FunctionId,
}

impl Object for Device {
    const KIND: &'static str = "device";
    type C = ibv_device;
    fn c_address(&self) -> *mut ibv_device {
        self.public.get()
    }
}

/// Copies text with its terminator; too long text is cut.
fn put_text(to: &mut [c_char], text: &str) {
    let cut = text.len().min(to.len() - 1);
    for (to, byte) in to.iter_mut().zip(&text.as_bytes()[..cut]) {
        *to = *byte as c_char;
    }
}

/// The devices themselves exist as long as the program, from when they are first listed: programs keep their addresses.
static DEVICES: Mutex<BTreeMap<FunctionId, Arc<Device>>> = Mutex::new(BTreeMap::new());

fn devices(ids: &[FunctionId]) -> Vec<Arc<Device>> {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let device = |&id: &FunctionId| Arc::clone(devices.entry(id).or_insert_with(|| new_device(id)));
    ids.iter().map(device).collect()
}

fn new_device(id: FunctionId) -> Arc<Device> {
    let mut public = ibv_device { node_type: IBV_NODE_CA, transport_type: IBV_TRANSPORT_IB, ..Default::default() };
    put_text(&mut public.name, &device_name(id));
    put_text(&mut public.dev_name, &format!("uverbs{}", device_index(id)));
    put_text(&mut public.ibdev_path, &format!("{}/{}", EMULATED, device_name(id)));
    let device = Arc::new(Device { public: CStruct::new(public), id });
    handle::publish(&device);
    device
}

/// Addresses of devices, and null behind the last.
struct DeviceList(Box<[CStruct<*mut ibv_device>]>);

impl Object for DeviceList {
    const KIND: &'static str = "device list";
    type C = *mut ibv_device;
    fn c_address(&self) -> *mut *mut ibv_device {
        // A cell is nothing but its contents.
        self.0.as_ptr().cast::<*mut ibv_device>().cast_mut()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    pointer("ibv_get_device_list", || {
        let devices = devices(&known()?);
        let addresses = devices.iter().map(|device| device.c_address()).chain([core::ptr::null_mut()]);
        let list = DeviceList(addresses.map(CStruct::new).collect());
        // SAFETY: null, or writable as the manual page asks.
        if let Ok(num_devices) = unsafe { out(num_devices, "num_devices") } {
            num_devices.write(devices.len() as c_int);
        }
        Ok(handle::publish(&Arc::new(list)))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        let _ = status("ibv_free_device_list", || Ok(handle::retire::<DeviceList>(list).map(drop)?));
    }
}

/// The structure at an address, if there is memory that can be read: asked of the kernel, so that a wild pointer is no
/// crash.
fn structure_at(device: *const ibv_device) -> Option<ibv_device> {
    let mut copy = ibv_device::default();
    let bytes = size_of::<ibv_device>();
    let to = libc::iovec { iov_base: (&raw mut copy).cast(), iov_len: bytes };
    let from = libc::iovec { iov_base: device.cast_mut().cast(), iov_len: bytes };
    // SAFETY: the kernel writes to `copy` alone, whose fields are numbers, characters and addresses that nobody follows
    // here.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    (usize::try_from(read) == Ok(bytes)).then_some(copy)
}

/// The device that a program means: one from a list, or a copy of its structure, as rdma-core's calls take one, by the
/// name in it.
pub(crate) fn find(device: *mut ibv_device) -> Result<Arc<Device>> {
    let bad = match handle::get::<Device>(device) {
        Ok(device) => return Ok(device),
        Err(bad) => bad,
    };
    // In a child somebody may hold the lock who is not there.
    let copy = structure_at(device).filter(|_| !crate::fork::is_child()).ok_or(bad)?;
    let name: Vec<u8> = copy.name.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0).collect();
    let devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let named = devices.values().find(|device| device_name(device.id).as_bytes() == name);
    named.cloned().ok_or_else(|| bad.into())
}

/// The name in the structure, whoever has made that.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    pointer("ibv_get_device_name", || {
        if device.is_null() {
            return Err(Errno::invalid("device is null"));
        }
        Ok(device.wrapping_byte_add(core::mem::offset_of!(ibv_device, name)).cast::<c_char>())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    let mut guid = 0;
    status("ibv_get_device_guid", || {
        guid = node_guid(find(device)?.id)?;
        Ok(())
    });
    guid
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    number("ibv_get_device_index", || Ok(device_index(find(device)?.id) as c_int))
}

/// The EUI-64 form of the function's Ethernet address, in network order.
fn node_guid(id: FunctionId) -> Result<u64> {
    let [a, b, c, d, e, f] = port_addresses(id)?.mac;
    Ok(u64::from_ne_bytes([a ^ 2, b, c, 0xFF, 0xFE, d, e, f]))
}

/// An open device.
pub struct Context {
    pub(crate) public: CStruct<verbs_context>,
    /// Index of the card.
    pub card: usize,
    /// Which of the card's functions it is.
    pub function: Function,
    /// The machine that the card is part of.
    pub(crate) machine: usize,
    pub(crate) events: Events,
}

impl Object for Context {
    const KIND: &'static str = "device context";
    type C = ibv_context;
    fn c_address(&self) -> *mut ibv_context {
        // SAFETY: only the address of a field is taken.
        unsafe { &raw mut (*self.public.get()).context }
    }
}

impl Context {
    /// The function that was opened.
    #[must_use]
    pub fn id(&self) -> FunctionId {
        FunctionId { card: self.card, function: self.function }
    }
}

/// What a function reports of itself and its card: the functions of one card have one system image GUID.
pub(crate) fn attributes(id: FunctionId) -> Result<ibv_device_attr> {
    let mut answer = ibv_device_attr {
        node_guid: node_guid(id)?,
        sys_image_guid: node_guid(FunctionId::host(id.card))?,
        max_mr_size: u64::MAX,
        page_size_cap: 0xFFFF_F000,
        vendor_id: VENDOR_ID,
        vendor_part_id: VENDOR_PART_ID,
        max_qp: 1 << 17,
        max_qp_wr: 1 << 15,
        max_sge: MAX_SGE as c_int,
        max_sge_rd: MAX_SGE as c_int,
        max_cq: 1 << 24,
        max_cqe: MAX_CQE,
        max_mr: 1 << 24,
        max_pd: 1 << 24,
        max_qp_rd_atom: MAX_RD_ATOMIC.into(),
        max_res_rd_atom: 1 << 21,
        max_qp_init_rd_atom: MAX_RD_ATOMIC.into(),
        atomic_cap: IBV_ATOMIC_HCA,
        max_mcast_grp: 1 << 21,
        max_mcast_qp_attach: 240,
        max_total_mcast_qp_attach: 240 << 21,
        max_ah: i32::MAX,
        max_mw: 1 << 24,
        device_cap_flags: IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B,
        max_srq: 1 << 16,
        max_srq_wr: MAX_SHARED_RECEIVES as c_int,
        max_srq_sge: MAX_SGE as c_int,
        max_pkeys: 128,
        local_ca_ack_delay: LOCAL_ACK_DELAY,
        phys_port_cnt: 1,
        ..Default::default()
    };
    put_text(&mut answer.fw_ver, FIRMWARE);
    Ok(answer)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    status("ibv_query_device", || {
        let answer = attributes(handle::get::<Context>(context)?.id())?;
        // SAFETY: the manual page asks for a writable structure.
        unsafe { out(attr, "device_attr") }?.write(answer);
        Ok(())
    })
}

pub(crate) fn check_port(port_num: u32) -> Result<()> {
    if port_num == 1 { Ok(()) } else { Err(Errno::invalid(format!("port {port_num}: a card has port 1 alone"))) }
}

/// Codes of width and speed of the greatest rate that can be reported and is not above the port's.
fn width_and_speed(gbit_per_s: u64) -> (u8, u8) {
    let fitting = PORT_RATES.iter().rev().find(|(rate, ..)| *rate <= gbit_per_s);
    fitting.map_or((1, 1), |(_, width, speed)| (*width, *speed))
}

fn port_attr(context: *mut ibv_context, port_num: u8) -> Result<ibv_port_attr> {
    let id = handle::get::<Context>(context)?.id();
    check_port(port_num.into())?;
    let gids = gids(id)?.len();
    let PortInfo { mtu_code: mtu, pkeys, gbit_per_s } = port(id)?;
    let (active_width, active_speed) = width_and_speed(gbit_per_s);
    Ok(ibv_port_attr {
        state: IBV_PORT_ACTIVE,
        max_mtu: mtu.into(),
        active_mtu: mtu.into(),
        gid_tbl_len: gids as c_int,
        port_cap_flags: PORT_IP_BASED_GIDS,
        max_msg_sz: MAX_MESSAGE_BYTES,
        pkey_tbl_len: pkeys.len() as u16,
        active_width,
        active_speed,
        phys_state: PHYS_STATE_LINK_UP,
        link_layer: IBV_LINK_LAYER_ETHERNET as u8,
        max_vl_num: 1,
        ..Default::default()
    })
}

/// The exported symbol fills the older, shorter structure.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    status("ibv_query_port", || {
        let whole = port_attr(context, port_num)?;
        if attr.is_null() {
            return Err(Errno::invalid("port_attr is null"));
        }
        // SAFETY: the caller's structure has this many bytes; the source is longer.
        unsafe {
            core::ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), attr.cast::<u8>(), COMPAT_PORT_ATTR_BYTES);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_port_whole(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    bytes: usize,
) -> c_int {
    status("ibv_query_port", || {
        let whole = port_attr(context, port_num)?;
        if attr.is_null() {
            return Err(Errno::invalid("port_attr is null"));
        }
        // SAFETY: the caller says how long its structure is, which may be that of an older or newer header.
        unsafe {
            core::ptr::write_bytes(attr.cast::<u8>(), 0, bytes);
            let known = bytes.min(size_of_val(&whole));
            core::ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), attr.cast::<u8>(), known);
        }
        Ok(())
    })
}

/// Addresses of a function at its card's port.
pub(crate) fn port_addresses(id: FunctionId) -> Result<PortAddresses> {
    if let Some(cards) = elsewhere()? {
        let CardInfo { mac, gids, .. } = card_elsewhere(cards, id)?.clone();
        return Ok(PortAddresses { mac, gids });
    }
    on_machine(|world| {
        let vhca = world.vhca(id)?;
        Ok::<_, Errno>(world.card(id.card)?.nic.port_addresses(vhca)?.clone())
    })
}

/// Identifiers of a function at its card's port.
///
/// # Errors
/// No such function, or there is no machine.
pub fn gids(id: FunctionId) -> Result<Vec<GidEntry>> {
    Ok(port_addresses(id)?.gids)
}

/// A port's identifiers, for a message.
#[must_use]
pub fn listed(gids: &[GidEntry]) -> String {
    let one = |(index, GidEntry { gid, version }): (usize, &GidEntry)| {
        let version = match version {
            RoceVersion::V1 => "v1",
            RoceVersion::V2 => "v2",
        };
        format!("{index} {gid} (RoCE {version})")
    };
    gids.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
}

/// The identifier of an index.
pub(crate) fn gid_at(gids: &[GidEntry], index: i64) -> Result<GidEntry> {
    let found = usize::try_from(index).ok().and_then(|index| gids.get(index)).copied();
    found.ok_or_else(|| Errno::invalid(format!("GID index {index}: the port has {}", listed(gids))))
}

/// The port of a function's card.
fn port(id: FunctionId) -> Result<PortInfo> {
    match elsewhere()? {
        Some(cards) => Ok(card_elsewhere(cards, id)?.port.clone()),
        None => on_nic(id.card, |nic| Ok(port_of(nic))),
    }
}

/// Code of the largest path MTU of a function's port.
///
/// # Errors
/// No such function, or there is no machine.
pub fn port_mtu_code(id: FunctionId) -> Result<u8> {
    Ok(port(id)?.mtu_code)
}

/// Partition keys of a card's port.
pub(crate) fn pkeys(card: usize) -> Result<Vec<u16>> {
    Ok(port(FunctionId::host(card))?.pkeys)
}

/// Ethernet address of a function.
///
/// # Errors
/// No such function, or there is no machine.
pub fn mac(id: FunctionId) -> Result<[u8; 6]> {
    Ok(port_addresses(id)?.mac)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    number("ibv_query_gid", || {
        let id = handle::get::<Context>(context)?.id();
        check_port(port_num.into())?;
        let found = gid_at(&gids(id)?, index.into())?;
        // SAFETY: the manual page asks for a writable GID.
        unsafe { out(gid, "gid") }?.write(ibv_gid { raw: found.gid.0 });
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    number("ibv_query_pkey", || {
        let card = handle::get::<Context>(context)?.card;
        check_port(port_num.into())?;
        let pkeys = pkeys(card)?;
        let found = usize::try_from(index).ok().and_then(|index| pkeys.get(index));
        let found = found
            .ok_or_else(|| Errno::invalid(format!("partition key index {index}: the port has {}", pkeys.len())))?;
        // SAFETY: the manual page asks for a writable key, in network order.
        unsafe { out(pkey, "pkey") }?.write(found.to_be());
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_is_supported(device: *mut ibv_device) -> bool {
    find(device).is_ok()
}

/// The head of `mlx5dv_context`; the rest is written only where its bit of `comp_mask` says so, and none does.
#[repr(C)]
pub(crate) struct DirectContext {
    version: u8,
    flags: u64,
    comp_mask: u64,
}

/// Completion entries have the format of version 1, and nothing of what may be asked for besides is there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_query_device(context: *mut ibv_context, attrs: *mut DirectContext) -> c_int {
    const CQE_V1: u64 = 1;
    status("mlx5dv_query_device", || {
        handle::get::<Context>(context)?;
        // SAFETY: null, or writable as the manual page asks.
        unsafe { out(attrs, "attrs_out") }?.write(DirectContext { version: 0, flags: CQE_V1, comp_mask: 0 });
        Ok(())
    })
}

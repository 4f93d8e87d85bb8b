//! Queue pair 1 of a card's port: datagrams of connection management go out of it and come in through it.

use core::ptr::null_mut;
use std::net::IpAddr;

use emu_libibverbs::errno::{Errno, Result};
use emu_libibverbs::{calls, create_gsi};
use verbs_sys::{inline, *};

use crate::device::Device;
use crate::protocol::agent::{HOP_LIMIT, Path, address_of, gid_of};
use crate::protocol::mad::MAD_BYTES;

/// Q_Key of queue pair 1 (InfiniBand specification, volume 1, 10.2.5).
const QKEY: u32 = 0x8001_0000;
const QPN: u32 = 1;
/// Receives in stock: a burst of requests that is longer comes again, as it has no answer.
const RECEIVES: usize = 256;
const SENDS: u32 = 128;
/// The global route header, or the IPv4 header in its last bytes.
const GRH_BYTES: usize = 40;
const SLOT_BYTES: usize = GRH_BYTES + MAD_BYTES;
const TAKEN_AT_ONCE: usize = 16;

/// The queue pair, and what belongs to it. It lives as long as the process.
#[derive(Debug)]
pub(crate) struct Gsi {
    qp: *mut ibv_qp,
    channel: *mut ibv_comp_channel,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    pd: *mut ibv_pd,
    slots: *mut u8,
    lkey: u32,
    /// Index of the card.
    port: usize,
    /// Sends whose completions have not been taken.
    outstanding: u32,
}

// SAFETY: the objects of libibverbs may be used by any thread, and the slots by whoever has the queue pair.
unsafe impl Send for Gsi {}

fn made<T>(object: *mut T, what: &str) -> Result<*mut T> {
    if object.is_null() {
        return Err(Errno::new(libc::ENOMEM, format!("{what} for connection management cannot be made")));
    }
    Ok(object)
}

fn done(status: i32, what: &str) -> Result<()> {
    if status != 0 {
        return Err(Errno::new(status, format!("{what} of connection management has failed")));
    }
    Ok(())
}

impl Gsi {
    /// Makes it for the card of this index.
    ///
    /// # Errors
    /// The card is another process's.
    pub(crate) fn open(port: usize, device: &Device) -> Result<Self> {
        let (api, verbs, pd) = (calls(), device.verbs(), device.pd());
        // SAFETY: an open context; the queues belong to no other part of the program.
        let (channel, send_cq, recv_cq) = unsafe {
            let channel = made((api.ibv_create_comp_channel)(verbs), "a completion channel")?;
            let send_cq =
                made((api.ibv_create_cq)(verbs, SENDS as i32, null_mut(), null_mut(), 0), "a completion queue")?;
            let recv_cq = (api.ibv_create_cq)(verbs, RECEIVES as i32, null_mut(), channel, 0);
            (channel, send_cq, made(recv_cq, "a completion queue")?)
        };
        let cap = ibv_qp_cap {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: MAD_BYTES as u32,
        };
        let mut attr =
            ibv_qp_init_attr { send_cq, recv_cq, cap, qp_type: IBV_QPT_UD, sq_sig_all: 1, ..Default::default() };
        let qp = create_gsi(pd, &mut attr)?;
        let bytes = vec![0_u8; RECEIVES * SLOT_BYTES].leak();
        // SAFETY: the memory is never freed, and reached through this address alone.
        let mr = unsafe {
            let access = IBV_ACCESS_LOCAL_WRITE as i32;
            made((api.ibv_reg_mr)(pd, bytes.as_mut_ptr().cast(), bytes.len(), access), "a memory region")?
        };
        // SAFETY: a live memory region.
        let lkey = unsafe { (*mr).lkey };
        let gsi = Self { qp, channel, send_cq, recv_cq, pd, slots: bytes.as_mut_ptr(), lkey, port, outstanding: 0 };
        gsi.start()?;
        Ok(gsi)
    }

    fn start(&self) -> Result<()> {
        let api = calls();
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qkey: QKEY, ..Default::default() };
        let masks = [
            (IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
            (IBV_QPS_RTR, IBV_QP_STATE),
            (IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_SQ_PSN),
        ];
        for (state, mask) in masks {
            attr.qp_state = state;
            // SAFETY: a live queue pair and an initialised structure.
            let status = unsafe { (api.ibv_modify_qp)(self.qp, &raw mut attr, mask as i32) };
            done(status, "a transition of the queue pair")?;
        }
        for slot in 0..RECEIVES {
            self.post(slot)?;
        }
        // Whoever waits for datagrams sleeps on the descriptor, and takes events without waiting.
        // SAFETY: a live channel, whose descriptor is open; a live completion queue.
        unsafe {
            let fd = (*self.channel).fd;
            libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK);
            done(inline::req_notify_cq(self.recv_cq, 0), "a completion queue")
        }
    }

    /// Readable when a datagram has come.
    pub(crate) fn fd(&self) -> i32 {
        // SAFETY: a live channel.
        unsafe { (*self.channel).fd }
    }

    fn slot(&self, slot: usize) -> *mut u8 {
        self.slots.wrapping_add(slot % RECEIVES * SLOT_BYTES)
    }

    fn post(&self, slot: usize) -> Result<()> {
        let mut sge = ibv_sge { addr: self.slot(slot) as u64, length: SLOT_BYTES as u32, lkey: self.lkey };
        let mut wr = ibv_recv_wr { wr_id: slot as u64, sg_list: &raw mut sge, num_sge: 1, ..Default::default() };
        let mut bad = null_mut();
        // SAFETY: a live queue pair and a list of one request; the slot's memory lives as long as the process.
        done(unsafe { inline::post_recv(self.qp, &raw mut wr, &raw mut bad) }, "a receive")
    }

    /// Has the channel report the next datagram. What comes between this and the next [`take`](Self::take) is found
    /// there.
    pub(crate) fn arm(&self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: live objects and writable places; the descriptor does not block.
        unsafe {
            while (calls().ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) == 0 {
                (calls().ibv_ack_cq_events)(cq, 1);
            }
            inline::req_notify_cq(self.recv_cq, 0);
        }
    }

    /// Takes datagrams that have come, at most some.
    pub(crate) fn take(&self) -> Vec<(Path, [u8; MAD_BYTES])> {
        let mut completions = [ibv_wc::default(); TAKEN_AT_ONCE];
        // SAFETY: a live completion queue, and room for as many as are asked for.
        let count = unsafe { inline::poll_cq(self.recv_cq, TAKEN_AT_ONCE as i32, completions.as_mut_ptr()) };
        let mut taken = Vec::new();
        for wc in &completions[..usize::try_from(count).unwrap_or(0)] {
            let slot = wc.wr_id as usize;
            let mut bytes = [0; SLOT_BYTES];
            // SAFETY: the card has written the slot and does not reach it before it is posted again.
            unsafe { core::ptr::copy_nonoverlapping(self.slot(slot), bytes.as_mut_ptr(), SLOT_BYTES) };
            let whole = wc.status == IBV_WC_SUCCESS && wc.byte_len as usize == SLOT_BYTES && wc.src_qp == QPN;
            if let Some(path) = self.path(wc, &bytes).filter(|_| whole) {
                taken.push((path, core::array::from_fn(|i| bytes[GRH_BYTES + i])));
            }
            if let Err(error) = self.post(slot) {
                tracing::warn!(reason = error.reason, "a receive of connection management is lost");
            }
        }
        taken
    }

    /// The way that a datagram has come, seen from here.
    fn path(&self, wc: &ibv_wc, bytes: &[u8; SLOT_BYTES]) -> Option<Path> {
        let mut header: [u8; GRH_BYTES] = core::array::from_fn(|i| bytes[i]);
        let mut wc = *wc;
        let mut ah = ibv_ah_attr::default();
        // SAFETY: a live domain, and initialised structures.
        let context = unsafe { (*self.pd).context };
        // SAFETY: as above.
        let status =
            unsafe { ibv_init_ah_from_wc(context, 1, &raw mut wc, header.as_mut_ptr().cast::<ibv_grh>(), &raw mut ah) };
        if status != 0 {
            return None;
        }
        let device = crate::device::devices().ok()?.get(self.port)?;
        let local = device.gids.get(usize::from(ah.grh.sgid_index))?.gid;
        // SAFETY: any 16 bytes are a GID.
        let remote = unsafe { ah.grh.dgid.raw };
        Some(Path { port: self.port, local: address_of(local.0), remote: address_of(remote) })
    }

    /// Sends a datagram. Whether it arrives is not known.
    ///
    /// # Errors
    /// The queue is full, or nobody has the address.
    pub(crate) fn send(&mut self, device: &Device, path: &Path, bytes: &[u8; MAD_BYTES]) -> Result<()> {
        let api = calls();
        if self.outstanding >= SENDS / 2 {
            self.retire();
        }
        let sgid_index = self.gid_index(device, path.local)?;
        let grh = ibv_global_route {
            dgid: ibv_gid { raw: gid_of(path.remote) },
            sgid_index,
            hop_limit: HOP_LIMIT,
            ..Default::default()
        };
        let mut ah_attr = ibv_ah_attr { grh, is_global: 1, port_num: 1, ..Default::default() };
        // SAFETY: a live domain and an initialised structure.
        let ah = unsafe { (api.ibv_create_ah)(self.pd, &raw mut ah_attr) };
        if ah.is_null() {
            return Err(Errno::new(libc::EHOSTUNREACH, format!("nobody has the address {}", path.remote)));
        }
        let mut sge = ibv_sge { addr: bytes.as_ptr() as u64, length: MAD_BYTES as u32, lkey: 0 };
        let mut wr = ibv_send_wr {
            sg_list: &raw mut sge,
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags: IBV_SEND_INLINE | IBV_SEND_SIGNALED,
            ..Default::default()
        };
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = QPN;
        wr.wr.ud.remote_qkey = QKEY;
        let mut bad = null_mut();
        // SAFETY: a live queue pair and a list of one request, whose bytes are copied.
        let posted = unsafe { inline::post_send(self.qp, &raw mut wr, &raw mut bad) };
        // SAFETY: a live address handle; the entry has its own copy of the address.
        unsafe { (api.ibv_destroy_ah)(ah) };
        self.outstanding += u32::from(posted == 0);
        done(posted, "a send")
    }

    fn gid_index(&self, device: &Device, local: IpAddr) -> Result<u8> {
        device.gid_index(local).ok_or_else(|| Errno::invalid(format!("{local} is not an address of the card")))
    }

    /// Makes room in the send queue.
    fn retire(&mut self) {
        let mut completions = [ibv_wc::default(); TAKEN_AT_ONCE];
        // SAFETY: a live completion queue, and room for as many as are asked for.
        let taken = unsafe { inline::poll_cq(self.send_cq, TAKEN_AT_ONCE as i32, completions.as_mut_ptr()) };
        self.outstanding = self.outstanding.saturating_sub(u32::try_from(taken).unwrap_or(0));
    }
}

unsafe extern "C" {
    /// Of the emulator's libibverbs; Flexcast's own table does not have it.
    fn ibv_init_ah_from_wc(
        context: *mut ibv_context,
        port_num: u8,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        attr: *mut ibv_ah_attr,
    ) -> i32;
}

//! Posting and polling.

use core::ptr::null_mut;

use verbs_sys::*;

use super::handles::Kind;
use super::queues::qp_number;
use super::{Api, PostedBefore};
use crate::abi::{MEMORY_BYTES, step};
use crate::call;
use crate::input::Input;

/// Entries that every list has, whatever its request says.
const LIST: usize = 32;
/// Most requests of one call.
const REQUESTS: u8 = 3;
/// Most completions asked for.
const COMPLETIONS: usize = 8;

impl Api<'_> {
    /// A list of entries in guarded memory; `readable` ones are read by the call itself.
    fn entries(&mut self, input: &mut Input<'_>, readable: bool) -> (*mut ibv_sge, i32) {
        let count = match input.u8() {
            0xFF => i32::MAX,
            0xFE => -1,
            0xFD => LIST as i32,
            count => i32::from(count % 4),
        };
        let mut list = [ibv_sge::default(); LIST];
        for entry in list.iter_mut().take(count.clamp(0, 4) as usize) {
            let (offset, length) = (usize::from(input.u16()), input.u16());
            entry.addr = self.program.at(offset) as u64;
            entry.length = u32::from(length).min((MEMORY_BYTES - offset % MEMORY_BYTES) as u32);
            entry.lkey = self.handles.number(Kind::Mr, input);
            if !readable && input.u8() == 0xFF {
                (entry.addr, entry.length, entry.lkey) = (input.number(), input.u32(), input.u32());
            }
        }
        if input.u8() == 0xFF { (null_mut(), count) } else { (self.program.put(list).cast(), count) }
    }

    fn request(&mut self, input: &mut Input<'_>) -> ibv_send_wr {
        let opcode = u32::from(input.u8() % 16);
        let send_flags = u32::from(input.u8() & 0x3F);
        let mut wr = ibv_send_wr { wr_id: self.next_request, opcode, send_flags, ..Default::default() };
        self.next_request += 1;
        wr.__bindgen_anon_1.imm_data = self.handles.number(Kind::Mr, input);
        let remote = match input.u8() {
            0xFF => input.number(),
            high => self.program.at(usize::from(high) * 256) as u64,
        };
        let rkey = self.handles.number(Kind::Mr, input);
        match opcode {
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                wr.wr.atomic.remote_addr = remote & !7;
                wr.wr.atomic.rkey = rkey;
                (wr.wr.atomic.compare_add, wr.wr.atomic.swap) = (input.u8().into(), input.u8().into());
            }
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
                (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (remote, rkey);
            }
            _ => {
                wr.wr.ud.ah = self.handles.pick(Kind::Ah, input, self.program);
                wr.wr.ud.remote_qpn = self.handles.number(Kind::Qp, input);
                wr.wr.ud.remote_qkey = if input.u8() == 0xFF { input.u32() } else { 0x1111 };
            }
        }
        wr
    }

    pub(super) fn post_send(&mut self, input: &mut Input<'_>) {
        let qp: *mut ibv_qp = self.handles.pick(Kind::Qp, input, self.program);
        let mut next = null_mut();
        let mut ids = Vec::new();
        for _ in 0..1 + input.u8() % REQUESTS {
            let mut wr = self.request(input);
            (wr.sg_list, wr.num_sge) = self.entries(input, wr.send_flags & IBV_SEND_INLINE != 0);
            wr.next = next;
            ids.push(wr.wr_id);
            next = self.program.put(wr);
        }
        let mut bad = null_mut();
        let first = if input.u8() == 0xFF { null_mut() } else { next };
        let result =
            call!(self.inline, post_send(qp, first, if input.u8() == 0xFF { null_mut() } else { &raw mut bad }));
        if result == 0 {
            assert!(bad.is_null());
        }
        // Those before a bad one are posted.
        let refused = posted_before(first, bad, |wr: ibv_send_wr| (wr.wr_id, wr.next));
        self.note(qp, result, false, refused);
    }

    pub(super) fn post_recv(&mut self, input: &mut Input<'_>) {
        let qp: *mut ibv_qp = self.handles.pick(Kind::Qp, input, self.program);
        let mut next = null_mut();
        for _ in 0..1 + input.u8() % REQUESTS {
            let (sg_list, num_sge) = self.entries(input, false);
            next = self.program.put(ibv_recv_wr { wr_id: self.next_request, next, sg_list, num_sge });
            self.next_request += 1;
        }
        let mut bad = null_mut();
        let result = call!(self.inline, post_recv(qp, next, &raw mut bad));
        let posted = posted_before(next, bad, |wr: ibv_recv_wr| (wr.wr_id, wr.next));
        self.note(qp, result, true, posted);
    }

    /// Remembers what was posted. A call that fails without naming a bad request has posted nothing that is known of.
    pub(super) fn note(&mut self, qp: *mut ibv_qp, result: i32, receive: bool, PostedBefore(posted): PostedBefore) {
        if self.handles.is_live(Kind::Qp, qp as usize) {
            let number = qp_number(qp);
            let known = posted.into_iter().map(|id| (number, receive, id));
            self.posted.extend(known);
        } else {
            assert_ne!(result, 0, "a queue pair that is not there takes no work");
        }
    }

    pub(super) fn poll_cq(&mut self, input: &mut Input<'_>) {
        let cq = self.handles.pick(Kind::Cq, input, self.program);
        let wanted = match input.u8() {
            0xFF => -1,
            count => i32::from(count) % (COMPLETIONS as i32 + 1),
        };
        let room = self.program.put([ibv_wc::default(); COMPLETIONS]);
        let room = if input.u8() == 0xFF { null_mut() } else { room };
        let got = call!(self.inline, poll_cq(cq, wanted, room.cast()));
        assert!(got <= wanted.max(0), "{got} completions, {wanted} wanted");
        for index in 0..got.max(0) as usize {
            #[allow(unsafe_code, reason = "a C array")]
            // SAFETY: the array has room for more than were wanted, and was filled with zeros.
            let wc = unsafe { (*room)[index] };
            let receive = wc.opcode & IBV_WC_RECV != 0;
            let known = self.posted.remove(&(wc.qp_num, receive, wc.wr_id));
            assert!(
                known,
                "request {} of queue pair {:#x} was not posted, or has completed before",
                wc.wr_id, wc.qp_num
            );
        }
    }

    pub(super) fn let_pass(&mut self, input: &mut Input<'_>) {
        step(input.u8().into());
    }
}

/// The requests of a list before `bad` (null = all).
fn posted_before<T: Copy>(mut at: *mut T, bad: *mut T, read: impl Fn(T) -> (u64, *mut T)) -> PostedBefore {
    let mut ids = Vec::new();
    while !at.is_null() && at != bad {
        #[allow(unsafe_code, reason = "a C list")]
        // SAFETY: the list was put together for the call that has just returned.
        let (id, next) = read(unsafe { *at });
        ids.push(id);
        at = next;
    }
    PostedBefore(ids)
}

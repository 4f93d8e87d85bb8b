//! Completion queues and queue pairs of the host.

use core::ptr::null_mut;

use emu_machine::address;
use verbs_sys::*;

use super::Api;
use super::handles::Kind;
use crate::call;
use crate::input::Input;

/// The masks that a program brings a queue pair up with, per transport (RC, UC, UD) and state.
const INIT: [u32; 3] = [
    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
];
const CONNECTED: u32 = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
const RTR: [u32; 3] = [CONNECTED | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, CONNECTED, IBV_QP_STATE];
const SENDING: u32 = IBV_QP_STATE | IBV_QP_SQ_PSN;
const RTS: [u32; 3] =
    [SENDING | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC, SENDING, SENDING];
pub(super) const TYPES: [u32; 3] = [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD];

impl Api<'_> {
    pub(super) fn create_cq(&mut self, input: &mut Input<'_>) {
        let context = self.handles.pick(Kind::Context, input, self.program);
        let entries = match input.u8() {
            0xFF => i32::MAX,
            0xFE => i32::MIN,
            0xFD => 1 << 22,
            entries => entries.into(),
        };
        let channel = match input.u8() {
            0 => null_mut(),
            _ => self.handles.pick(Kind::Channel, input, self.program),
        };
        let vector = i32::from(input.u8() == 0xFF);
        if self.handles.enough(Kind::Cq) {
            return;
        }
        let cq = call!(self.program.verbs, ibv_create_cq(context, entries, null_mut(), channel, vector));
        if !cq.is_null() {
            #[allow(unsafe_code, reason = "a C structure")]
            // SAFETY: made just now.
            let (number, depth) = unsafe { ((*cq).handle, (*cq).cqe) };
            assert!(depth >= entries, "at least as deep as asked for");
            self.handles.add(Kind::Cq, cq, number);
        }
    }

    pub(super) fn destroy_cq(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Cq, input);
    }

    pub(super) fn notify_cq(&mut self, input: &mut Input<'_>) {
        let cq = self.handles.pick(Kind::Cq, input, self.program);
        call!(self.inline, req_notify_cq(cq, (input.u8() & 1).into()));
    }

    pub(super) fn cq_event(&mut self, input: &mut Input<'_>) {
        let verbs = self.program.verbs;
        let channel = self.handles.pick(Kind::Channel, input, self.program);
        let (mut cq, mut context) = (null_mut(), null_mut());
        let absent = input.u8() == 0xFF;
        let to = if absent { null_mut() } else { &raw mut cq };
        if call!(verbs, ibv_get_cq_event(channel, to, &raw mut context)) == 0 {
            assert!(self.handles.is_live(Kind::Cq, cq as usize), "an event of a completion queue that is there");
            call!(verbs, ibv_ack_cq_events(cq, 1));
        }
        let any = self.handles.pick(Kind::Cq, input, self.program);
        call!(verbs, ibv_ack_cq_events(any, input.u8().into()));
    }

    pub(super) fn create_qp(&mut self, input: &mut Input<'_>) {
        const DEPTHS: [u32; 8] = [4, 1, 0, 3, 16, 1 << 15, (1 << 15) + 1, u32::MAX];
        const ENTRIES: [u32; 6] = [1, 0, 2, 30, 31, u32::MAX];
        let pd = self.handles.pick(Kind::Pd, input, self.program);
        let qp_type = match input.u8() {
            code @ 0..=2 => TYPES[usize::from(code)],
            other => other.into(),
        };
        let mut attr = ibv_qp_init_attr {
            send_cq: self.handles.pick(Kind::Cq, input, self.program),
            recv_cq: self.handles.pick(Kind::Cq, input, self.program),
            cap: ibv_qp_cap {
                max_send_wr: input.pick(&DEPTHS),
                max_recv_wr: input.pick(&DEPTHS),
                max_send_sge: input.pick(&ENTRIES),
                max_recv_sge: input.pick(&ENTRIES),
                max_inline_data: input.u16().into(),
            },
            qp_type,
            sq_sig_all: input.u8().into(),
            ..Default::default()
        };
        if input.u8() == 0xFF {
            attr.srq = self.program.at(0).cast();
        }
        // The deepest rings take a lot of memory.
        let deep = [attr.cap.max_send_wr, attr.cap.max_recv_wr].contains(&(1 << 15));
        if self.handles.enough(Kind::Qp) || (deep && self.handles.nth::<u8>(Kind::Qp, 2).is_null() == (qp_type == 9)) {
            return;
        }
        let place = self.program.put(attr);
        let qp = call!(self.program.verbs, ibv_create_qp(pd, place));
        if !qp.is_null() {
            #[allow(unsafe_code, reason = "C structures")]
            // SAFETY: made just now; the attributes are where they were put.
            let (number, cap) = unsafe { ((*qp).qp_num, (*place).cap) };
            assert!(cap.max_send_wr >= attr.cap.max_send_wr && cap.max_recv_wr >= attr.cap.max_recv_wr);
            self.posted.retain(|(qpn, ..)| *qpn != number);
            self.extended.remove(&(qp as usize));
            self.handles.add(Kind::Qp, qp, number);
        }
    }

    pub(super) fn destroy_qp(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Qp, input);
    }

    /// Leaves the groups that operations join, and destroys.
    pub(super) fn destroy_queue_pair(&mut self, qp: *mut ibv_qp) -> bool {
        let verbs = self.program.verbs;
        if call!(verbs, ibv_destroy_qp(qp)) == 0 {
            return true;
        }
        let gid = self.program.put(ibv_gid { raw: GROUP });
        call!(verbs, ibv_detach_mcast(qp, gid, 0)) == 0 && call!(verbs, ibv_destroy_qp(qp)) == 0
    }

    pub(super) fn modify_qp(&mut self, input: &mut Input<'_>) {
        let qp = self.handles.pick(Kind::Qp, input, self.program);
        let state = u32::from(input.u8() % 8);
        let attr = ibv_qp_attr {
            qp_state: state,
            cur_qp_state: input.u8().into(),
            path_mtu: u32::from(input.u8() % 7),
            qkey: input.u32(),
            rq_psn: input.u32(),
            sq_psn: input.u32(),
            dest_qp_num: self.handles.number(Kind::Qp, input),
            qp_access_flags: input.u8().into(),
            ah_attr: self.address(input),
            pkey_index: (input.u8() / 128).into(),
            port_num: 1 + input.u8() / 128,
            max_rd_atomic: input.u8(),
            max_dest_rd_atomic: input.u8(),
            min_rnr_timer: input.u8(),
            timeout: input.u8(),
            retry_cnt: input.u8(),
            // 7 is for ever, and then a wait for an event is long.
            rnr_retry: input.u8() % 7,
            ..Default::default()
        };
        let kind = usize::from(input.u8() % 3);
        let mask = match input.u8() {
            0 => INIT[kind],
            1 => RTR[kind],
            2 => RTS[kind],
            3 => IBV_QP_STATE,
            _ => input.u32(),
        };
        let place = self.program.put(attr);
        let place = if input.u8() == 0xFF { null_mut() } else { place };
        let result = call!(self.program.verbs, ibv_modify_qp(qp, place, mask.cast_signed()));
        if result == 0 && mask & IBV_QP_STATE != 0 && state == IBV_QPS_RESET {
            self.forget(qp);
        }
    }

    /// Its work requests will not complete.
    fn forget(&mut self, qp: *mut ibv_qp) {
        let number = qp_number(qp);
        self.posted.retain(|(qpn, ..)| *qpn != number);
    }

    /// From RESET to RTS, towards another queue pair.
    pub(super) fn connect_qp(&mut self, input: &mut Input<'_>) {
        let verbs = self.program.verbs;
        let qp: *mut ibv_qp = self.handles.pick(Kind::Qp, input, self.program);
        let dest_qp_num = self.handles.number(Kind::Qp, input);
        let ah_attr = self.address(input);
        if !self.handles.is_live(Kind::Qp, qp as usize) {
            return;
        }
        #[allow(unsafe_code, reason = "a C structure")]
        // SAFETY: a live queue pair.
        let qp_type = unsafe { (*qp).qp_type };
        let kind = TYPES.iter().position(|&known| known == qp_type).expect("a known type");
        let base = ibv_qp_attr {
            path_mtu: IBV_MTU_256,
            qkey: 0x1111,
            rq_psn: 7,
            sq_psn: 7,
            dest_qp_num,
            qp_access_flags: 15,
            ah_attr,
            port_num: 1,
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            min_rnr_timer: 1,
            timeout: 1,
            retry_cnt: 2,
            rnr_retry: 2,
            ..Default::default()
        };
        self.forget(qp);
        let steps = [(IBV_QPS_RESET, IBV_QP_STATE), (IBV_QPS_INIT, INIT[kind]), (IBV_QPS_RTR, RTR[kind])];
        for (qp_state, mask) in steps.into_iter().chain([(IBV_QPS_RTS, RTS[kind])]) {
            let mut attr = ibv_qp_attr { qp_state, ..base };
            if call!(verbs, ibv_modify_qp(qp, &raw mut attr, mask.cast_signed())) != 0 {
                break;
            }
        }
    }

    pub(super) fn query_qp(&mut self, input: &mut Input<'_>) {
        let qp: *mut ibv_qp = self.handles.pick(Kind::Qp, input, self.program);
        let attr = self.program.put(ibv_qp_attr::default());
        let init = self.program.put(ibv_qp_init_attr::default());
        let mask = input.u32().cast_signed();
        let init = if input.u8() == 0xFF { null_mut() } else { init };
        if call!(self.program.verbs, ibv_query_qp(qp, attr, mask, init)) == 0 {
            #[allow(unsafe_code, reason = "C structures")]
            // SAFETY: a live queue pair, and attributes where they were put.
            let (answered, public) = unsafe { ((*attr).qp_state, (*qp).state) };
            assert_eq!(answered, public, "a query refreshes the state");
        }
    }

    /// Joins or leaves a group.
    pub(super) fn group(&mut self, input: &mut Input<'_>) {
        let verbs = self.program.verbs;
        let qp = self.handles.pick(Kind::Qp, input, self.program);
        let gid = match input.u8() {
            0xFF => null_mut(),
            // No card's identifier is a group, and one group is enough.
            code @ 0..=1 => self.program.put(ibv_gid { raw: address(code.into()).gid.0 }),
            _ => self.program.put(ibv_gid { raw: GROUP }),
        };
        match input.u8() & 1 {
            0 => call!(verbs, ibv_attach_mcast(qp, gid, input.u16())),
            _ => call!(verbs, ibv_detach_mcast(qp, gid, input.u16())),
        };
    }

    pub(super) fn init_obj(&mut self, input: &mut Input<'_>) {
        let mut object = mlx5dv_obj::default();
        object.pd.in_ = self.handles.pick(Kind::Pd, input, self.program);
        object.cq.in_ = self.handles.pick(Kind::Cq, input, self.program);
        object.qp.in_ = self.handles.pick(Kind::Qp, input, self.program);
        object.ah.in_ = self.handles.pick(Kind::Ah, input, self.program);
        object.pd.out = self.program.put(mlx5dv_pd::default());
        object.cq.out = self.program.put(mlx5dv_cq::default());
        object.qp.out = self.program.put(mlx5dv_qp::default());
        object.ah.out = self.program.put(mlx5dv_ah::default());
        if input.u8() == 0xFF {
            object.cq.out = null_mut();
        }
        let place = self.program.put(object);
        let kinds = if input.u8() == 0xFF { input.number() } else { u64::from(input.u8()) };
        call!(self.program.verbs, mlx5dv_init_obj(if input.u8() == 0xFF { null_mut() } else { place }, kinds));
    }
}

/// 239.1.1.1.
pub(super) const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 239, 1, 1, 1];

/// The number of a live queue pair.
pub(super) fn qp_number(qp: *mut ibv_qp) -> u32 {
    #[allow(unsafe_code, reason = "a C structure")]
    // SAFETY: callers have just had a call succeed on it.
    unsafe {
        (*qp).qp_num
    }
}

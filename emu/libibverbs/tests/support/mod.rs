//! Two cards and the objects most tests need, driven through the function table alone.
#![allow(dead_code, unreachable_pub, unsafe_code)] // each test file uses a part
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)] // every call is on objects made here

use std::ptr::{from_mut, null_mut};

use emu_machine::Config;
use verbs_sys::*;

pub struct Host {
    pub api: VerbsApi,
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A machine of the calling thread's own, and both its cards opened.
pub fn two_cards() -> [Host; 2] {
    two_cards_of(Config::default())
}

/// The same of a machine with these parameters.
pub fn two_cards_of(config: Config) -> [Host; 2] {
    emu_machine::configure(Config { heap_bytes: 1 << 20, ..config }).unwrap();
    [0, 1].map(Host::open)
}

/// A machine of two cards, each with a function for its Arm cores: the two of the host, then the two of the Arm cores.
pub fn four_functions() -> [Host; 4] {
    emu_machine::configure(Config { heap_bytes: 1 << 20, arm_functions: true, ..Config::default() }).unwrap();
    [0, 1, 2, 3].map(Host::open)
}

impl Host {
    /// The device at this place of the list.
    pub fn open(index: usize) -> Host {
        let api = emu_libibverbs::api();
        unsafe {
            let mut count = 0;
            let list = (api.ibv_get_device_list)(&mut count);
            assert!(index < count as usize);
            let context = (api.ibv_open_device)(*list.add(index));
            (api.ibv_free_device_list)(list);
            assert!(!context.is_null());
            let pd = (api.ibv_alloc_pd)(context);
            assert!(!pd.is_null());
            Host { api, context, pd }
        }
    }

    pub fn gid(&self) -> ibv_gid {
        self.gid_at(0)
    }

    pub fn gid_at(&self, index: i32) -> ibv_gid {
        let mut gid = ibv_gid { raw: [0; 16] };
        assert_eq!(unsafe { (self.api.ibv_query_gid)(self.context, 1, index, &mut gid) }, 0);
        gid
    }

    pub fn mr(&self, bytes: &mut [u8], access: u32) -> *mut ibv_mr {
        let mr = unsafe { (self.api.ibv_reg_mr)(self.pd, bytes.as_mut_ptr().cast(), bytes.len(), access as i32) };
        assert!(!mr.is_null(), "{}", errno());
        mr
    }

    pub fn cq(&self, depth: i32) -> *mut ibv_cq {
        let cq = unsafe { (self.api.ibv_create_cq)(self.context, depth, null_mut(), null_mut(), 0) };
        assert!(!cq.is_null());
        cq
    }

    pub fn qp(&self, qp_type: u32, cq: *mut ibv_cq) -> *mut ibv_qp {
        let mut attr = init_attr(qp_type, cq);
        let qp = unsafe { (self.api.ibv_create_qp)(self.pd, &mut attr) };
        assert!(!qp.is_null(), "{}", errno());
        qp
    }

    pub fn modify(&self, qp: *mut ibv_qp, attr: &ibv_qp_attr, mask: u32) -> i32 {
        unsafe { (self.api.ibv_modify_qp)(qp, std::ptr::from_ref(attr).cast_mut(), mask as i32) }
    }

    pub fn init(&self, qp: *mut ibv_qp) {
        let datagram = unsafe { (*qp).qp_type } == IBV_QPT_UD;
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: 1,
            qkey: 0x1234,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
            ..Default::default()
        };
        let of_transport = if datagram { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | of_transport;
        assert_eq!(self.modify(qp, &attr, mask), 0);
    }

    /// INIT to RTS; `peer` is queue pair number and GID (RC, UC).
    pub fn connect(&self, qp: *mut ibv_qp, peer: Option<(u32, ibv_gid)>) {
        let reliable = unsafe { (*qp).qp_type } == IBV_QPT_RC;
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, path_mtu: IBV_MTU_1024, ..Default::default() };
        let mut mask = IBV_QP_STATE;
        if let Some((qpn, gid)) = peer {
            attr.dest_qp_num = qpn;
            attr.rq_psn = 7;
            attr.ah_attr = path(gid);
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            if reliable {
                (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (1, 12);
                mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            }
        }
        assert_eq!(self.modify(qp, &attr, mask), 0);
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: 7,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            ..Default::default()
        };
        mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
        if reliable {
            mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        }
        assert_eq!(self.modify(qp, &attr, mask), 0);
    }

    pub fn post_recv(&self, qp: *mut ibv_qp, id: u64, mut sges: Vec<ibv_sge>) -> i32 {
        let mut wr =
            ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: sges.as_mut_ptr(), num_sge: sges.len() as i32 };
        let mut bad = null_mut();
        let result = unsafe { inline::post_recv(qp, &mut wr, &mut bad) };
        assert_eq!(bad.is_null(), result == 0);
        result
    }

    pub fn post_send(&self, qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> i32 {
        let mut bad = null_mut();
        let result = unsafe { inline::post_send(qp, wr, &mut bad) };
        assert_eq!(bad, if result == 0 { null_mut() } else { from_mut(wr) });
        result
    }

    /// Polls until something completes; virtual time passes meanwhile.
    pub fn completion(&self, cq: *mut ibv_cq) -> ibv_wc {
        self.try_completion(cq).expect("a completion comes within a bounded number of polls")
    }

    pub fn try_completion(&self, cq: *mut ibv_cq) -> Option<ibv_wc> {
        let mut wc = ibv_wc::default();
        (0..100_000).find_map(|_| match unsafe { inline::poll_cq(cq, 1, &mut wc) } {
            0 => None,
            got => {
                assert_eq!(got, 1);
                Some(wc)
            }
        })
    }
}

pub fn init_attr(qp_type: u32, cq: *mut ibv_cq) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        send_cq: cq,
        recv_cq: cq,
        cap: ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 60 },
        qp_type,
        ..Default::default()
    }
}

pub fn path(gid: ibv_gid) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route { dgid: gid, hop_limit: 64, ..Default::default() },
        is_global: 1,
        port_num: 1,
        ..Default::default()
    }
}

pub fn sge(bytes: &[u8], lkey: u32) -> ibv_sge {
    ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey }
}

pub fn send(id: u64, opcode: u32, sges: &mut [ibv_sge]) -> ibv_send_wr {
    ibv_send_wr {
        wr_id: id,
        opcode,
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as i32,
        send_flags: IBV_SEND_SIGNALED,
        ..Default::default()
    }
}

/// A connected pair on two cards: (hosts, queue pairs, completion queues).
pub fn connected(qp_type: u32) -> ([Host; 2], [*mut ibv_qp; 2], [*mut ibv_cq; 2]) {
    connected_on(two_cards(), qp_type)
}

/// The same on cards that are open.
pub fn connected_on(hosts: [Host; 2], qp_type: u32) -> ([Host; 2], [*mut ibv_qp; 2], [*mut ibv_cq; 2]) {
    let cqs = [hosts[0].cq(16), hosts[1].cq(16)];
    let qps = [hosts[0].qp(qp_type, cqs[0]), hosts[1].qp(qp_type, cqs[1])];
    for (index, host) in hosts.iter().enumerate() {
        host.init(qps[index]);
        let peer = (unsafe { (*qps[1 - index]).qp_num }, hosts[1 - index].gid());
        host.connect(qps[index], (qp_type != IBV_QPT_UD).then_some(peer));
    }
    (hosts, qps, cqs)
}

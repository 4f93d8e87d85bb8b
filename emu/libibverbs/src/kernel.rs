//! Structures as the kernel's interfaces pass them (Linux: `rdma/ib_user_verbs.h`, `rdma/ib_user_sa.h`), turned into
//! those of verbs: the part of librdmacm's work that libibverbs does.

use verbs_sys::*;

use crate::errno::{input, out, status};

/// `ib_uverbs_ah_attr`, its route first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelAh {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved_route: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}

/// `ib_uverbs_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelQp {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAh,
    alt_ah_attr: KernelAh,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

/// `ib_user_path_rec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelPath {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

/// `ibv_sa_path_rec` (rdma-core: `infiniband/sa.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathRecord {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: i32,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: i32,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = {
    assert!(size_of::<KernelAh>() == 32);
    assert!(size_of::<KernelQp>() == 144);
    assert!(size_of::<KernelPath>() == 64);
    assert!(size_of::<PathRecord>() == 64);
};

fn ah_attr(kernel: &KernelAh) -> ibv_ah_attr {
    let &KernelAh { dgid, flow_label, sgid_index, hop_limit, traffic_class, .. } = kernel;
    let &KernelAh { dlid, sl, src_path_bits, static_rate, is_global, port_num, .. } = kernel;
    let grh = ibv_global_route { dgid: ibv_gid { raw: dgid }, flow_label, sgid_index, hop_limit, traffic_class };
    ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
}

/// Reads, turns and writes a structure; null pointers are an error in the log.
///
/// # Safety
/// If not null, `src` must be initialised and `dst` writable.
unsafe fn copy<S, D>(call: &'static str, dst: *mut D, src: *const S, turn: impl FnOnce(&S) -> D) {
    status(call, || {
        // SAFETY: as this function's.
        unsafe { out(dst, "dst")?.write(turn(input(src, "src")?)) };
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(dst: *mut ibv_ah_attr, src: *const KernelAh) {
    // SAFETY: librdmacm passes both.
    unsafe { copy("ibv_copy_ah_attr_from_kern", dst, src, ah_attr) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(dst: *mut ibv_qp_attr, src: *const KernelQp) {
    // SAFETY: null, or the caller's initialised structure: the state in it is the program's and stays.
    let qp_state = unsafe { dst.as_ref() }.map_or(0, |attr| attr.qp_state);
    let turn = |kernel: &KernelQp| ibv_qp_attr {
        qp_state,
        cur_qp_state: kernel.cur_qp_state,
        path_mtu: kernel.path_mtu,
        path_mig_state: kernel.path_mig_state,
        qkey: kernel.qkey,
        rq_psn: kernel.rq_psn,
        sq_psn: kernel.sq_psn,
        dest_qp_num: kernel.dest_qp_num,
        qp_access_flags: kernel.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: kernel.max_send_wr,
            max_recv_wr: kernel.max_recv_wr,
            max_send_sge: kernel.max_send_sge,
            max_recv_sge: kernel.max_recv_sge,
            max_inline_data: kernel.max_inline_data,
        },
        ah_attr: ah_attr(&kernel.ah_attr),
        alt_ah_attr: ah_attr(&kernel.alt_ah_attr),
        pkey_index: kernel.pkey_index,
        alt_pkey_index: kernel.alt_pkey_index,
        en_sqd_async_notify: kernel.en_sqd_async_notify,
        sq_draining: kernel.sq_draining,
        max_rd_atomic: kernel.max_rd_atomic,
        max_dest_rd_atomic: kernel.max_dest_rd_atomic,
        min_rnr_timer: kernel.min_rnr_timer,
        port_num: kernel.port_num,
        timeout: kernel.timeout,
        retry_cnt: kernel.retry_cnt,
        rnr_retry: kernel.rnr_retry,
        alt_port_num: kernel.alt_port_num,
        alt_timeout: kernel.alt_timeout,
        ..Default::default()
    };
    // SAFETY: librdmacm passes both.
    unsafe { copy("ibv_copy_qp_attr_from_kern", dst, src, turn) };
}

fn path_record(kernel: &KernelPath) -> PathRecord {
    PathRecord {
        dgid: kernel.dgid,
        sgid: kernel.sgid,
        dlid: kernel.dlid,
        slid: kernel.slid,
        raw_traffic: kernel.raw_traffic.cast_signed(),
        flow_label: kernel.flow_label,
        hop_limit: kernel.hop_limit,
        traffic_class: kernel.traffic_class,
        reversible: kernel.reversible.cast_signed(),
        numb_path: kernel.numb_path,
        pkey: kernel.pkey,
        sl: kernel.sl,
        mtu_selector: kernel.mtu_selector,
        mtu: kernel.mtu as u8,
        rate_selector: kernel.rate_selector,
        rate: kernel.rate,
        packet_life_time_selector: kernel.packet_life_time_selector,
        packet_life_time: kernel.packet_life_time,
        preference: kernel.preference,
    }
}

fn kernel_path(path: &PathRecord) -> KernelPath {
    KernelPath {
        dgid: path.dgid,
        sgid: path.sgid,
        dlid: path.dlid,
        slid: path.slid,
        raw_traffic: path.raw_traffic.cast_unsigned(),
        flow_label: path.flow_label,
        reversible: path.reversible.cast_unsigned(),
        mtu: path.mtu.into(),
        pkey: path.pkey,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        numb_path: path.numb_path,
        sl: path.sl,
        mtu_selector: path.mtu_selector,
        rate_selector: path.rate_selector,
        rate: path.rate,
        packet_life_time_selector: path.packet_life_time_selector,
        packet_life_time: path.packet_life_time,
        preference: path.preference,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_from_kern(dst: *mut PathRecord, src: *const KernelPath) {
    // SAFETY: librdmacm passes both.
    unsafe { copy("ibv_copy_path_rec_from_kern", dst, src, path_record) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_to_kern(dst: *mut KernelPath, src: *const PathRecord) {
    // SAFETY: librdmacm passes both.
    unsafe { copy("ibv_copy_path_rec_to_kern", dst, src, kernel_path) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte its own number, so that a field copied from the wrong place shows.
    fn numbered<const N: usize>() -> [u8; N] {
        std::array::from_fn(|at| at as u8 + 1)
    }

    #[test]
    fn a_path_goes_there_and_back() {
        // SAFETY: plain integers of this size.
        let mut kernel: KernelPath = unsafe { core::mem::transmute(numbered::<64>()) };
        kernel.mtu = 5;
        let (mut path, mut back) = (PathRecord::default(), KernelPath::default());
        // SAFETY: initialised structures.
        unsafe {
            ibv_copy_path_rec_from_kern(&raw mut path, &raw const kernel);
            ibv_copy_path_rec_to_kern(&raw mut back, &raw const path);
        }
        assert_eq!(back, kernel);
        assert_eq!((path.dgid[0], path.pkey, path.mtu), (1, u16::from_ne_bytes([53, 54]), 5));
    }

    #[test]
    fn attributes_of_a_queue_pair_land_where_they_belong() {
        // SAFETY: plain integers of this size.
        let kernel: KernelQp = unsafe { core::mem::transmute(numbered::<144>()) };
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, ..Default::default() };
        // SAFETY: initialised structures.
        unsafe { ibv_copy_qp_attr_from_kern(&raw mut attr, &raw const kernel) };
        let word = |at: u8| u32::from_ne_bytes([at, at + 1, at + 2, at + 3]);
        assert_eq!((attr.qp_state, attr.cur_qp_state, attr.qkey), (IBV_QPS_INIT, word(9), word(21)));
        assert_eq!(
            (attr.ah_attr.grh.flow_label, attr.ah_attr.port_num, attr.alt_ah_attr.port_num),
            (word(57), 71, 103)
        );
        assert_eq!(
            (attr.cap.max_inline_data, attr.pkey_index, attr.timeout),
            (word(121), u16::from_ne_bytes([125, 126]), 135)
        );
        assert_eq!((attr.alt_port_num, attr.alt_timeout), (138, 139));
        // SAFETY: null is answered.
        unsafe { ibv_copy_qp_attr_from_kern(core::ptr::null_mut(), &raw const kernel) };
    }
}

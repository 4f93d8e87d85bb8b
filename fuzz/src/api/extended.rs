//! The extended interface of verbs: device attributes by length, and work requests piece by piece.
#![allow(unsafe_code)] // tables of functions inside C structures

use core::ptr::{null, null_mut};

use verbs_sys::*;

use super::handles::Kind;
use super::queues::{TYPES, qp_number};
use super::{Api, PostedBefore};
use crate::abi::MEMORY_BYTES;
use crate::input::Input;

/// Most requests of a batch.
const REQUESTS: u8 = 4;

/// Calls a function of a structure, where it is there.
macro_rules! slot {
    ($object:expr, $name:ident($($argument:expr),*)) => {
        // SAFETY: the object is live and was made with these functions; the arguments are as `call!` says.
        unsafe {
            if let Some(function) = (*$object).$name {
                function($object, $($argument),*);
            }
        }
    };
}

impl Api<'_> {
    pub(super) fn query_device_ex(&mut self, input: &mut Input<'_>) {
        let context = self.handles.pick(Kind::Context, input, self.program);
        let bytes = usize::from(input.u16()) % 1024;
        let room = self.program.bytes(&vec![0xEE; bytes]);
        let asked = self.program.put(ibv_query_device_ex_input { comp_mask: u32::from(input.u8() == 0xFF) });
        let asked = if input.u8() & 1 == 0 { null() } else { asked.cast_const() };
        let Some(query) = self.tables.query_device_ex else { return };
        // SAFETY: the room has as many bytes as the call is given, and is as aligned as they are.
        unsafe { query(context, asked, if input.u8() == 0xFF { null_mut() } else { room.cast() }, bytes) };
    }

    pub(super) fn create_qp_ex(&mut self, input: &mut Input<'_>) {
        let context = self.handles.pick(Kind::Context, input, self.program);
        let odd = input.u8();
        let kind = usize::from(input.u8() % 3);
        let send = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
        let connected = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_LOCAL_INV;
        let reliable = IBV_QP_EX_WITH_RDMA_READ
            | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
            | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
            | IBV_QP_EX_WITH_SEND_WITH_INV;
        let all = [send | connected | reliable, send | connected, send];
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: self.handles.pick(Kind::Cq, input, self.program),
            recv_cq: self.handles.pick(Kind::Cq, input, self.program),
            cap: ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 },
            qp_type: TYPES[kind],
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: self.handles.pick(Kind::Pd, input, self.program),
            send_ops_flags: all[kind].into(),
            ..Default::default()
        };
        if odd & 1 != 0 {
            attr.send_ops_flags = input.u16().into();
        }
        if odd & 2 != 0 {
            attr.comp_mask = input.u8().into();
        }
        if odd & 4 != 0 {
            (attr.create_flags, attr.sq_sig_all) = (input.u8().into(), 1);
        }
        let Some(create) = self.tables.create_qp_ex else { return };
        if self.handles.enough(Kind::Qp) {
            return;
        }
        let has_operations = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let place = self.program.put(attr);
        // SAFETY: handles are resolved, the attributes are where they were put.
        let qp = unsafe { create(context, if odd == 0xFF { null_mut() } else { place }) };
        if qp.is_null() {
            return;
        }
        let number = qp_number(qp);
        self.posted.retain(|(qpn, ..)| *qpn != number);
        self.handles.add(Kind::Qp, qp, number);
        if has_operations {
            self.extended.insert(qp as usize);
        } else {
            self.extended.remove(&(qp as usize));
        }
    }

    /// A batch of requests, completed, aborted or forgotten.
    pub(super) fn batch(&mut self, input: &mut Input<'_>) {
        let qp: *mut ibv_qp_ex = self.handles.pick(Kind::Qp, input, self.program);
        if !self.handles.is_live(Kind::Qp, qp as usize) || !self.extended.contains(&(qp as usize)) {
            return;
        }
        let odd = input.u8();
        if odd & 1 == 0 {
            slot!(qp, wr_start());
        }
        let mut ids = Vec::new();
        for _ in 0..1 + input.u8() % REQUESTS {
            // SAFETY: a live queue pair; the two fields are the program's to write.
            unsafe { ((*qp).wr_id, (*qp).wr_flags) = (self.next_request, u32::from(input.u8() & 0x1F)) };
            ids.push(self.next_request);
            self.next_request += 1;
            self.request_of_batch(input, qp);
            for _ in 0..input.u8() % 3 {
                self.set_of_batch(input, qp);
            }
        }
        match input.u8() {
            0xFF => slot!(qp, wr_abort()),
            // The next batch of this thread begins anew.
            0xFE => {}
            _ => {
                // SAFETY: as `slot!`.
                let complete = unsafe { (*qp).wr_complete };
                // SAFETY: as `slot!`.
                let result = complete.map_or(0, |complete| unsafe { complete(qp) });
                self.note(qp.cast(), result, false, PostedBefore(if result == 0 { ids } else { Vec::new() }));
            }
        }
    }

    fn request_of_batch(&mut self, input: &mut Input<'_>, qp: *mut ibv_qp_ex) {
        let key = self.handles.number(Kind::Mr, input);
        let remote = match input.u8() {
            0xFF => input.number(),
            high => self.program.at(usize::from(high) * 256) as u64 & !7,
        };
        match input.u8() % 10 {
            0 => slot!(qp, wr_send()),
            1 => slot!(qp, wr_send_imm(1)),
            2 => slot!(qp, wr_send_inv(key)),
            3 => slot!(qp, wr_local_inv(key)),
            4 => slot!(qp, wr_rdma_read(key, remote)),
            5 => slot!(qp, wr_rdma_write(key, remote)),
            6 => slot!(qp, wr_rdma_write_imm(key, remote, 2)),
            7 => slot!(qp, wr_atomic_cmp_swp(key, remote, 0, 1)),
            8 => slot!(qp, wr_atomic_fetch_add(key, remote, 1)),
            _ => {}
        }
    }

    fn set_of_batch(&mut self, input: &mut Input<'_>, qp: *mut ibv_qp_ex) {
        let offset = usize::from(input.u16());
        let bytes = usize::from(input.u8()).min(MEMORY_BYTES - offset % MEMORY_BYTES);
        let addr = self.program.at(offset);
        let key = self.handles.number(Kind::Mr, input);
        let entries = usize::from(input.u8() % 34);
        match input.u8() % 5 {
            0 => slot!(qp, wr_set_sge(key, addr as u64, bytes as u32)),
            1 => {
                let list = [ibv_sge { addr: addr as u64, length: bytes as u32, lkey: key }; 34];
                let list = self.program.put(list);
                slot!(qp, wr_set_sge_list(entries, list.cast()));
            }
            2 => slot!(qp, wr_set_inline_data(if bytes == 0 { null_mut() } else { addr.cast() }, bytes)),
            3 => {
                let list = self.program.put([ibv_data_buf { addr: addr.cast(), length: bytes }; 34]);
                slot!(qp, wr_set_inline_data_list(entries, list.cast()));
            }
            _ => {
                let address = self.handles.pick(Kind::Ah, input, self.program);
                let number = self.handles.number(Kind::Qp, input);
                slot!(qp, wr_set_ud_addr(address, number, 0x1111));
            }
        }
    }
}

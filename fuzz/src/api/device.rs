//! FlexIO: keys, queues, handlers, windows, outboxes, streams.

use core::ptr::null_mut;

use emu_machine::address;
use flexio_sys::*;
use verbs_sys::ibv_gid;

use super::Api;
use super::handles::Kind;
use crate::call;
use crate::input::Input;

const OK: flexio_status = FLEXIO_STATUS_SUCCESS;

impl Api<'_> {
    pub(super) fn mkey_create(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let process = self.handles.pick(Kind::Process, input, self.program);
        let pd = if input.u8() & 1 == 0 { null_mut() } else { self.handles.pick(Kind::Pd, input, self.program) };
        let (daddr, len, access) = (self.daddr(input), input.number() as usize, i32::from(input.u8()));
        if self.handles.enough(Kind::Mkey) {
            return;
        }
        let attr = self.program.put(flexio_mkey_attr { pd, daddr, len, access });
        let mut key = null_mut();
        if call!(flexio, flexio_device_mkey_create(process, attr, &raw mut key)) == OK {
            self.handles.add(Kind::Mkey, key, call!(flexio, flexio_mkey_get_id(key)));
        }
    }

    pub(super) fn mkey_destroy(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Mkey, input);
    }

    pub(super) fn flexio_cq_create(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let process = self.handles.pick(Kind::Process, input, self.program);
        let context =
            if input.u8() & 1 == 0 { null_mut() } else { self.handles.pick(Kind::Context, input, self.program) };
        let odd = input.u8();
        let mut attr = flexio_cq_attr {
            log_cq_depth: input.u8(),
            element_type: if odd & 1 == 0 { FLEXIO_CQ_ELEMENT_TYPE_DPA_THREAD as u8 } else { input.u8() },
            uar_id: self.handles.number(Kind::FlexioUar, input),
            no_arm: odd & 2 != 0,
            overrun_ignore: odd & 4,
            always_armed: odd & 8,
            cq_ring_qmem: self.memory(input),
            cq_dbr_daddr: self.daddr(input),
            ..Default::default()
        };
        attr.__bindgen_anon_1.thread = self.handles.pick(Kind::Thread, input, self.program);
        if odd & 16 != 0 {
            (attr.cqe_comp_type, attr.cq_period, attr.cq_max_count, attr.cc) =
                (input.u8().into(), input.u16(), input.u16(), input.u8() & 1 == 1);
        }
        if self.handles.enough(Kind::FlexioCq) {
            return;
        }
        let attr = self.program.put(attr);
        let attr = if input.u8() == 0xFF { null_mut() } else { attr };
        let mut cq = null_mut();
        if call!(flexio, flexio_cq_create(process, context, attr, &raw mut cq)) == OK {
            self.handles.add(Kind::FlexioCq, cq, call!(flexio, flexio_cq_get_cq_num(cq)));
            let (mut count, mut period, mut mode) = (0, 0, 0);
            call!(flexio, others flexio_cq_query_moderation(cq, &raw mut count, &raw mut period, &raw mut mode));
            call!(flexio, others flexio_cq_modify_moderation(cq, input.u8().into(), 0, 0));
        }
    }

    pub(super) fn flexio_cq_destroy(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::FlexioCq, input);
    }

    fn queue_pair(&mut self, input: &mut Input<'_>) -> flexio_qp_attr {
        let odd = input.u8();
        let mut attr = flexio_qp_attr {
            transport_type: if odd & 1 == 0 { FLEXIO_QPC_ST_RC } else { input.u8().into() },
            pd: if odd & 2 == 0 { null_mut() } else { self.handles.pick(Kind::Pd, input, self.program) },
            log_sq_depth: input.u8().cast_signed().into(),
            log_rq_depth: input.u8().cast_signed().into(),
            no_sq: (odd & 4).into(),
            rq_type: if odd & 8 == 0 { 0 } else { input.u8().into() },
            sq_cqn: self.handles.number(Kind::FlexioCq, input),
            rq_cqn: self.handles.number(Kind::FlexioCq, input),
            qp_wq_buff_qmem: self.memory(input),
            qp_wq_dbr_qmem: self.memory(input),
            next_state: (input.u8() % 8).into(),
            remote_qp_num: self.handles.number(Kind::FlexioQp, input),
            qp_access_mask: input.u8().into(),
            path_mtu: (input.u8() % 7).into(),
            vhca_port_num: 1 + input.u8() / 128,
            rgid_or_rip: ibv_gid { raw: address(usize::from(input.u8() % 3)).gid.0 },
            fl: odd >> 7,
            retry_count: input.u8() % 8,
            min_rnr_nak_timer: input.u8().into(),
            next_rcv_psn: input.u8().into(),
            next_send_psn: input.u8().into(),
            log_sra_max: input.u8(),
            ..Default::default()
        };
        if odd & 16 != 0 {
            (attr.next_rcv_psn, attr.next_send_psn, attr.udp_sport) = (input.u32(), input.u32(), input.u16());
            (attr.gid_table_index, attr.user_index, attr.retry_count) = (input.u8(), input.u32(), input.u8());
            attr.dest_mac = self.program.bytes(&[2, 0, 0, 0, 0, 1]);
        }
        attr
    }

    pub(super) fn flexio_qp_create(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let process = self.handles.pick(Kind::Process, input, self.program);
        let attr = self.queue_pair(input);
        if self.handles.enough(Kind::FlexioQp) {
            return;
        }
        let attr = self.program.put(attr);
        let mut qp = null_mut();
        if call!(flexio, flexio_qp_create(process, null_mut(), attr, &raw mut qp)) == OK {
            self.handles.add(Kind::FlexioQp, qp, call!(flexio, flexio_qp_get_qp_num(qp)));
        }
    }

    pub(super) fn flexio_qp_modify(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let qp = self.handles.pick(Kind::FlexioQp, input, self.program);
        let attr = self.queue_pair(input);
        let attr = self.program.put(attr);
        let attr = if input.u8() == 0xFF { null_mut() } else { attr };
        let mask = self.program.put(flexio_qp_attr_opt_param_mask::default());
        call!(flexio, flexio_qp_modify(qp, attr, mask));
        call!(flexio, others flexio_qp_state_get(qp));
    }

    pub(super) fn flexio_qp_destroy(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::FlexioQp, input);
    }

    pub(super) fn handler_create(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let process = self.handles.pick(Kind::Process, input, self.program);
        let attr = flexio_event_handler_attr {
            host_stub_func: self.key(input),
            arg: input.u8().into(),
            affinity: flexio_affinity { type_: (input.u8() % 3).into(), id: input.number() as u32 },
            ..Default::default()
        };
        if self.handles.enough(Kind::Handler) {
            return;
        }
        let attr = self.program.put(attr);
        let attr = if input.u8() == 0xFF { null_mut() } else { attr };
        let mut handler = null_mut();
        if call!(flexio, flexio_event_handler_create(process, attr, &raw mut handler)) == OK {
            self.handles.add(Kind::Handler, handler, call!(flexio, flexio_event_handler_get_id(handler)));
            let thread = call!(flexio, flexio_event_handler_get_thread(handler));
            self.handles.borrow(Kind::Thread, thread, call!(flexio, others flexio_event_handler_get_obj_id(handler)));
        }
    }

    pub(super) fn handler_run(&mut self, input: &mut Input<'_>) {
        let handler = self.handles.pick(Kind::Handler, input, self.program);
        call!(self.program.flexio, flexio_event_handler_run(handler, input.u8().into()));
    }

    pub(super) fn handler_destroy(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Handler, input);
    }

    pub(super) fn window_create(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let process = self.handles.pick(Kind::Process, input, self.program);
        let pd = self.handles.pick(Kind::Pd, input, self.program);
        let mut window = null_mut();
        if !self.handles.enough(Kind::Window) && call!(flexio, flexio_window_create(process, pd, &raw mut window)) == OK
        {
            self.handles.add(Kind::Window, window, call!(flexio, flexio_window_get_id(window)));
        }
    }

    pub(super) fn window_destroy(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Window, input);
    }

    pub(super) fn outbox_create(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let process = self.handles.pick(Kind::Process, input, self.program);
        let uar = self.handles.pick(Kind::FlexioUar, input, self.program);
        let attr = self.program.put(flexio_outbox_attr { uar, en_pcc: u32::from(input.u8() == 0xFF) });
        let mut outbox = null_mut();
        if !self.handles.enough(Kind::Outbox)
            && call!(flexio, flexio_outbox_create(process, attr, &raw mut outbox)) == OK
        {
            call!(flexio, flexio_outbox_get_uar(outbox));
            self.handles.add(Kind::Outbox, outbox, call!(flexio, flexio_outbox_get_id(outbox)));
        }
    }

    pub(super) fn outbox_destroy(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Outbox, input);
    }

    pub(super) fn uar_create(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let process = self.handles.pick(Kind::Process, input, self.program);
        let mut uar = null_mut();
        if !self.handles.enough(Kind::FlexioUar) && call!(flexio, others flexio_uar_create(process, &raw mut uar)) == OK
        {
            self.handles.add(Kind::FlexioUar, uar, call!(flexio, flexio_uar_get_id(uar)));
        }
        let any = self.handles.pick(Kind::FlexioUar, input, self.program);
        let mut extended = null_mut();
        call!(flexio, others flexio_uar_extend(any, null_mut(), &raw mut extended));
        call!(flexio, others flexio_uar_get_extended_id(any));
    }

    pub(super) fn uar_destroy(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::FlexioUar, input);
    }

    fn stream(&mut self, input: &mut Input<'_>) -> *mut flexio_msg_stream_attr_t {
        let odd = input.u8();
        let attr = flexio_msg_stream_attr_t {
            data_bsize: if odd & 1 == 0 { 2048 } else { input.number() as usize },
            sync_mode: if odd & 2 == 0 { FLEXIO_LOG_DEV_SYNC_MODE_SYNC } else { input.u8().into() },
            stream_name: self.name(input).cast_mut(),
            level: input.u8() % 8,
            ..Default::default()
        };
        let attr = self.program.put(attr);
        if odd == 0xFF { null_mut() } else { attr }
    }

    pub(super) fn stream_create(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let process = self.handles.pick(Kind::Process, input, self.program);
        let attr = self.stream(input);
        let file = if input.u8() == 0xFF { null_mut() } else { self.file };
        let mut thread = 0;
        let thread = if input.u8() & 1 == 0 { null_mut() } else { &raw mut thread };
        let mut stream = null_mut();
        if !self.handles.enough(Kind::Stream)
            && call!(flexio, flexio_msg_stream_create(process, attr, file, thread, &raw mut stream)) == OK
        {
            self.handles.add(Kind::Stream, stream, 0);
        }
    }

    pub(super) fn stream_use(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let stream = self.handles.pick(Kind::Stream, input, self.program);
        call!(flexio, others flexio_msg_stream_get_id(stream));
        call!(flexio, others flexio_msg_stream_level_set(stream, input.u8() % 8));
        call!(flexio, flexio_msg_stream_flush(stream));
    }

    pub(super) fn stream_destroy(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Stream, input);
    }

    /// The deprecated log calls; the log goes at once, because nothing else would end it.
    pub(super) fn log_device(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let process = self.handles.pick(Kind::Process, input, self.program);
        let attr = self.stream(input);
        if call!(flexio, others flexio_log_dev_init(process, attr, self.file, null_mut())) == OK {
            assert_ne!(
                call!(flexio, others flexio_log_dev_init(process, attr, self.file, null_mut())),
                OK,
                "open already"
            );
            assert_eq!(call!(flexio, others flexio_log_dev_flush(process)), OK);
            assert_eq!(call!(flexio, others flexio_log_dev_destroy(process)), OK);
        }
        assert_ne!(call!(flexio, others flexio_log_dev_flush(process)), OK, "not open");
    }

    /// Calls for what the card does not have: whatever they are given, they refuse.
    pub(super) fn absent(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let process = self.handles.pick(Kind::Process, input, self.program);
        let any: *mut u8 = self.handles.pick(Kind::FlexioCq, input, self.program);
        let attr = self.program.put(flexio_wq_attr::default());
        assert_ne!(call!(flexio, others flexio_rq_create(process, null_mut(), 0, attr, null_mut())), OK);
        assert_ne!(call!(flexio, others flexio_sq_create(process, null_mut(), 0, attr, null_mut())), OK);
        assert_ne!(call!(flexio, others flexio_rmp_create(process, null_mut(), attr, null_mut())), OK);
        assert_ne!(call!(flexio, others flexio_rq_destroy(any.cast())), OK);
        assert_ne!(call!(flexio, others flexio_sq_destroy(any.cast())), OK);
        assert_ne!(call!(flexio, others flexio_rmp_destroy(any.cast())), OK);
        assert_ne!(call!(flexio, others flexio_cmdq_create(process, null_mut(), null_mut())), OK);
        assert_eq!(call!(flexio, others flexio_cmdq_is_empty(any.cast())), 1);
        assert_ne!(call!(flexio, others flexio_cmdq_destroy(any.cast())), OK);
        assert_eq!(call!(flexio, others flexio_rq_get_wq_num(any.cast())), u32::MAX);
        assert!(call!(flexio, others flexio_rq_get_tir(any.cast())).is_null());
    }
}

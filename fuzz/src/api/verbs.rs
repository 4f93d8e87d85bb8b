//! Devices, domains, memory, addresses, events.

use core::ffi::CStr;
use core::ptr::null_mut;

use emu_machine::address;
use verbs_sys::*;

use super::handles::Kind;
use super::queues::GROUP;
use super::{Api, list_entry};
use crate::abi::MEMORY_BYTES;
use crate::call;
use crate::input::Input;

impl Api<'_> {
    pub(super) fn device_list(&mut self, input: &mut Input<'_>) {
        let verbs = self.program.verbs;
        let mut count = 0;
        let list = call!(verbs, ibv_get_device_list(if input.u8() == 0 { null_mut() } else { &raw mut count }));
        assert!(!list.is_null());
        let device = list_entry(list, usize::from(input.u8() % 2));
        assert!(!call!(verbs, ibv_get_device_name(device)).is_null());
        assert_ne!(call!(verbs, ibv_get_device_guid(device)), 0);
        let any = self.handles.pick(Kind::Device, input, self.program);
        call!(verbs, ibv_get_device_name(any));
        call!(verbs, ibv_get_device_guid(any));
        call!(verbs, mlx5dv_is_supported(any));
        call!(verbs, ibv_free_device_list(list));
    }

    pub(super) fn open_device(&mut self, input: &mut Input<'_>) {
        let device = self.handles.pick(Kind::Device, input, self.program);
        if self.handles.enough(Kind::Context) {
            return;
        }
        let verbs = self.program.verbs;
        let context = match input.u8() {
            0 => call!(verbs, ibv_open_device(device)),
            1 => call!(verbs, mlx5dv_open_device(device, null_mut())),
            flags => {
                let attr = self.program.put(mlx5dv_context_attr { flags: flags.into(), comp_mask: 0 });
                call!(verbs, mlx5dv_open_device(device, attr))
            }
        };
        if !context.is_null() {
            let card = u32::from(device == self.handles.nth::<ibv_device>(Kind::Device, 1));
            self.handles.add(Kind::Context, context, card);
        }
    }

    pub(super) fn close_device(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Context, input);
    }

    pub(super) fn query_device(&mut self, input: &mut Input<'_>) {
        let verbs = self.program.verbs;
        let context = self.handles.pick(Kind::Context, input, self.program);
        let (port, index) = (input.u8() % 3, i32::from(input.u8().cast_signed()));
        let device = self.program.put(ibv_device_attr::default());
        let whole = self.program.put(ibv_port_attr::default());
        let gid = self.program.put(ibv_gid { raw: [0; 16] });
        let pkey = self.program.put(0_u16);
        let absent = input.u8() == 0xFF;
        call!(verbs, ibv_query_device(context, if absent { null_mut() } else { device }));
        // The exported symbol knows the older, shorter structure only.
        call!(verbs, ibv_query_port(context, port, if absent { null_mut() } else { whole.cast() }));
        call!(verbs, ibv_query_gid(context, port, index, if absent { null_mut() } else { gid }));
        call!(verbs, ibv_query_pkey(context, port, index, if absent { null_mut() } else { pkey }));
    }

    pub(super) fn alloc_pd(&mut self, input: &mut Input<'_>) {
        let context = self.handles.pick(Kind::Context, input, self.program);
        if self.handles.enough(Kind::Pd) {
            return;
        }
        let pd = call!(self.program.verbs, ibv_alloc_pd(context));
        if !pd.is_null() {
            self.handles.add(Kind::Pd, pd, 0);
        }
    }

    pub(super) fn dealloc_pd(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Pd, input);
    }

    pub(super) fn reg_mr(&mut self, input: &mut Input<'_>) {
        let pd = self.handles.pick(Kind::Pd, input, self.program);
        let offset = usize::from(input.u16());
        let len = usize::from(input.u16()).min(MEMORY_BYTES - offset % MEMORY_BYTES);
        let access = input.u8();
        // Bits above those of access that is known, now and then.
        let access = if access & 0x80 != 0 { input.u32() } else { u32::from(access) };
        if self.handles.enough(Kind::Mr) {
            return;
        }
        let (verbs, addr) = (self.program.verbs, self.program.at(offset));
        let mr = match input.u8() {
            0 => call!(verbs, ibv_reg_mr(pd, addr.cast(), len, access.cast_signed())),
            1 => call!(verbs, ibv_reg_mr(pd, null_mut(), len, access.cast_signed())),
            2 => call!(verbs, ibv_reg_mr_iova2(pd, addr.cast(), len, addr as u64, access)),
            _ => call!(verbs, ibv_reg_mr_iova2(pd, addr.cast(), len, input.number(), access)),
        };
        if !mr.is_null() {
            #[allow(unsafe_code, reason = "a C structure")]
            // SAFETY: registered just now.
            let key = unsafe { (*mr).lkey };
            self.handles.add(Kind::Mr, mr, key);
        }
    }

    pub(super) fn dereg_mr(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Mr, input);
    }

    pub(super) fn create_channel(&mut self, input: &mut Input<'_>) {
        let context = self.handles.pick(Kind::Context, input, self.program);
        if self.handles.enough(Kind::Channel) {
            return;
        }
        let channel = call!(self.program.verbs, ibv_create_comp_channel(context));
        if channel.is_null() {
            return;
        }
        if input.u8() & 1 == 0 {
            #[allow(unsafe_code, reason = "a C structure and a descriptor")]
            // SAFETY: made just now; its descriptor is open.
            unsafe {
                libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
            }
        }
        self.handles.add(Kind::Channel, channel, 0);
    }

    pub(super) fn destroy_channel(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Channel, input);
    }

    /// The identifier of a card, of a group, or any.
    pub(super) fn gid(&mut self, input: &mut Input<'_>) -> ibv_gid {
        let raw = match input.u8() {
            code @ 0..=1 => address(code.into()).gid.0,
            2 => GROUP,
            3 => {
                let mut raw = [0; 16];
                let bytes = input.bytes(16);
                raw[..bytes.len()].copy_from_slice(bytes);
                raw
            }
            other => address(other.into()).gid.0,
        };
        ibv_gid { raw }
    }

    pub(super) fn address(&mut self, input: &mut Input<'_>) -> ibv_ah_attr {
        let dgid = self.gid(input);
        let odd = input.u8();
        let mut attr = ibv_ah_attr {
            grh: ibv_global_route { dgid, hop_limit: 64, ..Default::default() },
            is_global: 1,
            port_num: 1,
            ..Default::default()
        };
        if odd & 1 != 0 {
            attr.is_global = input.u8();
        }
        if odd & 2 != 0 {
            attr.port_num = input.u8();
        }
        if odd & 4 != 0 {
            (attr.grh.sgid_index, attr.grh.flow_label, attr.grh.traffic_class) = (input.u8(), input.u32(), input.u8());
        }
        if odd & 8 != 0 {
            (attr.sl, attr.dlid, attr.static_rate, attr.grh.hop_limit) =
                (input.u8(), input.u16(), input.u8(), input.u8());
        }
        attr
    }

    pub(super) fn create_ah(&mut self, input: &mut Input<'_>) {
        let pd = self.handles.pick(Kind::Pd, input, self.program);
        let attr = self.address(input);
        if self.handles.enough(Kind::Ah) {
            return;
        }
        let attr = self.program.put(attr);
        let ah = call!(self.program.verbs, ibv_create_ah(pd, if input.u8() == 0xFF { null_mut() } else { attr }));
        if !ah.is_null() {
            self.handles.add(Kind::Ah, ah, 0);
        }
    }

    pub(super) fn destroy_ah(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Ah, input);
    }

    pub(super) fn umem_reg(&mut self, input: &mut Input<'_>) {
        let context = self.handles.pick(Kind::Context, input, self.program);
        let offset = usize::from(input.u16());
        let len = usize::from(input.u16()).min(MEMORY_BYTES - offset % MEMORY_BYTES);
        if self.handles.enough(Kind::Umem) {
            return;
        }
        let addr = self.program.at(offset).cast();
        let umem = call!(self.program.verbs, mlx5dv_devx_umem_reg(context, addr, len, input.u8().into()));
        if !umem.is_null() {
            #[allow(unsafe_code, reason = "a C structure")]
            // SAFETY: registered just now.
            let id = unsafe { (*umem).umem_id };
            self.handles.add(Kind::Umem, umem, id);
        }
    }

    pub(super) fn umem_dereg(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Umem, input);
    }

    pub(super) fn alloc_uar(&mut self, input: &mut Input<'_>) {
        let context = self.handles.pick(Kind::Context, input, self.program);
        if self.handles.enough(Kind::Uar) {
            return;
        }
        let uar = call!(self.program.verbs, mlx5dv_devx_alloc_uar(context, input.u8().into()));
        if !uar.is_null() {
            #[allow(unsafe_code, reason = "a C structure, and the page it names")]
            // SAFETY: made just now; programs may store into the page.
            let page = unsafe {
                (*uar).base_addr.cast::<u64>().write_volatile(1);
                (*uar).page_id
            };
            self.handles.add(Kind::Uar, uar, page);
        }
    }

    pub(super) fn free_uar(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::Uar, input);
    }

    /// Takes an event and acknowledges it.
    pub(super) fn async_event(&mut self, input: &mut Input<'_>) {
        let verbs = self.program.verbs;
        let context: *mut ibv_context = self.handles.pick(Kind::Context, input, self.program);
        let event = self.program.put(ibv_async_event::default());
        if self.handles.is_live(Kind::Context, context as usize) && input.u8() & 1 == 0 {
            #[allow(unsafe_code, reason = "a C structure and a descriptor")]
            // SAFETY: a live context; its descriptor is open.
            unsafe {
                libc::fcntl((*context).async_fd, libc::F_SETFL, libc::O_NONBLOCK);
            }
        }
        if call!(verbs, ibv_get_async_event(context, event)) == 0 {
            call!(verbs, ibv_ack_async_event(event));
        }
    }

    pub(super) fn strings(&mut self, input: &mut Input<'_>) {
        let verbs = self.program.verbs;
        let code = input.number() as u32;
        for text in [call!(verbs, ibv_wc_status_str(code)), call!(verbs, ibv_event_type_str(code))] {
            assert!(!text.is_null());
            #[allow(unsafe_code, reason = "a C string")]
            // SAFETY: both functions give a terminated string for every code.
            let text = unsafe { CStr::from_ptr(text) };
            assert!(!text.is_empty());
        }
    }
}

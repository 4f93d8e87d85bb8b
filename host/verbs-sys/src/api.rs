//! The table of functions through which all host code talks to libibverbs and libmlx5.

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::bindings::*;
use crate::load::{LoadError, Loader};

macro_rules! verbs_api {
    ($( $library:ident { $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?;)* } )*) => {
        /// Pointers to the exported C functions, under their C names. What the C header defines as inline functions
        /// (posting, polling) is in [`crate::inline`].
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)] // the names are those of the manual pages
        pub struct VerbsApi {
            $($($(#[$doc])* pub $name: unsafe extern "C" fn($($arg: $ty),*) $(-> $ret)?,)*)*
        }

        impl VerbsApi {
            pub(crate) fn from_libraries(verbs: &Loader, mlx5: &Loader) -> Result<Self, LoadError> {
                // SAFETY: the types are those of the manual pages' prototypes, which the libraries keep.
                unsafe { Ok(VerbsApi { $($($name: verbs_api!(@of $library verbs mlx5).function(stringify!($name))?,)*)* }) }
            }
        }
    };
    (@of ibverbs $verbs:ident $mlx5:ident) => { $verbs };
    (@of mlx5 $verbs:ident $mlx5:ident) => { $mlx5 };
}

verbs_api! {
    ibverbs {
        fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(list: *mut *mut ibv_device);
        fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
        /// Network byte order.
        fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
        fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(context: *mut ibv_context) -> c_int;
        fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
        /// Fills only the part up to `flags`; use [`crate::inline::query_port`].
        fn ibv_query_port(context: *mut ibv_context, port_num: u8, attr: *mut _compat_ibv_port_attr) -> c_int;
        fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
        fn ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut u16) -> c_int;
        fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
        fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
        fn ibv_reg_mr_iova2(
            pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint,
        ) -> *mut ibv_mr;
        /// Memory of another device, by its dma-buf.
        fn ibv_reg_dmabuf_mr(
            pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int,
        ) -> *mut ibv_mr;
        fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(
            context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel,
            comp_vector: c_int,
        ) -> *mut ibv_cq;
        fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
        fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void,
        ) -> c_int;
        fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);
        fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(event: *mut ibv_async_event);
        fn ibv_event_type_str(event: ibv_event_type) -> *const c_char;
        fn ibv_create_qp(pd: *mut ibv_pd, init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
        fn ibv_query_qp(
            qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr,
        ) -> c_int;
        fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
        fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
        fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
        fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
        /// Null for a queue pair that was not made with operations of the extended interface.
        fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
        fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;
    }
    mlx5 {
        fn mlx5dv_is_supported(device: *mut ibv_device) -> bool;
        fn mlx5dv_open_device(device: *mut ibv_device, attr: *mut mlx5dv_context_attr) -> *mut ibv_context;
        fn mlx5dv_init_obj(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int;
        fn mlx5dv_create_mkey(mkey_init_attr: *mut mlx5dv_mkey_init_attr) -> *mut mlx5dv_mkey;
        fn mlx5dv_destroy_mkey(mkey: *mut mlx5dv_mkey) -> c_int;
        fn mlx5dv_create_qp(
            context: *mut ibv_context, qp_attr: *mut ibv_qp_init_attr_ex, mlx5_qp_attr: *mut mlx5dv_qp_init_attr,
        ) -> *mut ibv_qp;
        /// Null for a queue pair that [`VerbsApi::mlx5dv_create_qp`] did not make.
        fn mlx5dv_qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut mlx5dv_qp_ex;
        fn mlx5dv_devx_general_cmd(
            context: *mut ibv_context, input: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
        ) -> c_int;
        fn mlx5dv_devx_obj_create(
            context: *mut ibv_context, input: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
        ) -> *mut mlx5dv_devx_obj;
        fn mlx5dv_devx_obj_query(
            obj: *mut mlx5dv_devx_obj, input: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
        ) -> c_int;
        fn mlx5dv_devx_obj_modify(
            obj: *mut mlx5dv_devx_obj, input: *const c_void, inlen: usize, out: *mut c_void, outlen: usize,
        ) -> c_int;
        fn mlx5dv_devx_obj_destroy(obj: *mut mlx5dv_devx_obj) -> c_int;
        fn mlx5dv_devx_umem_reg(
            context: *mut ibv_context, addr: *mut c_void, size: usize, access: u32,
        ) -> *mut mlx5dv_devx_umem;
        fn mlx5dv_devx_umem_dereg(umem: *mut mlx5dv_devx_umem) -> c_int;
        fn mlx5dv_devx_alloc_uar(context: *mut ibv_context, flags: u32) -> *mut mlx5dv_devx_uar;
        fn mlx5dv_devx_free_uar(uar: *mut mlx5dv_devx_uar);
    }
}

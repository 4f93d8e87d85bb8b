//! `mlx5dv_init_obj`: the numbers and places inside verbs objects.

use core::ffi::c_int;

use verbs_sys::*;

use crate::address::Ah;
use crate::cq::Cq;
use crate::errno::{Errno, input, out, status};
use crate::failures::ForeignCq;
use crate::handle;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::segments::BLOCK_BYTES;

/// Object types answered; rings show their place, but a doorbell stored into a page cannot be noticed, so no page is
/// given.
const KNOWN: u32 = MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ | MLX5DV_OBJ_AH | MLX5DV_OBJ_PD;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlx5dv_init_obj(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int {
    status("mlx5dv_init_obj", || {
        // SAFETY: null, or initialised for the types asked for, as the manual page says.
        let obj = unsafe { input(obj, "obj") }?;
        if obj_type & !u64::from(KNOWN) != 0 {
            return Err(Errno::unsupported(format!("object types {obj_type:#x}: {KNOWN:#x} are emulated")));
        }
        let asked = |kind: u32| obj_type & u64::from(kind) != 0;
        // SAFETY: every `out` asked for is null or writable, as the manual page says.
        unsafe {
            if asked(MLX5DV_OBJ_PD) {
                let pd = handle::get::<Pd>(obj.pd.in_)?;
                out(obj.pd.out, "pd.out")?.write(mlx5dv_pd { pdn: pd.number, comp_mask: 0 });
            }
            if asked(MLX5DV_OBJ_CQ) {
                let answer = if let Ok(foreign) = handle::get::<ForeignCq>(obj.cq.in_) {
                    // Its ring is not this library's.
                    mlx5dv_cq { cqe_size: 64, cqn: foreign.number, ..Default::default() }
                } else {
                    let cq = handle::get::<Cq>(obj.cq.in_)?;
                    let (ring, record, cqe_cnt) = cq.addresses();
                    mlx5dv_cq {
                        buf: ring.cast(),
                        dbrec: record.cast(),
                        cqe_cnt,
                        cqe_size: 64,
                        cqn: cq.number,
                        ..Default::default()
                    }
                };
                out(obj.cq.out, "cq.out")?.write(answer);
            }
            if asked(MLX5DV_OBJ_QP) {
                let qp = handle::get::<Qp>(obj.qp.in_)?;
                let shape = &qp.shape;
                let mut answer = mlx5dv_qp { dbrec: qp.record_address().cast(), ..Default::default() };
                if let Some(log) = shape.log_receives {
                    answer.rq.buf = qp.buffer.at(0).cast();
                    (answer.rq.wqe_cnt, answer.rq.stride) = (1 << log, 1 << shape.log_stride);
                }
                if let Some(log) = shape.log_blocks {
                    answer.sq.buf = qp.buffer.at(shape.send_offset).cast();
                    (answer.sq.wqe_cnt, answer.sq.stride) = (1 << log, BLOCK_BYTES as u32);
                }
                out(obj.qp.out, "qp.out")?.write(answer);
            }
            if asked(MLX5DV_OBJ_AH) {
                let ah = handle::get::<Ah>(obj.ah.in_)?;
                out(obj.ah.out, "ah.out")?.write(mlx5dv_ah { av: ah.av_address().cast(), comp_mask: 0 });
            }
        }
        Ok(())
    })
}

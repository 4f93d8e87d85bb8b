//! Data of messages in memory: gathered and scattered through local keys.

use super::Keys;
use super::translate::{Range, Ranges};
use crate::access::Access;
use crate::cqe::{syndrome, vendor};
use crate::memory::{Dma, DmaFault, Space};
use crate::wqe::{DataSegment, Piece, Wqe, WqeFault};

/// A local key allows the access, but there is nothing behind it.
const NO_MEMORY: WqeFault = WqeFault { syndrome: syndrome::LOCAL_PROTECTION, vendor: vendor::NO_MEMORY };

/// What a data access costs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Touched {
    /// Bytes of host memory.
    pub(crate) host_bytes: u64,
    /// Bytes of the memory of the card's Arm cores.
    pub(crate) arm_bytes: u64,
    pub(crate) dpa: bool,
}

impl Touched {
    pub(crate) fn add(&mut self, space: Space, bytes: u64) {
        match space {
            Space::Host | Space::HostProcess(_) => self.host_bytes += bytes,
            Space::Arm => self.arm_bytes += bytes,
            Space::Dpa(_) => self.dpa = true,
        }
    }
}

/// Fills `out`, which is as long as the ranges are together.
pub(crate) fn read_ranges(
    ranges: &[Range],
    mut out: &mut [u8],
    touched: &mut Touched,
    mem: &mut dyn Dma,
) -> Result<(), DmaFault> {
    for range in ranges {
        let (now, later) = out.split_at_mut(range.len.min(out.len() as u64) as usize);
        mem.read(range.space, range.addr, now)?;
        touched.add(range.space, range.len);
        out = later;
    }
    Ok(())
}

/// Stores `data`, which is as long as the ranges are together.
pub(crate) fn write_ranges(
    ranges: &[Range],
    mut data: &[u8],
    touched: &mut Touched,
    mem: &mut dyn Dma,
) -> Result<(), DmaFault> {
    for range in ranges {
        let (now, later) = data.split_at(range.len.min(data.len() as u64) as usize);
        mem.write(range.space, range.addr, now)?;
        touched.add(range.space, range.len);
        data = later;
    }
    Ok(())
}

impl Keys {
    /// Fills `out` with the message's bytes from `offset` on.
    pub(crate) fn gather(
        &self,
        pd: u32,
        wqe: &Wqe,
        mut offset: u64,
        mut out: &mut [u8],
        mem: &mut dyn Dma,
    ) -> Result<Touched, WqeFault> {
        let mut touched = Touched::default();
        for piece in &wqe.pieces {
            if out.is_empty() {
                break;
            }
            if offset >= piece.len() {
                offset -= piece.len();
                continue;
            }
            let count = (piece.len() - offset).min(out.len() as u64);
            let (now, later) = out.split_at_mut(count as usize);
            match piece {
                Piece::Memory(segment) => {
                    let addr = segment.addr.wrapping_add(offset);
                    let ranges = self.local(pd, segment.lkey, addr, count, Access::empty())?;
                    read_ranges(&ranges, now, &mut touched, mem).map_err(|_| NO_MEMORY)?;
                }
                Piece::Inline { start, .. } => {
                    let start = start + offset as usize;
                    now.copy_from_slice(&wqe.inline[start..start + count as usize]);
                }
            }
            offset = 0;
            out = later;
        }
        Ok(touched)
    }

    /// Scatters `data` into `segments`, from `offset` bytes in.
    pub(crate) fn scatter(
        &self,
        pd: u32,
        segments: &[DataSegment],
        mut offset: u64,
        mut data: &[u8],
        mem: &mut dyn Dma,
    ) -> Result<Touched, WqeFault> {
        let mut touched = Touched::default();
        for segment in segments {
            if data.is_empty() {
                break;
            }
            let len = u64::from(segment.len);
            if offset >= len {
                offset -= len;
                continue;
            }
            let count = (len - offset).min(data.len() as u64);
            let (now, later) = data.split_at(count as usize);
            let addr = segment.addr.wrapping_add(offset);
            let ranges = self.local(pd, segment.lkey, addr, count, Access::LOCAL_WRITE)?;
            write_ranges(&ranges, now, &mut touched, mem).map_err(|_| NO_MEMORY)?;
            offset = 0;
            data = later;
        }
        Ok(touched)
    }

    /// Checks a local access.
    pub(crate) fn local(&self, pd: u32, lkey: u32, addr: u64, len: u64, access: Access) -> Result<Ranges, WqeFault> {
        self.translate(lkey, pd, addr, len, access)
            .map_err(|fault| WqeFault { syndrome: syndrome::LOCAL_PROTECTION, vendor: fault.vendor_syndrome() })
    }

    /// The first of these segments whose key refuses an access.
    pub(crate) fn first_refused(
        &self,
        pd: u32,
        segments: impl IntoIterator<Item = DataSegment>,
        access: Access,
    ) -> Option<DataSegment> {
        let refuses =
            |segment: &DataSegment| self.local(pd, segment.lkey, segment.addr, u64::from(segment.len), access).is_err();
        segments.into_iter().find(refuses)
    }
}

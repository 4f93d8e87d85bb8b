//! Arrays in memory of a device: what is done before anything is sent and after all has come, and how the card reaches
//! them.

use super::params::{ArraysIn, DeviceParams};
use super::ports::Lines;
use crate::flow::time_ps;

/// A worker's devices, of which each node has one.
#[derive(Debug)]
pub(super) struct Devices {
    params: DeviceParams,
    arrays: ArraysIn,
    memory: Lines,
    to_card: Lines,
    from_card: Lines,
}

impl Devices {
    /// Of so many workers; none if arrays are in host memory.
    pub(super) fn new(arrays: ArraysIn, device: Option<DeviceParams>, workers: u32) -> Option<Self> {
        let params = device.filter(|_| arrays != ArraysIn::Host)?;
        let lines = |rate| Lines::new(vec![rate; workers as usize]);
        let (to_card, from_card) = (lines(params.pcie_bytes_per_s), lines(params.pcie_bytes_per_s));
        Some(Self { params, arrays, memory: lines(params.sustained_bytes_per_s), to_card, from_card })
    }

    /// A kernel or a copy that moves so many bytes of device memory.
    pub(super) fn kernel_ps(&self, bytes: u64) -> u64 {
        self.params.launch_ps + time_ps(bytes, self.params.sustained_bytes_per_s)
    }

    /// A copy of so many bytes from or to host memory.
    fn staging_ps(&self, bytes: u64) -> u64 {
        self.params.launch_ps + time_ps(bytes, self.params.pcie_bytes_per_s)
    }

    /// From the call until something can be sent of an array, of which so many bytes are in blocks that are not zero.
    pub(super) fn before_ps(&self, array: u64, used: u64) -> u64 {
        if self.is_direct() { self.kernel_ps(array + used) } else { self.staging_ps(array) }
    }

    /// From the last sum until all of them are in the array: so many bytes.
    pub(super) fn after_ps(&self, sums: u64) -> u64 {
        if self.is_direct() { self.kernel_ps(2 * sums) } else { self.staging_ps(sums) }
    }

    /// When a kernel that runs already has moved so many bytes of device memory.
    pub(super) fn serve(&mut self, worker: u32, bytes: u64, now_ps: u64) -> u64 {
        self.memory.serve(worker, bytes, now_ps)
    }

    /// Whether cards reach the memory.
    pub(super) const fn is_direct(&self) -> bool {
        matches!(self.arrays, ArraysIn::Device)
    }

    /// When bytes that are posted at a worker have come to its card.
    pub(super) fn gather(&mut self, worker: u32, bytes: u64, now_ps: u64) -> u64 {
        self.to_card.serve(worker, bytes, now_ps)
    }

    /// When bytes that have come over the network are in the device's memory.
    pub(super) fn scatter(&mut self, worker: u32, bytes: u64, now_ps: u64) -> u64 {
        self.from_card.serve(worker, bytes, now_ps)
    }
}

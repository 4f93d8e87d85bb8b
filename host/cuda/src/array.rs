//! Arrays in a GPU's memory.

/// A worker's array: what it contributes, and what gets the sums, by their addresses in the GPU's memory.
#[derive(Debug)]
pub struct CudaArray {
    /// None if it is where the sums go.
    contribution: Option<u64>,
    result: u64,
    bytes: u64,
}

impl CudaArray {
    /// An array whose sums take the place of the contribution.
    ///
    /// # Safety
    /// `bytes` bytes at `address` are memory of the GPU of the worker's [`Cuda`](crate::Cuda), of this process's
    /// primary context. From the first [`progress`](flexcast_sparse::Worker::progress) of an operation on, until
    /// that is over or the worker is gone, they stay allocated, and no other work of the GPU that is under way, or
    /// comes, uses them: streams that have written them have been waited for.
    #[must_use]
    pub const unsafe fn in_place(address: u64, bytes: u64) -> Self {
        Self { contribution: None, result: address, bytes }
    }

    /// An array whose sums go to other memory, `bytes` at `result`; the contribution, at `contribution`, stays as it
    /// is.
    ///
    /// # Safety
    /// As [`CudaArray::in_place`], for both; they do not overlap.
    #[must_use]
    pub const unsafe fn out_of_place(contribution: u64, result: u64, bytes: u64) -> Self {
        Self { contribution: Some(contribution), result, bytes }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) const fn contribution(&self) -> u64 {
        match self.contribution {
            Some(address) => address,
            None => self.result,
        }
    }

    pub(crate) const fn result(&self) -> u64 {
        self.result
    }

    /// Whether blocks without sums are to become zero.
    pub(crate) const fn clears(&self) -> bool {
        self.contribution.is_some()
    }
}

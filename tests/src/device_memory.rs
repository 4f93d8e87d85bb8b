//! Stand-in for an accelerator: memory that only its programs and cards touch, which checks what the programs do with
//! it. They are over some polls after they were started, and do nothing before.
#![allow(unsafe_code)] // The buffer is reached by its address, as memory of a device is.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use flexcast::p2p::sparse::{Accelerator, Result, Stretch};
use flexio::{Access, PeerRegion, ProtectionDomain};

/// Content of a buffer that nothing has been put into.
const POISON: u8 = 0xe7;

/// An array in the accelerator's memory.
#[derive(Clone, Debug)]
pub struct DeviceMemory(Arc<Memory>);

#[derive(Debug)]
struct Memory {
    bytes: Mutex<Vec<u8>>,
    read: AtomicU64,
    written: AtomicU64,
}

/// Bytes of arrays that programs have read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Of the contribution.
    pub read: u64,
    /// Of what gets the sums.
    pub written: u64,
}

impl DeviceMemory {
    /// Memory with this content.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self(Arc::new(Memory { bytes: Mutex::new(bytes.to_vec()), read: 0.into(), written: 0.into() }))
    }

    /// Its content.
    ///
    /// # Panics
    /// A program has.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.bytes.lock().expect("no program has panicked").clone()
    }
}

/// A worker's array there.
#[derive(Debug)]
pub struct DeviceArrays {
    /// The contribution; none if it is in `receive`.
    pub send: Option<DeviceMemory>,
    /// Gets the sums.
    pub receive: DeviceMemory,
}

impl DeviceArrays {
    fn contribution(&self) -> &DeviceMemory {
        self.send.as_ref().unwrap_or(&self.receive)
    }

    /// What programs have done with both.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (send, receive) = (self.contribution(), &self.receive);
        Traffic { read: of(&send.0.read), written: of(&receive.0.written) }
    }
}

/// The buffer.
#[derive(Debug)]
struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

impl Buffer {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, 4096).expect("a size");
        assert!(bytes > 0, "a buffer has bytes");
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) }).expect("memory");
        // SAFETY: allocated just now.
        unsafe { start.write_bytes(POISON, bytes) };
        Self { start, layout }
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.layout.size(), "a program leaves the buffer");
        // SAFETY: within the allocation.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the card's key to it is gone, as the region goes before.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[derive(Debug)]
enum Job {
    Scan(DeviceMemory),
    Copy { to: DeviceMemory, clears: bool, sums: Vec<u32> },
}

#[derive(Debug)]
struct Started {
    job: Job,
    stretch: Stretch,
    polls: u32,
}

/// The accelerator.
#[derive(Debug)]
pub struct Device {
    // Goes before the memory.
    region: PeerRegion,
    buffer: Buffer,
    polls: u32,
    started: VecDeque<Started>,
}

impl Device {
    /// One with a buffer of so many bytes, whose programs are over after so many polls.
    ///
    /// # Panics
    /// There is no memory.
    #[must_use]
    pub fn new(pd: &ProtectionDomain, bytes: usize, polls: u32) -> Self {
        let buffer = Buffer::new(bytes);
        let addr = buffer.start.expose_provenance().get() as u64;
        // SAFETY: the buffer lives longer than the region. Only programs access it, in the thread in which emulated
        // cards move, by raw pointers.
        let region = unsafe { PeerRegion::by_address(pd, addr, bytes, Access::LOCAL_WRITE) }.expect("registered");
        Self { region, buffer, polls, started: VecDeque::new() }
    }

    /// The program that was started first, if it is over now.
    fn over(&mut self) -> Option<Started> {
        let first = self.started.front_mut()?;
        if first.polls > 0 {
            first.polls -= 1;
            return None;
        }
        self.started.pop_front()
    }

    fn start(&mut self, job: Job, stretch: Stretch) {
        self.started.push_back(Started { job, stretch, polls: self.polls });
    }

    fn run_scan(&self, array: &DeviceMemory, stretch: Stretch, found: &mut [u32]) {
        found.fill(0);
        let bytes = array.0.bytes.lock().expect("no program has panicked");
        let (first, whole) = (stretch.first_byte as usize, stretch.block_bytes as usize);
        let blocks = bytes[first..first + stretch.bytes as usize].chunks(whole);
        for (number, block) in blocks.enumerate() {
            let to = self.buffer.at(first + number * whole, whole);
            // SAFETY: the buffer has these bytes; no card moves while a program runs.
            unsafe {
                to.write_bytes(0, whole);
                to.copy_from_nonoverlapping(block.as_ptr(), block.len());
            }
            let any = block.iter().any(|byte| *byte != 0);
            found[number / 32] |= u32::from(any) << (number % 32);
        }
        array.0.read.fetch_add(stretch.bytes, Ordering::Relaxed);
    }

    fn run_copy(&self, to: &DeviceMemory, clears: bool, stretch: Stretch, sums: &[u32]) {
        let mut bytes = to.0.bytes.lock().expect("no program has panicked");
        let (first, whole) = (stretch.first_byte as usize, stretch.block_bytes as usize);
        let blocks = bytes[first..first + stretch.bytes as usize].chunks_mut(whole);
        for (number, block) in blocks.enumerate() {
            if sums[number / 32] >> (number % 32) & 1 != 0 {
                let from = self.buffer.at(first + number * whole, whole);
                // SAFETY: as above.
                unsafe { from.copy_to_nonoverlapping(block.as_mut_ptr(), block.len()) };
            } else if clears {
                block.fill(0);
            } else {
                continue;
            }
            to.0.written.fetch_add(block.len() as u64, Ordering::Relaxed);
        }
    }
}

impl Accelerator for Device {
    type Array = DeviceArrays;

    fn staging(&self) -> &PeerRegion {
        &self.region
    }

    fn bytes(&self, array: &DeviceArrays) -> u64 {
        let of = |memory: &DeviceMemory| memory.to_vec().len() as u64;
        of(array.contribution()).min(of(&array.receive))
    }

    fn scan(&mut self, array: &DeviceArrays, stretch: Stretch) -> Result<()> {
        self.start(Job::Scan(array.contribution().clone()), stretch);
        Ok(())
    }

    fn scanned(&mut self, found: &mut [u32]) -> Result<bool> {
        let Some(Started { job: Job::Scan(array), stretch, .. }) = self.over() else { return Ok(false) };
        assert_eq!(found.len(), stretch.words());
        self.run_scan(&array, stretch, found);
        Ok(true)
    }

    fn copy_back(&mut self, array: &mut DeviceArrays, stretch: Stretch, sums: &[u32]) -> Result<()> {
        assert_eq!(sums.len(), stretch.words());
        let job = Job::Copy { to: array.receive.clone(), clears: array.send.is_some(), sums: sums.to_vec() };
        self.start(job, stretch);
        Ok(())
    }

    fn is_copied(&mut self) -> Result<bool> {
        if let Some(Started { job, stretch, .. }) = self.over() {
            let Job::Copy { to, clears, sums } = job else { panic!("a copy before all scans are over") };
            self.run_copy(&to, clears, stretch, &sums);
        }
        Ok(self.started.is_empty())
    }
}

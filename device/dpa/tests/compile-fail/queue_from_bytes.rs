//! The same from bytes.
use dpa::abi::SendQueueMemory;
use zerocopy::FromBytes;

pub fn forge() -> Option<SendQueueMemory> {
    SendQueueMemory::read_from_bytes(&[0x41; 32]).ok() //~ E0599
}

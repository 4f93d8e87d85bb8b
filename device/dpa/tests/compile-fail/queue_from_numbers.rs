//! A queue of one's own making: anywhere, of any depth.
use dpa::SendQueue;
use dpa::abi::{DeviceAddress, SendQueueMemory};

pub fn forge() {
    let ring = DeviceAddress::new(0x4141_0000);
    let forged = SendQueueMemory::new(ring, ring, 5, 15); //~ E0599
    SendQueue::attach(&forged).slot(4).set_remote(0x4141);
}

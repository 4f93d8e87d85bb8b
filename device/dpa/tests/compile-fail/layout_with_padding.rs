//! Bytes that nobody has named.
use flexcast_abi::Layout;

#[derive(Layout)] //~ E0080
#[repr(C)]
pub struct Mine {
    pub number: u64,
    pub short: u32,
}

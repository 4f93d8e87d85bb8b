//! Fields in the compiler's order.
use flexcast_abi::Layout;

#[derive(Layout)]
pub struct Mine { //~ #[repr(C)]
    pub number: u64,
    pub short: u32,
}

//! A reference that the host would write.
use flexcast_abi::Layout;

#[derive(Layout)]
#[repr(C)]
pub struct Mine {
    pub number: &'static u64, //~ E0277
}

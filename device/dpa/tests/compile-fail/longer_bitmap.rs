//! More words than the bitmap has.
use dpa::BitmapView;
use dpa::abi::{BitmapMemory, DeviceAddress, ReceiveContext};

pub fn resize(context: &mut ReceiveContext) {
    let at = DeviceAddress::new(context.bitmap.address());
    let longer = BitmapMemory::new(at, u32::MAX); //~ E0599
    let _ = BitmapView::attach(&longer, u32::MAX).mark(64);
}

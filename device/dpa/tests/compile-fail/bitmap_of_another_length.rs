//! A length given separately from the memory.
use dpa::BitmapView;
use dpa::abi::ReceiveContext;

pub fn resize(context: &ReceiveContext) {
    let _ = BitmapView::attach(&context.bitmap, u32::MAX, u32::MAX).mark(64); //~ E0061
}

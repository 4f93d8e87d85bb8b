//! A length beside the memory.
use dpa::BitmapView;
use dpa::abi::WorkerContext;

pub fn resize(context: &WorkerContext) {
    let _ = BitmapView::attach(&context.bitmap, u32::MAX, u32::MAX).mark(64); //~ E0061
}

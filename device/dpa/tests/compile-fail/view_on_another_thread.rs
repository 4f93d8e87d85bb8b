//! Views for another thread, which would access the same memory at the same time.
use dpa::microbench::Lines;
use dpa::{BitmapView, CompletionQueue, Messages, SendQueue};

fn give<T: Send>() {}

pub fn share() {
    give::<BitmapView>(); //~ E0277
    give::<CompletionQueue>(); //~ E0277
    give::<SendQueue>(); //~ E0277
    give::<Messages<'_>>(); //~ E0277
    give::<Lines>(); //~ E0277
}

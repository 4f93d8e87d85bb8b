//! Firmware that does right what the other files get wrong.
#![forbid(unsafe_code)]

use dpa::abi::{BitmapMemory, ContextMemory, HostLine, KeptMemory, Layout, Operation, SendQueueMemory, TableMemory};
use dpa::{BitmapView, ContextArray, State, Next, SendQueue, Table};

#[derive(Layout)]
#[repr(C)]
pub struct Receiver {
    queue: SendQueueMemory,
    bitmap: BitmapMemory,
}

#[derive(Layout)]
#[repr(C)]
pub struct Context {
    contexts: ContextMemory<Receiver>,
    rows: TableMemory<u64>,
    kept: KeptMemory,
    operation: HostLine<Operation>,
}

#[dpa::event_handler]
fn work(context: &mut Context) -> Next {
    let operation = dpa::HostLine::attach(&context.operation).snapshot();
    if let Some(context) = ContextArray::attach(&mut context.contexts).get(0) {
        SendQueue::attach(&context.queue).slot(0).set_remote(operation.destination);
        let _ = BitmapView::attach(&context.bitmap, operation.chunks).mark(64);
    }
    if let Some(mut kept) = State::<u64>::attach(&mut context.kept) {
        kept.set(Table::attach(&context.rows).get(0).unwrap_or(0));
    }
    Next::Finish
}

#[dpa::rpc]
fn prepare(context: &mut Context) -> u64 {
    u64::from(context.operation.is_there())
}

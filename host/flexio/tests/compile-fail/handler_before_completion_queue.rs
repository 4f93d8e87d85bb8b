use flexio::{Affinity, CqTarget, DpaCompletionQueue, EventHandler, Outbox};

fn run(outbox: &Outbox<'_>) {
    let handler = EventHandler::new(outbox.process(), "uc_receive", 0, Affinity::Any).unwrap();
    let cq = DpaCompletionQueue::new(outbox, 6, CqTarget::Thread(&handler)).unwrap();
    drop(handler);
    println!("{}", cq.number());
}

fn main() {
    let _ = run;
}

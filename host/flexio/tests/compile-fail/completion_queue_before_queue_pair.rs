use flexio::{CompletionQueue, ProtectionDomain, QueueDepths, QueuePair, Transport};

fn run(pd: &ProtectionDomain<'_>) {
    let cq = CompletionQueue::new(pd.device(), 16).unwrap();
    let depths = QueueDepths { send: 16, receive: 0 };
    let qp = QueuePair::new(pd, Transport::Rc, &cq, &cq, depths).unwrap();
    drop(cq);
    drop(qp);
}

fn main() {
    let _ = run;
}

//! The order the others get wrong: compiled only, no provider is at hand to run it.
use flexio::*;

fn run(provider: &Provider, elf: &[u8]) -> Result<()> {
    let device = provider.open("mlx5_0")?;
    let pd = ProtectionDomain::new(&device)?;
    let application = Application::load(provider, "app", elf, None)?;
    let process = Process::new(&application, &pd)?;
    let outbox = Outbox::new(&process)?;
    let handler = EventHandler::new(&process, "handler", 0, Affinity::Any)?;
    let cq = DpaCompletionQueue::new(&outbox, 6, CqTarget::Thread(&handler))?;
    let mut qp = DpaQueuePair::receiver(Transport::Ud, &cq, 6, 0)?;
    qp.activate(UdKey { q_key: 7 })?;
    handler.run(1)?;
    drop(qp);
    drop(cq);
    drop(handler);
    Ok(())
}

fn main() {
    let _ = run;
}

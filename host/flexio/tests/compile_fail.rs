//! Misuse that must not compile: destroying a parent while a child lives, using bytes a card may write.

use flexio::*;

#[test]
fn misuse_does_not_compile() {
    // Without a case that must pass, the crates below are only checked, and not compiled once more.
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile-fail/buffer_dropped_while_registered.rs");
    cases.compile_fail("tests/compile-fail/buffer_read_while_registered.rs");
    cases.compile_fail("tests/compile-fail/completion_queue_before_queue_pair.rs");
    cases.compile_fail("tests/compile-fail/process_before_event_handler.rs");
    cases.compile_fail("tests/compile-fail/device_buffer_before_memory_key.rs");
    cases.compile_fail("tests/compile-fail/handler_before_completion_queue.rs");
    cases.compile_fail("tests/compile-fail/device_outlives_provider.rs");
}

/// The order that the cases get wrong: compiled only, no provider is at hand to run it.
fn right_order(provider: &Provider, elf: &[u8]) -> Result<()> {
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

#[test]
fn the_right_order_compiles() {
    let _ = right_order;
}

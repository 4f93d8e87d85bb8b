//! Misuse that must not compile: using bytes that a card may write, copying them on two threads at a time.

use flexio::*;

#[test]
fn misuse_does_not_compile() {
    // Without a case that must pass, the crates below are only checked, and not compiled once more.
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile-fail/buffer_used_while_registered.rs");
    cases.compile_fail("tests/compile-fail/region_shared_between_threads.rs");
}

/// Compiles only if objects of this type may go to another thread.
fn goes<T: Send + 'static>() {}

/// And only if several threads may use one of them.
fn is_shared<T: Send + Sync + 'static>() {}

#[test]
fn objects_go_from_thread_to_thread() {
    goes::<MemoryRegion>();
    goes::<MsgStream>();
    is_shared::<Provider>();
    is_shared::<Device>();
    is_shared::<ProtectionDomain>();
    is_shared::<CompletionQueue>();
    is_shared::<QueuePair>();
    is_shared::<AddressHandle>();
    is_shared::<MulticastMembership>();
    is_shared::<Application>();
    is_shared::<Process>();
    is_shared::<Window>();
    is_shared::<Outbox>();
    is_shared::<DeviceBuffer>();
    is_shared::<MemoryKey>();
    is_shared::<EventHandler>();
    is_shared::<DpaCompletionQueue>();
    is_shared::<DpaQueuePair>();
    is_shared::<GroupKey>();
}

//! Misuse that must not compile: destroying a parent while a child lives, using bytes a card may write.

#[test]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/compile-fail/right_order.rs");
    cases.compile_fail("tests/compile-fail/buffer_dropped_while_registered.rs");
    cases.compile_fail("tests/compile-fail/buffer_read_while_registered.rs");
    cases.compile_fail("tests/compile-fail/completion_queue_before_queue_pair.rs");
    cases.compile_fail("tests/compile-fail/process_before_event_handler.rs");
    cases.compile_fail("tests/compile-fail/device_buffer_before_memory_key.rs");
    cases.compile_fail("tests/compile-fail/handler_before_completion_queue.rs");
    cases.compile_fail("tests/compile-fail/device_outlives_provider.rs");
}

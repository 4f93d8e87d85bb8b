//! Whole lives of queues, and the mistakes next to them.

use super::{kind, op};
use crate::input::Script;

/// Whole lives of queues, and the mistakes next to them.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    // No patches, right lengths, no null.
    const PLAIN: [u8; 4] = [0, 0, 0, 0];
    // Umems: 0 = the process's, 1 = card 0's, 2 = card 1's.
    let cq = |script: Script, card: u8, umem: u8, at: u8, thread: u8| {
        script.bytes(&[op::CREATE, card, kind::CQ, umem, at, at + 8, 2, thread]).bytes(&PLAIN)
    };
    let qp = |script: Script, card: u8, umem: u8, at: u8, service: u8| {
        script.bytes(&[op::CREATE, card, kind::QP, service, umem, at, at + 8, 0, 0, 2, 2]).bytes(&PLAIN)
    };
    let up = |mut script: Script, object: u8| {
        for transition in 0..3 {
            script = script.bytes(&[op::MODIFY, object, transition, 0]).bytes(&PLAIN);
        }
        script
    };
    let pair = |service: u8| {
        let script = cq(cq(Script::new(), 0, 1, 0, 0), 1, 2, 0, 0);
        let script = qp(qp(script, 0, 1, 16, service), 1, 2, 16, service);
        up(up(script, 2), 3)
    };
    // One block, the end of the receive ring being that of the 64 bytes before it.
    let nop = Script::new().bytes(&[op::WRITE]).u16((16 * 64 + 64) / 16).bytes(&[16, 0, 0, 0, 0, 0, 0, 0, 1]);
    let nop = nop.bytes(&[0, 0, 0, 8, 0, 0, 0, 0, op::RING, 2]).u16(1).bytes(&[op::STEP, 60]).done();
    let all = |script: Script| script.bytes(&[op::QUERY, 2]).bytes(&PLAIN).bytes(&nop).done();
    let key = Script::new().bytes(&[op::CREATE, 0, kind::MKEY, 1, 4, 16, 7]).bytes(&PLAIN);
    let umr = Script::new().bytes(&[op::CREATE, 0, kind::UMR_KEY, 4, 9]).bytes(&PLAIN);
    let group = pair(2).bytes(&[op::CREATE, 1, kind::GROUP, 0, 9]).bytes(&PLAIN);
    let patched = Script::new().bytes(&[op::CREATE, 0, kind::CQ, 1, 0, 8, 2, 0, 1]).u16(0x10).bytes(&[0xFF, 0, 0, 0]);
    vec![
        ("cq", cq(Script::new(), 0, 1, 0, 0).done()),
        ("cq-thread", cq(Script::new(), 0, 0, 0, 1).done()),
        ("qp-on-dpa", qp(cq(Script::new(), 0, 0, 0, 1), 0, 0, 16, 2).done()),
        ("rc", all(pair(0))),
        ("uc", all(pair(1))),
        ("ud", all(pair(2))),
        ("key", key.done()),
        ("umr", umr.done()),
        ("alias", {
            let script = Script::new().bytes(&[op::CREATE, 0, kind::MKEY, 1, 4, 16, 7]).bytes(&PLAIN);
            let script = script.bytes(&[op::GENERAL, 0, 2, 0, 5]).bytes(&PLAIN);
            let script = script.bytes(&[op::CREATE, 0, kind::ALIAS, 0, 5]).bytes(&PLAIN);
            script.bytes(&[op::QUERY, 1]).bytes(&PLAIN).bytes(&[op::DESTROY, 0]).done()
        }),
        ("domain", Script::new().bytes(&[op::CREATE, 0, kind::PD]).bytes(&PLAIN).done()),
        ("capabilities", Script::new().bytes(&[op::GENERAL, 0, 1, 1]).bytes(&PLAIN).done()),
        ("group", group.bytes(&[op::DESTROY, 3, op::DESTROY, 4]).done()),
        ("patched", patched.done()),
        ("general", Script::new().bytes(&[op::GENERAL, 0, 0]).u16(0x100).bytes(&PLAIN).done()),
        ("short", Script::new().bytes(&[op::CREATE, 0, kind::CQ, 1, 0, 8, 2, 0, 0, 2, 0, 0]).done()),
        ("any", Script::new().bytes(&[op::CREATE, 0, kind::ANY]).u16(0xA00).bytes(&PLAIN).done()),
        ("umem-gone", Script::new().bytes(&[op::UMEM_GONE, 1]).bytes(&cq(Script::new(), 0, 1, 0, 0).done()).done()),
        (
            "to-error",
            pair(0).bytes(&[op::MODIFY, 2, 3, 0]).bytes(&PLAIN).bytes(&[op::MODIFY, 2, 4, 0]).bytes(&PLAIN).done(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use emu_machine::with_world;

    use super::*;
    use crate::abi::{step, with_program};
    use crate::devx::{Devx, MAX_STEPS};
    use crate::input::Input;

    /// Seeds make what their names say; otherwise the fuzzer starts from refusals.
    #[test]
    fn seeds_are_accepted() {
        for (name, bytes) in seeds() {
            let expected = match name {
                "patched" | "general" | "short" | "any" | "umem-gone" => 0,
                "capabilities" => 0,
                "cq" | "cq-thread" | "key" | "umr" | "domain" | "alias" => 1,
                "qp-on-dpa" => 2,
                _ => 4,
            };
            with_program(|program| {
                let mut devx = Devx::open(program);
                let mut input = Input::new(&bytes);
                while !input.is_empty() {
                    devx.program.begin_call();
                    devx.operation(&mut input);
                }
                assert_eq!(devx.objects.len(), expected, "{name}");
                step(MAX_STEPS);
                if matches!(name, "rc" | "uc" | "ud") {
                    let cqes = with_world(|world| world.card(0).map(|card| card.nic.counters().cqes));
                    assert_eq!(cqes.expect("a machine").expect("a card"), 1, "{name}: the NOP completes");
                }
                devx.close();
            });
        }
    }
}

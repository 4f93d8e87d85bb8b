//! Programs that a person would write, and some mistakes.

use super::NAMES;
use crate::input::Script;

/// The operation of this name, with its operands.
trait Call {
    fn call(self, name: &str, operands: &[u8]) -> Self;
}

impl Call for Script {
    fn call(self, name: &str, operands: &[u8]) -> Self {
        let code = NAMES.iter().position(|known| *known == name).expect("an operation");
        self.bytes(&[code as u8]).bytes(operands)
    }
}

/// Inputs to start from.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let start = Script::new;
    // Contexts and domains: 0 of card 0, 1 of card 1 (the process's domain comes third). Memory: 4 KiB from 0 and
    // from 8192.
    let memory = |script: Script| {
        let script = script.call("reg_mr", &[0, 0, 0, 0, 0x10, 15, 0]);
        script.call("reg_mr", &[1, 0, 0x20, 0, 0x10, 15, 0])
    };
    let queues = |script: Script, kind: u8| {
        let script = script.call("create_cq", &[0, 16, 0, 0]).call("create_cq", &[1, 16, 0, 0]);
        let qp = |card: u8| [card, kind, card, card, 0, 0, 2, 2, 128, 0, 0, 0];
        let script = script.call("create_qp", &qp(0)).call("create_qp", &qp(1));
        // Queue pair, peer, its identifier, nothing odd.
        script.call("connect_qp", &[0, 1, 1, 0]).call("connect_qp", &[1, 0, 0, 0])
    };
    // Count 1; opcode, flags, immediate's key, remote, rkey, [address handle, queue pair, Q_Key]; one entry of memory.
    let entry = |offset: u8, key: u8| [1, 0, offset, 100, 0, key];
    let receive = |script: Script, qp: u8| {
        let script = script.call("post_recv", &[qp, 0]).bytes(&entry(0x20, 1)).bytes(&[0, 0]);
        script.call("post_recv", &[qp, 0]).bytes(&entry(0x22, 1)).bytes(&[0, 0])
    };
    let post = |script: Script, opcode: u8, flags: u8, target: &[u8]| {
        let script = script.call("post_send", &[0, 0, opcode, flags, 0, 0x20, 1]).bytes(target);
        let script = script.bytes(&entry(0, 0)).bytes(if flags & 8 == 0 { &[0, 0] } else { &[0] });
        script.bytes(&[0, 0])
    };
    let finish =
        |script: Script| script.call("let_pass", &[200]).call("poll_cq", &[0, 4, 0]).call("poll_cq", &[1, 4, 0]).done();
    const SIGNALLED: u8 = 2;
    const INLINE: u8 = 8;
    let ready = |kind: u8| receive(queues(memory(start()), kind), 1);
    let ud = [0, 1, 0];
    let with_address = |script: Script| script.call("create_ah", &[0, 1, 0, 0]);
    // Process 0 has the function keys 0 = handler, 1 = ping, 2 = spin, 3 = say_handler, and RPC keys behind them.
    let rpc =
        |name: u8| start().call("pup_register", &[0, name, 2, 0, 8, 0, 0, 0]).call("process_call", &[0, 4, 37, 0]);
    let buffers = |script: Script| {
        // A ring of 1 KiB, a doorbell record, another of both.
        let script = script.call("buf_alloc", &[0, 0x81, 0, 4, 0]).call("buf_alloc", &[0, 64, 0]);
        script.call("buf_alloc", &[0, 0x81, 0, 4, 0]).call("buf_alloc", &[0, 64, 0])
    };
    let device = |script: Script| {
        let script = buffers(script).call("handler_create", &[0, 0, 7, 0, 0, 0]).call("handler_run", &[0, 0]);
        // Process, no context, nothing odd, depth, UAR, ring (DPA, address 0), record (address 1), thread, attribute,
        // count.
        script.call("flexio_cq_create", &[0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0])
    };
    let device_qp = [0, 0, 1, 1, 0, 0, 0, 8, 0, 12];
    vec![
        ("send-rc", finish(post(ready(0), 2, SIGNALLED, &ud))),
        ("send-uc", finish(post(ready(1), 3, SIGNALLED, &ud))),
        ("send-ud", finish(post(with_address(ready(2)), 2, SIGNALLED, &ud))),
        ("inline", finish(post(ready(0), 2, SIGNALLED | INLINE, &ud))),
        ("write", finish(post(ready(0), 0, SIGNALLED, &[]))),
        ("read", finish(post(ready(0), 4, SIGNALLED, &[]))),
        ("atomic", finish(post(ready(0), 5, SIGNALLED, &[1, 2]))),
        ("reset", finish(post(ready(0), 2, SIGNALLED, &ud).call("connect_qp", &[0, 1, 1, 0]))),
        ("extended", {
            let script = memory(start()).call("create_cq", &[0, 16, 0, 0]).call("create_cq", &[1, 16, 0, 0]);
            // Context, nothing odd, RC, completion queues, domain.
            let script = script.call("create_qp_ex", &[0, 0, 0, 0, 0, 0]).call("create_qp_ex", &[1, 0, 0, 1, 1, 1]);
            let script = receive(script.call("connect_qp", &[0, 1, 1, 0]).call("connect_qp", &[1, 0, 0, 0]), 1);
            // Queue pair, start, two requests: flags, key, remote, send; one setter: memory of 50 bytes.
            let script = script.call("batch", &[0, 0, 1, 2, 0, 0x20, 0, 1, 0, 0, 50, 0, 0, 0]);
            finish(script.bytes(&[2, 1, 0x20, 5, 1, 0, 0, 50, 0, 0, 0, 0]).call("query_device_ex", &[0, 0, 1, 0, 0, 0]))
        }),
        ("no-peer", finish(post(receive(memory(start()), 0), 2, SIGNALLED, &ud))),
        ("events", {
            let script = start().call("create_channel", &[0, 0]).call("create_cq", &[0, 16, 1, 0, 0]);
            script.call("notify_cq", &[0, 0]).call("cq_event", &[0, 0, 0, 1]).call("async_event", &[0, 0]).done()
        }),
        ("group", ready(2).call("group", &[0, 2, 0, 0, 0]).call("destroy_qp", &[0]).call("init_obj", &[0; 8]).done()),
        ("queries", {
            let script = start().call("device_list", &[1, 0, 0]).call("query_device", &[0, 1, 0, 0]);
            script.call("open_device", &[0, 2]).call("strings", &[3]).call("app_query", &[0, 0, 0x10]).done()
        }),
        ("ping", rpc(1).done()),
        ("spin", rpc(3).call("process_query", &[0, 6]).call("process_destroy", &[0]).done()),
        ("crash", rpc(4).call("process_query", &[0, 4]).call("process_create", &[0, 0, 0]).done()),
        ("say", {
            let script =
                start().call("stream_create", &[0, 0, 0, 5, 0, 0]).call("pup_register", &[0, 5, 2, 0, 8, 0, 0, 0]);
            script.call("process_call", &[0, 4, 1, 0]).call("stream_use", &[0, 5]).done()
        }),
        ("device-memory", {
            let script = buffers(start()).call("copy", &[0, 64, 0, 0, 0, 0]).call("copy", &[0, 64, 0, 0, 1]);
            script.call("fill", &[0, 0xFF, 64, 0]).call("buf_free", &[0, 0]).call("log_device", &[0, 0, 0, 2]).done()
        }),
        ("device-queues", {
            let script = device(start()).call("flexio_qp_create", &[0]).bytes(&device_qp).bytes(&[0; 14]);
            script.call("flexio_qp_destroy", &[0]).call("flexio_cq_destroy", &[0]).call("handler_destroy", &[0]).done()
        }),
        ("device-objects", {
            let script = device(start()).call("window_create", &[0, 0]).call("outbox_create", &[0, 0, 0]);
            let script =
                script.call("mkey_create", &[0, 0, 0, 64, 7]).call("uar_create", &[0, 0]).call("absent", &[0, 0]);
            script.call("uar_destroy", &[1]).call("process_destroy", &[0]).done()
        }),
        ("destroyed", {
            let script = memory(start()).call("dereg_mr", &[0]).call("dereg_mr", &[0]).call("dealloc_pd", &[0]);
            script.call("dealloc_pd", &[0]).call("close_device", &[0]).call("alloc_pd", &[0]).done()
        }),
        ("host-memory", {
            let script = start().call("umem_reg", &[0, 0, 0, 0, 0x10, 1]).call("alloc_uar", &[0, 0]);
            script.call("umem_dereg", &[0]).call("free_uar", &[0]).call("app_create", &[1, 0, 1, 9, 0]).done()
        }),
    ]
}

#[cfg(test)]
mod tests {
    use emu_machine::with_world;

    use super::*;
    use crate::abi::{step, with_program};
    use crate::api::handles::Kind;
    use crate::api::{Api, MAX_STEPS};

    /// Seeds do what their names say; otherwise the fuzzer starts from refusals.
    #[test]
    fn seeds_get_somewhere() {
        for (name, bytes) in seeds() {
            with_program(|program| {
                let mut api = Api::open(program);
                api.operate(&bytes);
                let packets = with_world(|world| world.card(0).map(|card| card.nic.counters().tx_packets));
                let packets = packets.expect("a machine").expect("a card");
                let sends =
                    ["send-rc", "send-uc", "send-ud", "inline", "write", "read", "atomic", "extended"].contains(&name);
                assert_eq!(packets > 0, sends, "{name}: {packets} packets");
                if sends {
                    // The sends have completed, and receives that a message was for.
                    let left = api.posted.iter().map(|(_, receive, _)| usize::from(!receive)).sum::<usize>();
                    assert_eq!(left, 0, "{name}");
                }
                let made = |kind| api.handles.nth::<u8>(kind, 0) as usize != 0;
                match name {
                    "device-queues" => assert!(made(Kind::FlexioCq) && made(Kind::FlexioQp) && made(Kind::Handler)),
                    "device-objects" => assert!(made(Kind::Window) && made(Kind::Outbox) && made(Kind::Mkey)),
                    "say" => assert!(made(Kind::Stream)),
                    "events" => assert!(made(Kind::Channel) && made(Kind::Cq)),
                    "host-memory" => assert!(made(Kind::Umem) && made(Kind::Uar)),
                    _ => {}
                }
                let crashed = with_world(|world| {
                    world.card(0).is_ok_and(|card| card.processes.values().any(|process| process.crash().is_some()))
                });
                // A call is answered with a value, and not by the death of its thread.
                assert_eq!(crashed.expect("a machine"), name == "crash", "{name}");
                step(MAX_STEPS);
                api.close();
            });
        }
    }
}

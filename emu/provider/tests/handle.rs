//! The handle of an emulated machine: it and its provider reach their own machine, whichever one the thread has
//! attached.

use std::sync::Arc;

use emu_machine::nic::{DEFAULT_PKEY, Extension, Network, Operation, Packet, Transport};
use emu_machine::{Config, Machine, address};
use emu_provider::Emulated;

fn cards(provider: &flexio::Provider) -> usize {
    provider.devices().expect("a list of devices").len()
}

#[test]
fn a_handle_reaches_the_machine_that_it_was_made_with() {
    let pair = Emulated::new(Config::default()).expect("two cards");
    let single = Emulated::new(Config { cards: 1, ..Config::default() }).expect("one card");
    assert_eq!(pair.machine.with(|world| world.card_count()), 2);
    assert_eq!(single.machine.with(|world| world.card_count()), 1);
    // So does each provider, whichever machine the thread has attached last.
    assert_eq!((cards(&pair.provider), cards(&single.provider)), (2, 1));
    pair.machine.attach();
    assert_eq!((cards(&pair.provider), cards(&single.provider)), (2, 1));
}

#[test]
fn what_a_handle_does_the_provider_sees() {
    let Emulated { machine, .. } = Emulated::new(Config::default()).expect("two cards");
    assert_eq!(emu_libibverbs::now_ps(), 0);
    assert!(machine.with(|world| world.advance(1_000_000, 1_000)));
    assert_eq!(emu_libibverbs::now_ps(), 1_000_000);
    let other = Machine::new(Config::default()).expect("two more");
    assert!(other.with(|world| world.advance(5, 1)));
    assert_eq!((emu_libibverbs::now_ps(), other.with(|world| world.now_ps())), (1_000_000, 5), "it is not attached");
}

/// A datagram from outside to card 0.
fn datagram() -> Packet {
    Packet {
        source: address(1),
        destination: address(0),
        network: Network::default(),
        pkey: DEFAULT_PKEY,
        transport: Transport::Ud,
        operation: Operation::Send,
        first: true,
        last: true,
        solicited: false,
        ack_request: false,
        destination_qpn: 3,
        psn: 4,
        immediate: None,
        invalidate: None,
        message_number: 0,
        extension: Extension::Datagram { qkey: 5, source_qpn: 6 },
        payload: Arc::from([7; 100]),
        damage: None,
    }
}

#[test]
fn a_capture_is_that_of_the_handles_machine() {
    let config = Config { cards: 1, ..Config::default() };
    let [first, second] = [(); 2].map(|()| Emulated::new(config.clone()).expect("one card"));
    first.machine.with(|world| world.open_outside()).expect("a free end of the cable");
    let file = tempfile::tempfile().expect("a file");
    first.start_capture(file.try_clone().expect("the same file")).expect("a capture");
    first.machine.with(|world| world.inject(datagram()));
    assert_eq!(second.finish_capture().expect("no capture"), 0);
    assert_eq!(first.finish_capture().expect("a capture"), 1);
    assert!(file.metadata().expect("its length").len() > 100, "the frame is in the file");
}

//! Machine of a description: its cards, its capture, and the bridge that runs it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};

use emu_config::{BridgeTable, Machine, ShareTable};
use emu_machine::{Shared, World};

use crate::bridge::Bridge;
use crate::driver_thread;
use crate::error::BridgeError;
use crate::flush::Flush;
use crate::peer::PeerConfig;
use crate::peers;
use crate::share::Server;
use crate::station;

/// Builds the machine, and starts its bridge, and what lets other processes use its cards.
///
/// # Errors
/// Values that no machine has, addresses that cannot be used, a capture that cannot be written.
pub fn make(machine: &Machine) -> Result<Shared, BridgeError> {
    let mut world = World::new(machine.config()?)?;
    let share = machine.share.as_ref().map(|share| (share, Server::bind(&share.socket, share.clients)));
    let share =
        share.map(|(share, bound)| bound.map_err(|source| failed_share(share, source)).map(|bound| (share, bound)));
    let share = share.transpose()?;
    let serve = |share: Option<(&ShareTable, Server)>| {
        share.map_or(Ok(()), |(share, server)| server.start().map_err(|source| failed_share(share, source)))
    };
    let joined = join(machine, &mut world)?;
    let Some((table, peers)) = joined else {
        let flush = capture(machine, &mut world)?;
        if !machine.follows_the_clock() {
            return Ok(Shared { world, driver: None });
        }
        // Nobody is outside, but the card goes on by itself.
        let wire = peers::alone().map_err(BridgeError::Clock)?;
        let bridge = Bridge::new(wire).flushing(flush);
        driver_thread::start(&bridge).map_err(BridgeError::Clock)?;
        serve(share)?;
        return Ok(Shared { world, driver: Some(Box::new(bridge)) });
    };
    let flush = capture(machine, &mut world)?;
    let bridge = Bridge::new(peers::wire(table, peers)?).flushing(flush);
    let failed = |source| BridgeError::Bridge { listen: table.listen.clone(), source };
    driver_thread::start(&bridge).map_err(failed)?;
    serve(share)?;
    Ok(Shared { world, driver: Some(Box::new(bridge)) })
}

/// Checks a description as [`make`] would, of which nothing stays: no socket and no tap device is made, and no file is
/// written. Of a job, whose processes are placed by their launcher, the first of two is checked.
///
/// # Errors
/// As [`make`], but for addresses and files that cannot be used.
pub fn check(machine: &Machine) -> Result<(), BridgeError> {
    if machine.only_attaches() {
        return Ok(());
    }
    let mut machine = machine.placed(0, 2)?;
    let mut world = World::new(machine.config()?)?;
    if machine.tap.take().is_some() {
        world.open_outside()?;
    }
    join(&machine, &mut world).map(drop)
}

/// Ends the machine outside as it is described: with a station, or at peers, which are named with their table.
fn join<'a>(
    machine: &'a Machine,
    world: &mut World,
) -> Result<Option<(&'a BridgeTable, Vec<PeerConfig>)>, BridgeError> {
    let Some(table) = &machine.bridge else {
        if let Some(station) = station::of(machine, world)? {
            world.attach_station(station)?;
        }
        return Ok(None);
    };
    world.open_outside()?;
    let first_card = world.config().first_card;
    let peers = peers::resolve(table, &(first_card..first_card + world.card_count()))?;
    if machine.network.is_some() && table.peer.is_some() {
        return Err(BridgeError::Peers(
            "a network needs to know which cards are outside: list them in peers".to_owned(),
        ));
    }
    peers.iter().filter_map(|other| other.cards.clone()).flatten().for_each(|card| world.place_outside(card));
    Ok(Some((table, peers)))
}

fn failed_share(share: &ShareTable, source: io::Error) -> BridgeError {
    BridgeError::Share { socket: share.socket.clone(), source }
}

fn capture(machine: &Machine, world: &mut World) -> Result<Option<Flush>, BridgeError> {
    let Some(path) = &machine.capture else { return Ok(None) };
    let file = File::create(path).map_err(|source| BridgeError::Capture { path: path.clone(), source })?;
    let file = Arc::new(Mutex::new(BufWriter::new(file)));
    // Nobody ends the capture of a machine that lives as long as its process; without a bridge nobody flushes it
    // either.
    let at_once = !machine.follows_the_clock();
    world.start_capture(Box::new(Capture { file: Arc::clone(&file), at_once }))?;
    Ok(Some(Flush(file)))
}

/// The capture file as its writer has it.
struct Capture {
    file: Arc<Mutex<BufWriter<File>>>,
    at_once: bool,
}

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.write(bytes)?;
        if self.at_once {
            file.flush()?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> Result<World, BridgeError> {
        make(&Machine::parse(text).unwrap()).map(|shared| shared.world)
    }

    #[test]
    fn a_description_makes_a_machine() {
        let mut world = made("cards = 1\nfirst_card = 7").unwrap();
        assert_eq!(world.card(0).unwrap().nic.config().gids, emu_machine::gid_table(emu_machine::address(7)));
        let mut world = made("[network]\ntopology = \"switch-5\"").unwrap();
        assert_eq!(world.card_count(), 5);
        assert_eq!(world.network().map(|network| network.in_flight()), Some(0));
        assert!(world.card(4).is_ok());
        assert_eq!(made("cards = 3\n[network]\ntopology = \"switch-5\"").unwrap().card_count(), 3);
    }

    #[test]
    fn what_no_machine_has_is_named() {
        for (text, named) in [
            ("cards = 0", "0 cards"),
            ("first_card = 65534", "the last number of a card is 65534"),
            ("cards = 3", "3 cards"),
            ("[link]\ngbit_per_s = 0", "0 Gbit/s"),
            ("cards = 2\n[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:1\"", "2 cards"),
            ("[bridge]\nlisten = \"nonsense\"\npeer = \"127.0.0.1:1\"", "bridge.listen is \"nonsense\""),
            ("[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:99999\"", "bridge.peer is \"127.0.0.1:99999\""),
            ("[bridge]\nlisten = \"192.0.2.1:1\"\npeer = \"127.0.0.1:1\"", "cannot listen on 192.0.2.1:1"),
            ("cards = 2\n[reflector]", "2 cards"),
            ("cards = 2\n[tap]\ninterface = \"fc0\"", "2 cards"),
            ("[replay]\ncapture = \"/no/such/file\"", "/no/such/file cannot be played"),
            ("[generator]\nframe_bytes = 63", "frame_bytes is 63: 64 to 9018 are possible"),
            ("[generator]\nin_flight = 2\ngbit_per_s = 1.0", "in_flight and gbit_per_s: give one"),
            ("[generator]\nmacs = [\"2:0:0:0:0:1\", \"x\"]", "an address is xx:xx:xx:xx:xx:xx"),
            ("[generator]\nips = [\"10.0.0.1\", \"::1\"]", "give two of one version"),
            ("[generator]\n[reflector]", "the cable has one free end"),
            ("[reflector]\n[tap]\ninterface = \"fc0\"", "the cable has one free end"),
            ("[tap]\ninterface = \"a name that is too long\"", "a name has 1 to 15 bytes"),
            ("[tap]\ninterface = \"lo\"", "the tap lo cannot be used"),
            ("[reflector]\ndelay_ns = 2000000000", "delay_ns is 2000000000"),
            ("[reflector]\n[network]\ntopology = \"switch-4\"", "leave [network] out"),
            ("dpa_units = [3, 2]", "execution units 3 to 2: a partition is a range of units 0 to 254"),
            ("heap_mib = 0", "heap_mib is 0: 1 to 8192 are possible"),
            ("capture = \"/no/such/folder/x.pcapng\"", "/no/such/folder/x.pcapng"),
            ("[network]\ntopology = \"ring-4\"", "the machine file: topology ring-4"),
            (
                "cards = 4\n[network]\ntopology = \"switch-4\"\n[bridge]\nlisten = \"127.0.0.1:0\"\npeer \
                 = \"127.0.0.1:1\"",
                "4 cards",
            ),
            (
                "[network]\ntopology = \"switch-4\"\n[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:1\"",
                "list them in peers",
            ),
            ("[bridge]\nlisten = \"127.0.0.1:0\"", "neither peer nor peers"),
        ] {
            let error = made(text).map(drop).unwrap_err().to_string();
            assert!(error.contains(named), "{text:?}: {error}");
            // Before the program starts as well, unless the system has to be asked.
            let checked = check(&Machine::parse(text).unwrap());
            let asked = ["cannot listen", "/no/such/folder", "bridge.listen", "the tap lo"]
                .iter()
                .any(|what| named.contains(what));
            assert_eq!(checked.map_err(|error| error.to_string()).err(), (!asked).then_some(error), "{text:?}");
        }
    }
}

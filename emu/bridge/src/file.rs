//! A machine written down, in TOML.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use emu_machine::{Config, LinkConfig, MachineError, MemoryModel, Shared, Wiring, World};
use serde::{Deserialize, Serialize};

use crate::bridge::Bridge;
use crate::keeper;
use crate::wire::Wire;

/// A machine file. Every key may be left out; unknown ones are errors.
///
/// ```toml
/// cards = 1
/// first_card = 1              # from 0; its Ethernet address and GID follow from the number
/// capture = "card-1.pcapng"   # what crosses the card's link
///
/// [link]
/// gbit_per_s = 200
/// latency_ps = 500000
/// drop_ppm = 0
/// seed = 1
///
/// [memory]
/// model = "strong"            # or "weak", with a seed
///
/// [bridge]
/// listen = "127.0.0.1:7472"   # UDP
/// peer = "127.0.0.1:7471"
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MachineFile {
    /// Number of cards. Default 1 with a bridge, else 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cards: Option<usize>,
    /// Number of the first card, from 0: [`Config::first_card`]. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_card: Option<usize>,
    /// Whether to look for races for memory: [`Config::detect_races`]. Default no.
    pub detect_races: bool,
    /// A pcapng file for the packets on the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<PathBuf>,
    /// The link of the cards.
    #[serde(skip_serializing_if = "LinkTable::is_default")]
    pub link: LinkTable,
    /// When stores are seen by others.
    #[serde(skip_serializing_if = "MemoryTable::is_default")]
    pub memory: MemoryTable,
    /// What the outer end of the link is joined to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<BridgeTable>,
}

/// `[link]`: see [`emu_machine::LinkConfig`], whose defaults hold for what is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkTable {
    /// Rate in Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_per_s: Option<u64>,
    /// Delay in picoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ps: Option<u64>,
    /// Frames lost per million.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_ppm: Option<u32>,
    /// Seed of the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl LinkTable {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// `[memory]`: see [`MemoryModel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case", deny_unknown_fields)]
pub enum MemoryTable {
    /// At once and in order.
    #[default]
    Strong,
    /// As late as the firmware's fences allow.
    Weak {
        /// Seed of the choices.
        seed: u64,
    },
}

impl MemoryTable {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// `[bridge]`: addresses as `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeTable {
    /// Where this machine receives, by UDP.
    pub listen: String,
    /// Where the other one does.
    pub peer: String,
}

/// Why there is no machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be read.
    #[error("the machine file {} cannot be read: {source}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not what it should be.
    #[error("the machine file{}: {source}", path.as_ref().map_or(String::new(), |path| format!(" {}", path.display())))]
    Parse {
        /// Its path, if it has one.
        path: Option<PathBuf>,
        /// Where and what.
        source: toml::de::Error,
    },
    /// The machine cannot be built so.
    #[error("the machine file: {0}")]
    Machine(#[from] MachineError),
    /// Not an address.
    #[error("the machine file: bridge.{key} is {value:?}, but must be HOST:PORT of this or another computer: {source}")]
    Address {
        /// `listen` or `peer`.
        key: &'static str,
        /// What it is.
        value: String,
        /// What the system said.
        source: io::Error,
    },
    /// The bridge cannot be set up.
    #[error("the bridge cannot listen on {listen}: {source}; is it taken by another program?")]
    Bridge {
        /// The address.
        listen: String,
        /// What the system said.
        source: io::Error,
    },
    /// The capture cannot be written.
    #[error("the capture {} cannot be written: {source}", path.display())]
    Capture {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl MachineFile {
    /// A machine file's text.
    ///
    /// # Errors
    /// Unknown keys and wrong types; the message names the key and its line.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        toml::from_str(text).map_err(|source| FileError::Parse { path: None, source })
    }

    /// A machine file.
    ///
    /// # Errors
    /// As [`MachineFile::parse`], and what reading a file may fail with.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let text = std::fs::read_to_string(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
        toml::from_str(&text).map_err(|source| FileError::Parse { path: Some(path.to_owned()), source })
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.cards = self.cards.unwrap_or(if self.bridge.is_some() { 1 } else { config.cards });
        config.first_card = self.first_card.unwrap_or(config.first_card);
        config.detect_races = self.detect_races;
        config.memory = match self.memory {
            MemoryTable::Strong => MemoryModel::Strong,
            MemoryTable::Weak { seed } => MemoryModel::weak(seed),
        };
        let mut link = LinkConfig::default();
        link.gbit_per_s = self.link.gbit_per_s.unwrap_or(link.gbit_per_s);
        link.latency_ps = self.link.latency_ps.unwrap_or(link.latency_ps);
        link.drop_ppm = self.link.drop_ppm.unwrap_or(link.drop_ppm);
        link.seed = self.link.seed.unwrap_or(link.seed);
        config.wiring = Wiring::Cable(link);
        config
    }

    /// Builds the machine, and starts its bridge.
    ///
    /// # Errors
    /// Values that no machine has, addresses that cannot be used, a capture that cannot be written.
    pub fn make(&self) -> Result<Shared, FileError> {
        let mut world = World::new(self.config())?;
        let Some(table) = &self.bridge else {
            self.capture(&mut world)?;
            return Ok(Shared { world, driver: None });
        };
        world.open_outside()?;
        let flush = self.capture(&mut world)?;
        let failed = |source| FileError::Bridge { listen: table.listen.clone(), source };
        let wire =
            Wire::new(address("listen", &table.listen)?, address("peer", &table.peer)?, epoch()).map_err(failed)?;
        let bridge = Bridge::new(wire).flushing(flush);
        keeper::start(&bridge).map_err(failed)?;
        Ok(Shared { world, driver: Some(Box::new(bridge)) })
    }

    fn capture(&self, world: &mut World) -> Result<Option<Flush>, FileError> {
        let Some(path) = &self.capture else { return Ok(None) };
        let file = File::create(path).map_err(|source| FileError::Capture { path: path.clone(), source })?;
        let file = Arc::new(Mutex::new(BufWriter::new(file)));
        // Nobody ends the capture of a machine that lives as long as its process; without a bridge nobody flushes it either.
        let at_once = self.bridge.is_none();
        world.start_capture(Box::new(Capture { file: Arc::clone(&file), at_once }))?;
        Ok(Some(Flush(file)))
    }
}

fn address(key: &'static str, value: &str) -> Result<SocketAddr, FileError> {
    let found = value.to_socket_addrs().and_then(|mut found| {
        found.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
    });
    found.map_err(|source| FileError::Address { key, value: value.to_owned(), source })
}

/// A number that another start of the program hardly has.
fn epoch() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u32 ^ std::process::id().rotate_left(16)).max(1)
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

/// The capture file as the bridge has it.
#[derive(Debug)]
pub(crate) struct Flush(Arc<Mutex<BufWriter<File>>>);

impl Flush {
    /// Writes what has gathered; a failure shows with the next frame.
    pub(crate) fn now(&self) {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_the_machine_is() {
        let text = "cards = 1\nfirst_card = 7\ndetect_races = true\n\
                    [link]\ngbit_per_s = 400\nlatency_ps = 1\ndrop_ppm = 2\nseed = 3\n[memory]\nmodel = \"weak\"\nseed = 4\n";
        let file = MachineFile::parse(text).unwrap();
        let config = file.config();
        assert_eq!((config.cards, config.first_card, config.detect_races), (1, 7, true));
        let link = LinkConfig { gbit_per_s: 400, latency_ps: 1, drop_ppm: 2, seed: 3 };
        assert_eq!(config.wiring, Wiring::Cable(link));
        assert_eq!(config.memory, MemoryModel::weak(4));
        let gid = file.make().unwrap().world.card(0).unwrap().nic.config().gids[0];
        assert_eq!(gid, emu_machine::address(7).gid);
        assert_eq!(MachineFile::parse("").unwrap().config(), Config::default());
        assert_eq!(MachineFile::parse(&toml::to_string(&file).unwrap()).unwrap(), file);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("crads = 1", vec!["crads", "cards"]),
            ("[link]\nrate = 1", vec!["rate", "gbit_per_s"]),
            ("cards = \"two\"", vec!["cards", "two"]),
            ("[bridge]\nlisten = \"127.0.0.1:0\"", vec!["peer"]),
            ("[memory]\nmodel = \"odd\"", vec!["odd", "strong", "weak"]),
        ] {
            let error = MachineFile::parse(text).unwrap_err().to_string();
            assert!(named.iter().all(|name| error.contains(name)), "{text:?}: {error}");
        }
        for (text, named) in [
            ("cards = 0", "0 cards"),
            ("first_card = 65534", "the last number of a card is 65534"),
            ("cards = 3", "3 cards"),
            ("[link]\ngbit_per_s = 0", "0 Gbit/s"),
            ("cards = 2\n[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:1\"", "2 cards"),
            ("[bridge]\nlisten = \"nonsense\"\npeer = \"127.0.0.1:1\"", "bridge.listen is \"nonsense\""),
            ("[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:99999\"", "bridge.peer is \"127.0.0.1:99999\""),
            ("[bridge]\nlisten = \"192.0.2.1:1\"\npeer = \"127.0.0.1:1\"", "cannot listen on 192.0.2.1:1"),
            ("capture = \"/no/such/folder/x.pcapng\"", "/no/such/folder/x.pcapng"),
        ] {
            let error = MachineFile::parse(text).unwrap().make().map(drop).unwrap_err().to_string();
            assert!(error.contains(named), "{text:?}: {error}");
        }
        assert!(MachineFile::read(Path::new("/no/such/file")).unwrap_err().to_string().contains("/no/such/file"));
    }
}

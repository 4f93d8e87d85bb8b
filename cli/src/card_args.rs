//! Choice of what moves the data of real processes: a card's DPA, the processors over an RDMA card, or a network
//! interface.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use flexcast::{Endpoint, Firmware, UdpOptions};
use flexcast_cli::note;
use flexio::Provider;

/// What moves the data.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum DatapathName {
    /// The DPA where a card, libraries and `--firmware` are there, else an RDMA card, else the interface.
    Auto,
    /// Threads of the card's DPA.
    Dpa,
    /// This process, over an RDMA card.
    Verbs,
    /// This process, by IP multicast over a network interface.
    Udp,
}

#[derive(Debug, Args)]
pub(crate) struct CardArgs {
    /// What moves the data [default: FLEXCAST_DATAPATH, or udp].
    #[arg(long, value_enum, value_name = "NAME")]
    datapath: Option<DatapathName>,
    /// RDMA device of the datapaths dpa and verbs [default: the first].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Image `allgather` for the card's DPA.
    #[arg(long, value_name = "FILE")]
    firmware: Option<PathBuf>,
    /// Image `sparse`, started on the card's DPA for FLEXCAST_SPARSE_AGGREGATION=dpa [default:
    /// FLEXCAST_SPARSE_FIRMWARE, or none].
    #[arg(long, value_name = "FILE")]
    sparse_firmware: Option<PathBuf>,
    /// Network interface, by name or address [default: FLEXCAST_INTERFACE, or the first that can multicast].
    #[arg(long, value_name = "NAME|ADDRESS")]
    interface: Option<String>,
}

impl CardArgs {
    /// Opens what is wanted. With `auto`, stderr says what is not there.
    pub(crate) fn open(&self) -> anyhow::Result<Endpoint> {
        match self.wanted()? {
            DatapathName::Udp => self.udp(),
            DatapathName::Verbs => self.verbs(),
            DatapathName::Dpa => self.dpa(),
            DatapathName::Auto => {
                if self.firmware.is_some() {
                    match self.dpa() {
                        Ok(endpoint) => return Ok(endpoint),
                        Err(error) => note!("not the datapath dpa: {error:#}"),
                    }
                }
                match self.verbs() {
                    Ok(endpoint) => Ok(endpoint),
                    Err(error) => {
                        note!("not the datapath verbs: {error:#}");
                        self.udp()
                    }
                }
            }
        }
    }

    fn wanted(&self) -> anyhow::Result<DatapathName> {
        if let Some(datapath) = self.datapath {
            return Ok(datapath);
        }
        match std::env::var("FLEXCAST_DATAPATH") {
            Ok(name) if !name.is_empty() => DatapathName::from_str(&name, false)
                .map_err(|_| anyhow::anyhow!("FLEXCAST_DATAPATH is {name:?}: has to be auto, dpa, verbs or udp")),
            _ => Ok(DatapathName::Udp),
        }
    }

    fn udp(&self) -> anyhow::Result<Endpoint> {
        let mut options = UdpOptions::from_env()?;
        if let Some(interface) = &self.interface {
            options = options.interface(interface);
        }
        Ok(Endpoint::udp(&options)?)
    }

    fn verbs(&self) -> anyhow::Result<Endpoint> {
        let sparse = self.sparse_firmware();
        let provider = if sparse.is_some() { Provider::system()? } else { Provider::rdma()? };
        let device = self.device(&provider)?;
        started(Endpoint::verbs(&provider, &device)?, sparse)
    }

    fn sparse_firmware(&self) -> Option<PathBuf> {
        let variable = || std::env::var_os("FLEXCAST_SPARSE_FIRMWARE").filter(|path| !path.is_empty());
        self.sparse_firmware.clone().or_else(|| variable().map(PathBuf::from))
    }

    fn dpa(&self) -> anyhow::Result<Endpoint> {
        let path = self.firmware.as_ref().context("the datapath dpa needs --firmware FILE: the image allgather")?;
        let elf = read(path)?;
        let provider = Provider::system()?;
        let device = self.device(&provider)?;
        started(Endpoint::open(&provider, &device, Firmware { name: "allgather", elf: &elf })?, self.sparse_firmware())
    }

    fn device(&self, provider: &Provider) -> anyhow::Result<String> {
        if let Some(device) = &self.device {
            return Ok(device.clone());
        }
        let first = provider.devices()?.into_iter().next().map(|device| device.name);
        first.context("no RDMA device here: see whether a card and its driver are there")
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    flexcast_files::bytes(path, flexcast_files::IMAGE)
        .with_context(|| format!("the firmware image {} cannot be read", path.display()))
}

/// A card on whose DPA image `sparse` is started, if it is given.
fn started(endpoint: Endpoint, sparse: Option<PathBuf>) -> anyhow::Result<Endpoint> {
    if let Some(path) = sparse {
        endpoint.start_aggregators(Firmware { name: "sparse", elf: &read(&path)? })?;
    }
    Ok(endpoint)
}

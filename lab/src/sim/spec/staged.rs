//! Options of staged collectives of service processes.

use flexcast_proto::service::{Delivery, Multicast, StagedReader, Staging};
use serde::Serialize;

use crate::options::whole_bytes;
use crate::service::StagedPlan;

/// Where data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryName {
    /// Flat with few ranks on each host, hierarchical with many.
    Auto,
    /// Into the receive buffer of every rank.
    Flat,
    /// Into a segment that the ranks of a host share, from where they copy.
    Hierarchical,
    /// Straight from host memory to host memory by alias keys, for a comparison: nothing goes through memory of the
    /// cards.
    Direct,
}

/// Which service process reads the message of a broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ReaderName {
    /// The root's own.
    Root,
    /// The first of all, as published.
    First,
}

/// How data goes between service processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum BetweenName {
    /// By messages and Reads of each other's staging memory; each writes to the ranks of all hosts.
    Messages,
    /// By multicast into the staging memory of all, each of which writes to its own ranks.
    Multicast,
}

/// Staged collectives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, clap::Args)]
#[command(next_help_heading = "Collectives through memory of the cards (--control service --op broadcast, allgather)")]
pub struct StagedArgs {
    /// Where data goes from the card's memory [default: auto].
    #[arg(long, value_enum, value_name = "NAME")]
    pub delivery: Option<DeliveryName>,
    /// Which service process reads the message of a broadcast [default: root].
    #[arg(long, value_enum, value_name = "NAME")]
    pub reader: Option<ReaderName>,
    /// Staging memory of each service process, in bytes [default: 8388608].
    #[arg(long, value_parser = whole_bytes::<u64>(1, 1_u64 << 40), value_name = "BYTES")]
    pub staging: Option<u64>,
    /// Segments of a broadcast from so many bytes on go between service processes by scatter and Allgather, shorter
    /// ones down a binomial tree [default: 65536].
    #[arg(long, value_parser = whole_bytes::<u64>(0, u64::MAX), value_name = "BYTES")]
    pub scatter: Option<u64>,
    /// How data goes between service processes [default: messages].
    #[arg(long, value_enum, value_name = "NAME")]
    pub between: Option<BetweenName>,
    /// The next service process of an allgather multicasts once so many bytes of those before it are still to come
    /// [default: 262144].
    #[arg(long, value_parser = whole_bytes::<u64>(0, 1_u64 << 40), value_name = "BYTES")]
    pub ahead: Option<u64>,
}

impl StagedArgs {
    /// The plan of a run, for broadcasts of this root.
    pub(super) fn plan(&self, root: u32) -> StagedPlan {
        let default = Staging::default();
        let staging_bytes = self.staging.unwrap_or(default.staging_bytes);
        let reader = match self.reader {
            Some(ReaderName::First) => StagedReader::First,
            _ => StagedReader::OfRoot,
        };
        let scatter_bytes = self.scatter.unwrap_or(default.scatter_bytes);
        let delivery = match self.delivery {
            Some(DeliveryName::Flat) => Some(Delivery::Flat),
            Some(DeliveryName::Hierarchical) => Some(Delivery::Hierarchical),
            Some(DeliveryName::Direct) => Some(Delivery::Direct),
            Some(DeliveryName::Auto) | None => None,
        };
        let ahead_bytes = self.ahead.unwrap_or(Multicast::default().ahead_bytes);
        let multicast = Multicast { ahead_bytes, ..Multicast::default() };
        let multicast = (self.between == Some(BetweenName::Multicast)).then_some(multicast);
        let staging = Staging { staging_bytes, reader, scatter_bytes, multicast, ..default };
        StagedPlan { staging, staging_bytes: Some(staging_bytes), delivery, root, ..StagedPlan::default() }
    }
}

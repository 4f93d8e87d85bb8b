//! Queue pairs of a job at one of its aggregators, where RDMA cards carry the blocks.

use flexcast_mesh::aggregator::{Carrier, Report, Terms};
use flexio::{ProtectionDomain, Retry};

use super::budget::Reservation;
use flexcast_sparse::{self as sparse, Aggregator, Call, Config, Party, settings_of};

/// How often completions are polled between two polls of the connections.
const POLLS: u32 = 32;

/// What adds, and what workers have announced for it.
#[derive(Debug)]
pub(super) struct Cards {
    pd: ProtectionDomain,
    /// By rank: its connection information, until all have announced theirs.
    infos: Vec<Option<Vec<u8>>>,
    /// Connected with all workers.
    aggregator: Option<Aggregator>,
    /// An operation that has been called, and waits for the connections.
    wanted: Option<Call>,
    /// Bytes of messages that have come over connections that there are no more.
    past_bytes: u64,
}

impl Cards {
    pub(super) fn new(pd: ProtectionDomain, workers: u32) -> Self {
        Self { pd, infos: vec![None; workers as usize], aggregator: None, wanted: None, past_bytes: 0 }
    }

    /// A worker has other queue pairs. If it is the last one, the own connection information, for all.
    ///
    /// # Errors
    /// They cannot be, or there is no room: why.
    pub(super) fn offer(
        &mut self,
        rank: u32,
        info: &[u8],
        terms: &Terms,
        reservation: &mut Reservation,
    ) -> Result<Option<Vec<u8>>, String> {
        if self.aggregator.as_ref().is_some_and(|aggregator| !aggregator.is_complete()) {
            return Err(format!("rank {rank} has made new connections in the midst of an operation"));
        }
        // All workers make new ones together: those that there were are of no use.
        self.past_bytes = self.received_bytes();
        self.aggregator = None;
        self.infos[rank as usize] = Some(info.to_vec());
        if self.infos.contains(&None) {
            return Ok(None);
        }
        let infos: Vec<Vec<u8>> = self.infos.iter_mut().filter_map(Option::take).collect();
        self.connect(&infos, terms, reservation).map(Some)
    }

    fn connect(&mut self, infos: &[Vec<u8>], terms: &Terms, reservation: &mut Reservation) -> Result<Vec<u8>, String> {
        let text = |error: sparse::Error| error.to_string();
        let first = infos.first().map_or(&[][..], Vec::as_slice);
        let settings = settings_of(first, Party::Worker(0)).map_err(text)?;
        let (workers, aggregators) = (settings.parameters().workers(), settings.aggregators());
        if (workers, aggregators) != (terms.workers, terms.aggregators) {
            return Err(format!(
                "connections for {workers} workers and {aggregators} aggregators do not fit a job with {} and {}",
                terms.workers, terms.aggregators
            ));
        }
        let Carrier::Cards { class, timeout_exponent, retries } = terms.carrier else {
            return Err("the job has no cards".to_owned());
        };
        let retry = Retry { timeout_exponent, count: retries };
        reservation.raise(settings.parameters(), settings.shards_of_each())?;
        let config = Config { retry, class, ..Config::default() };
        let (pending, info) =
            Aggregator::prepare(&self.pd, settings, terms.aggregator, config).map_err(|error| no_room(&error))?;
        self.aggregator = Some(pending.connect(infos).map_err(text)?);
        Ok(info)
    }

    /// An operation has been called.
    pub(super) const fn call(&mut self, call: Call) {
        self.wanted = Some(call);
    }

    /// Adds what has come. Returns whether anything has happened.
    ///
    /// # Errors
    /// The operation has failed: what workers are sent.
    pub(super) fn advance(&mut self) -> Result<bool, Report> {
        let Some(aggregator) = &mut self.aggregator else { return Ok(false) };
        if let Some(call) = self.wanted.take() {
            aggregator.begin(call).map_err(report)?;
        }
        let relax = self.pd.device().provider().relax();
        for _ in 0..POLLS {
            if aggregator.advance().map_err(report)? {
                return Ok(true);
            }
            relax.relax();
        }
        Ok(false)
    }

    /// Whether all sums of what was called are with all workers.
    pub(super) fn is_complete(&self) -> bool {
        self.wanted.is_none() && self.aggregator.as_ref().is_some_and(Aggregator::is_complete)
    }

    /// Whose message is waited for.
    pub(super) fn awaited(&self) -> Option<u32> {
        match &self.aggregator {
            Some(aggregator) => aggregator.awaited(),
            None => self.infos.iter().position(Option::is_none).map(|rank| rank as u32),
        }
    }

    /// Bytes of messages that have come.
    pub(super) fn received_bytes(&self) -> u64 {
        let now = self.aggregator.as_ref().map_or(0, |aggregator| aggregator.statistics().received_bytes);
        self.past_bytes + now
    }
}

/// What a card that has no room for queue pairs or memory is to workers.
fn no_room(error: &sparse::Error) -> String {
    format!(
        "its card takes no more queue pairs or memory ({error}): use fewer blocks per message, or another aggregator"
    )
}

/// What workers are sent of an operation that has failed.
fn report(error: sparse::Error) -> Report {
    use sparse::Error;
    match error {
        Error::Connection { party: Party::Worker(rank), .. } | Error::Protocol { party: Party::Worker(rank), .. } => {
            tracing::warn!(rank, %error, "a worker's queue pairs are of no use");
            Report::Lost { rank }
        }
        error => Report::Refused { reason: error.to_string() },
    }
}

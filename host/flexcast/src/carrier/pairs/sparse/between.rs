//! Sparse AllReduce over RDMA cards among ranks alone: each is a worker, and the aggregator of its own shards, by its
//! processor or its card's DPA.

use std::sync::Arc;

use super::buffers::Buffers;
use super::on_dpa::{self, OnDpa};
use super::{Need, RankCard, Result};
use crate::op::aggregation::Aggregation;
use crate::op::buffer::Buffer;
use flexcast_rc::linger::Lingering;
use flexcast_sparse::SparseOptions;
use flexcast_sparse::{
    Aggregator, Call, FixedPoint, FixedPointArray, PendingAggregator, PendingWorker, Settings, Worker,
};

/// Queue pairs between all ranks.
#[derive(Debug)]
pub(in crate::carrier::pairs) struct Between {
    pub(super) options: SparseOptions,
    pub(super) shards_of_each: u32,
    // Before the worker: at its end the DPA still has workers to answer, the own one among them.
    adder: Adder,
    worker: Worker,
    lingering: Arc<Lingering>,
    /// Of the operation under way.
    fixed_point: Option<FixedPoint>,
}

/// Who adds this rank's shards.
#[derive(Debug)]
enum Adder {
    Host(Aggregator),
    Dpa(on_dpa::Adder),
}

#[derive(Debug)]
pub(in crate::carrier::pairs) struct PendingBetween {
    pub(super) need: Need,
    settings: Settings,
    worker: PendingWorker,
    adder: PendingAdder,
    lingering: Arc<Lingering>,
}

#[derive(Debug)]
enum PendingAdder {
    Host(PendingAggregator),
    Dpa(on_dpa::PendingAdder),
}

impl PendingBetween {
    pub(super) fn prepare(card: &RankCard, on_dpa: Option<&OnDpa>, need: Need) -> Result<(Self, Vec<u8>)> {
        let RankCard { pd, place, config, lingering } = card;
        let settings = need.settings(place.ranks())?;
        let (worker, mut info) = Worker::prepare(pd, settings, place.rank(), *config)?;
        let (adder, behind) = match (need.aggregation, on_dpa) {
            (Aggregation::Dpa, Some(on_dpa)) => {
                let (adder, behind) = on_dpa.prepare(&settings, place.rank())?;
                (PendingAdder::Dpa(adder), behind)
            }
            _ => {
                let (aggregator, behind) = Aggregator::prepare(pd, settings, place.rank(), *config)?;
                (PendingAdder::Host(aggregator), behind)
            }
        };
        info.extend(behind);
        Ok((Self { need, settings, worker, adder, lingering: Arc::clone(lingering) }, info))
    }

    pub(super) fn connect(self, infos: &[&[u8]]) -> Result<Between> {
        let Self { need, settings, worker, adder, lingering } = self;
        let [workers, _] = need.halves(settings.aggregators())?;
        let (ours, theirs): (Vec<_>, Vec<_>) =
            infos.iter().map(|info| info.split_at_checked(workers).unwrap_or((info, &[]))).unzip();
        Ok(Between {
            options: need.options,
            shards_of_each: settings.shards_of_each(),
            adder: match adder {
                PendingAdder::Host(aggregator) => Adder::Host(aggregator.connect(&ours)?),
                PendingAdder::Dpa(adder) => Adder::Dpa(adder.connect(&ours)?),
            },
            worker: worker.connect(&theirs)?,
            lingering,
            fixed_point: None,
        })
    }
}

impl Between {
    pub(super) fn leave(self) {
        let Self { adder, worker, lingering, .. } = self;
        match adder {
            Adder::Host(aggregator) => aggregator.leave(&lingering),
            Adder::Dpa(adder) => drop(adder),
        }
        worker.leave(&lingering);
    }

    pub(super) fn begin(&mut self, call: Call, fixed_point: Option<FixedPoint>, now_ps: u64) -> Result<()> {
        self.fixed_point = fixed_point;
        match &mut self.adder {
            Adder::Host(aggregator) => aggregator.begin(call)?,
            Adder::Dpa(adder) => adder.begin(call.reduction, now_ps)?,
        }
        Ok(self.worker.begin(call)?)
    }

    pub(super) fn advance(&mut self, send: Option<&Buffer>, receive: &mut Buffer, now_ps: u64) -> Result<bool> {
        let mut moved = match &mut self.adder {
            Adder::Host(aggregator) => aggregator.advance()?,
            Adder::Dpa(_) => false,
        };
        let mut array = Buffers { send, receive };
        moved |= match self.fixed_point {
            Some(format) => self.worker.advance(&mut FixedPointArray::new(&mut array, format))?,
            None => self.worker.advance(&mut array)?,
        };
        if let Adder::Dpa(adder) = &mut self.adder {
            adder.watch(moved, self.worker.is_complete(), now_ps)?;
        }
        Ok(moved)
    }

    pub(super) const fn is_complete(&self) -> bool {
        match &self.adder {
            Adder::Host(aggregator) => self.worker.is_complete() && aggregator.is_complete(),
            // What others still wait for needs no host.
            Adder::Dpa(_) => self.worker.is_complete(),
        }
    }

    pub(super) fn deadline_ps(&self) -> Option<u64> {
        let adder_ps = match &self.adder {
            Adder::Host(aggregator) => aggregator.deadline_ps(),
            Adder::Dpa(adder) => (!self.worker.is_complete()).then(|| adder.deadline_ps()),
        };
        [self.worker.deadline_ps(), adder_ps].into_iter().flatten().min()
    }

    pub(super) fn awaited(&self, own: u32) -> u32 {
        // What the own aggregator waits for is the cause of what the own worker waits for.
        let of_adder = match &self.adder {
            Adder::Host(aggregator) => aggregator.awaited(),
            Adder::Dpa(_) => None,
        };
        let of_worker = || self.worker.awaited().filter(|aggregator| *aggregator != own);
        of_adder.filter(|worker| *worker != own).or_else(of_worker).unwrap_or(own)
    }

    pub(super) fn counts(&self, own: u32) -> [u64; 2] {
        let worker = self.worker.statistics();
        let as_worker = worker.received_bytes - self.worker.received_from(own);
        let bytes = match &self.adder {
            Adder::Host(aggregator) => {
                as_worker + aggregator.statistics().received_bytes - aggregator.received_from(own)
            }
            Adder::Dpa(_) => as_worker,
        };
        [worker.sent_messages, bytes]
    }
}

//! Table of jobs and their workers: decides whether a worker is taken, and which thread serves its job.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use flexcast_mesh::aggregator::{Carrier, Greeting, Terms};

use super::Settings;

/// A job at one of its aggregators.
pub(super) type Key = (u64, u32);

/// A job with a thread.
#[derive(Debug)]
struct Served {
    terms: Terms,
    thread: usize,
    /// By rank: whether it is connected.
    connected: Vec<bool>,
    /// It takes nobody any more, for this reason.
    over: Option<String>,
}

/// All jobs of a process.
#[derive(Debug)]
pub(super) struct Registry {
    settings: Settings,
    /// Whether there is an RDMA card.
    has_card: bool,
    jobs: HashMap<Key, Served>,
    /// Jobs of each thread.
    loads: Vec<usize>,
    connections: u32,
}

impl Registry {
    pub(super) fn new(settings: &Settings, has_card: bool) -> Self {
        let loads = vec![0; settings.threads.max(1) as usize];
        Self { settings: settings.clone(), has_card, jobs: HashMap::new(), loads, connections: 0 }
    }

    /// Takes a worker: which thread serves it.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn join(&mut self, greeting: &Greeting) -> Result<usize, String> {
        let Greeting { rank, terms, .. } = *greeting;
        let key = (terms.job, terms.aggregator);
        if matches!(terms.carrier, Carrier::Cards { .. }) && !self.has_card {
            return Err("it has no RDMA card, which ranks with cards need: give it one".to_owned());
        }
        if self.connections >= self.settings.connections {
            let most = self.settings.connections;
            return Err(format!(
                "it has {most} connections already: start it with more (--connections), or another one"
            ));
        }
        // A job may have several aggregators here.
        let jobs: HashSet<u64> = self.jobs.keys().map(|(job, _)| *job).collect();
        if !jobs.contains(&terms.job) && jobs.len() as u64 >= u64::from(self.settings.jobs) {
            let most = self.settings.jobs;
            return Err(format!("it serves {most} jobs already: start it with more (--jobs), or another one"));
        }
        let job = match self.jobs.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let thread = (0..self.loads.len()).min_by_key(|thread| self.loads[*thread]).unwrap_or(0);
                self.loads[thread] += 1;
                let connected = vec![false; terms.workers as usize];
                entry.insert(Served { terms, thread, connected, over: None })
            }
        };
        if job.terms.proof != terms.proof {
            return Err(format!("another group has the number {:016x}: create the communicator again", terms.job));
        }
        if job.terms != terms {
            return Err(differs(&job.terms, &terms, rank));
        }
        if let Some(reason) = &job.over {
            return Err(reason.clone());
        }
        if std::mem::replace(&mut job.connected[rank as usize], true) {
            return Err(format!(
                "rank {rank} of job {:016x} is connected already: start each rank once, and name aggregators in one \
                 order on all ranks",
                terms.job
            ));
        }
        self.connections += 1;
        Ok(job.thread)
    }

    /// Workers that are connected.
    pub(super) const fn connections(&self) -> u32 {
        self.connections
    }

    /// A worker is gone.
    pub(super) fn leave(&mut self, key: Key, rank: u32) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        if std::mem::replace(&mut job.connected[rank as usize], false) {
            self.connections -= 1;
        }
        if !job.connected.contains(&true) {
            self.loads[job.thread] -= 1;
            self.jobs.remove(&key);
        }
    }

    /// A job has failed: it takes nobody any more. Who comes late is sent what the others were, if it was refused.
    pub(super) fn end(&mut self, key: Key, refusal: Option<&str>) {
        if let Some(job) = self.jobs.get_mut(&key) {
            let failed = || "the job has failed: create another communicator".to_owned();
            job.over.get_or_insert_with(|| refusal.map_or_else(failed, str::to_owned));
        }
    }
}

/// How what a worker says differs from what the job's first one has said.
fn differs(first: &Terms, terms: &Terms, rank: u32) -> String {
    let text = |terms: &Terms| {
        let Terms { workers, aggregators, order, carrier, .. } = terms;
        let order = match order {
            flexcast_proto::sparse::Order::Arrival => "as blocks come",
            flexcast_proto::sparse::Order::Rank => "in the order of ranks (reproducible)",
        };
        let carrier = match carrier {
            Carrier::Connection => "TCP".to_owned(),
            Carrier::Cards { class, timeout_exponent, retries } => {
                format!("RDMA cards of class {class}, timeout 2^{timeout_exponent}, sent again {retries} times")
            }
        };
        format!("{workers} workers and {aggregators} aggregators, sums {order}, over {carrier}")
    };
    format!("rank {rank} has {}, others of its job {}: give all ranks one configuration", text(terms), text(first))
}

#[cfg(test)]
mod tests {
    use flexcast_proto::sparse::Order;

    use super::*;

    fn greeting(job: u64, aggregator: u32, rank: u32) -> Greeting {
        let (order, carrier) = (Order::Arrival, Carrier::Connection);
        let terms = Terms { job, proof: job + 1, workers: 3, aggregator, aggregators: 2, order, carrier };
        Greeting { rank, has_secret: false, terms }
    }

    #[test]
    fn jobs_are_spread_over_threads_and_forgotten_with_their_last_worker() {
        let mut registry = Registry::new(&Settings { threads: 2, jobs: 2, ..Settings::default() }, false);
        let threads = [greeting(1, 0, 0), greeting(1, 1, 0), greeting(1, 0, 2), greeting(2, 0, 1)];
        assert_eq!(threads.map(|greeting| registry.join(&greeting)), [Ok(0), Ok(1), Ok(0), Ok(0)]);
        assert!(registry.join(&greeting(3, 0, 0)).is_err_and(|text| text.contains("2 jobs")));
        assert_eq!(registry.join(&greeting(2, 1, 1)), Ok(1), "its job is served already");
        registry.leave((1, 0), 0);
        assert!(registry.join(&greeting(3, 0, 0)).is_err());
        registry.leave((1, 0), 2);
        registry.leave((1, 1), 0);
        assert_eq!(registry.join(&greeting(3, 0, 0)), Ok(0));
        assert_eq!((registry.connections, registry.jobs.len()), (3, 3));
    }

    #[test]
    fn whoever_does_not_belong_to_a_job_learns_why() {
        let mut registry = Registry::new(&Settings { connections: 3, ..Settings::default() }, false);
        registry.join(&greeting(1, 0, 0)).unwrap();
        let mut refused = |greeting: Greeting| registry.join(&greeting).unwrap_err();
        assert!(refused(greeting(1, 0, 0)).contains("rank 0 of job 0000000000000001 is connected already"));
        let with = |change: fn(&mut Terms)| {
            let mut greeting = greeting(1, 0, 1);
            change(&mut greeting.terms);
            greeting
        };
        assert!(refused(with(|terms| terms.proof = 0)).contains("another group has the number"));
        assert!(refused(with(|terms| terms.workers = 4)).contains("rank 1 has 4 workers and 2 aggregators"));
        assert!(refused(with(|terms| terms.order = Order::Rank)).contains("in the order of ranks"));
        let carrier = Carrier::Cards { class: 0, timeout_exponent: 14, retries: 7 };
        let with_card = |greeting: &mut Greeting| greeting.terms.carrier = carrier;
        let mut one = greeting(1, 0, 1);
        with_card(&mut one);
        assert!(registry.join(&one).unwrap_err().contains("give it one"));
        registry.has_card = true;
        assert!(registry.join(&one).unwrap_err().contains("over RDMA cards of class 0, timeout 2^14"));
        registry.end((1, 0), None);
        // The first reason counts.
        registry.end((1, 0), Some("no memory"));
        assert!(registry.join(&greeting(1, 0, 1)).unwrap_err().contains("has failed"));
        registry.join(&greeting(5, 0, 0)).unwrap();
        registry.join(&greeting(5, 0, 1)).unwrap();
        assert!(registry.join(&greeting(5, 0, 2)).unwrap_err().contains("3 connections"));
    }
}

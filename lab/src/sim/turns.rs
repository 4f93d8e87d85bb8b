//! Exchange of ranks that each have a thread and run one at a time, in the order of ranks: what they do is the same in
//! every run.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flexcast::bootstrap::{Exchange, ExchangeError};

/// Longest that a rank waits for its turn: the others make connections meanwhile.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
struct State {
    /// The rank that runs.
    turn: usize,
    /// Which ranks run no more.
    ended: Vec<bool>,
    /// What each has contributed, exchange by exchange.
    contributions: Vec<Vec<Vec<u8>>>,
}

#[derive(Debug, Default)]
struct Table {
    state: Mutex<State>,
    passed: Condvar,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the next rank run that has not ended.
    fn pass(&self, state: &mut State) {
        let ranks = state.ended.len();
        let next = (1..=ranks).map(|step| (state.turn + step) % ranks).find(|rank| !state.ended[*rank]);
        state.turn = next.unwrap_or(state.turn);
        self.passed.notify_all();
    }

    /// Waits until it is a rank's turn; none if that takes too long.
    fn wait<'s>(&self, state: MutexGuard<'s, State>, rank: usize) -> Option<MutexGuard<'s, State>> {
        let waiting = self.passed.wait_timeout_while(state, PATIENCE, |state| state.turn != rank);
        let (state, waited) = waiting.unwrap_or_else(PoisonError::into_inner);
        (!waited.timed_out()).then_some(state)
    }
}

/// A rank's part.
struct Turns {
    table: Arc<Table>,
    rank: usize,
    size: usize,
    exchanges: usize,
}

impl Exchange for Turns {
    fn rank(&self) -> u32 {
        self.rank as u32
    }

    fn size(&self) -> u32 {
        self.size as u32
    }

    fn exchange(&mut self, tag: &str, contribution: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let number = self.exchanges;
        self.exchanges += 1;
        let mut state = self.table.lock();
        state.contributions[self.rank].push(contribution.to_vec());
        self.table.pass(&mut state);
        let Some(state) = self.table.wait(state, self.rank) else {
            return Err(ExchangeError { tag: tag.to_owned(), reason: format!("no turn within {PATIENCE:?}") });
        };
        let of_all = |(rank, contributions): (usize, &Vec<Vec<u8>>)| {
            let reason = format!("rank {rank} has ended before exchange {number}");
            contributions.get(number).cloned().ok_or_else(|| ExchangeError { tag: tag.to_owned(), reason })
        };
        state.contributions.iter().enumerate().map(of_all).collect()
    }
}

/// However it ends, the others go on.
impl Drop for Turns {
    fn drop(&mut self) {
        let mut state = self.table.lock();
        state.ended[self.rank] = true;
        if state.turn == self.rank {
            self.table.pass(&mut state);
        }
    }
}

/// Runs `body` for each rank, in threads of which one runs at a time: from one exchange to the next, in the order of
/// ranks.
pub(super) fn in_turns<T: Send>(ranks: usize, body: impl Fn(usize, &mut dyn Exchange) -> T + Sync) -> Vec<T> {
    let state = State { turn: 0, ended: vec![false; ranks], contributions: vec![Vec::new(); ranks] };
    let table = Arc::new(Table { state: Mutex::new(state), passed: Condvar::new() });
    let own = |rank| Turns { table: Arc::clone(&table), rank, size: ranks, exchanges: 0 };
    let body = &body;
    std::thread::scope(|scope| {
        let begin = |mut turns: Turns| {
            scope.spawn(move || {
                let rank = turns.rank;
                // Whoever has no turn in time fails at its first exchange.
                drop(turns.table.wait(turns.table.lock(), rank));
                body(rank, &mut turns)
            })
        };
        let threads: Vec<_> = (0..ranks).map(own).map(begin).collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|joined| joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_run_one_at_a_time_in_their_order() {
        let log = Mutex::new(Vec::new());
        let sums = in_turns(4, |rank, exchange| {
            let mut sum = 0;
            for round in 0..3 {
                log.lock().unwrap().push((round, rank));
                let all = exchange.exchange("round", &[rank as u8 + round]).unwrap();
                sum += all.iter().map(|one| u32::from(one[0])).sum::<u32>();
            }
            sum
        });
        assert_eq!(sums, [6 + 10 + 14; 4]);
        let order: Vec<_> = (0..3).flat_map(|round| (0..4).map(move |rank| (round, rank))).collect();
        assert_eq!(*log.lock().unwrap(), order);
    }

    #[test]
    fn a_rank_that_ends_early_is_named_by_the_others() {
        let errors = in_turns(3, |rank, exchange| match rank {
            1 => String::new(),
            _ => exchange.exchange("all", b"x").unwrap_err().to_string(),
        });
        assert!(errors[0].contains("rank 1 has ended") && errors[2].contains("rank 1 has ended"), "{errors:?}");
    }
}

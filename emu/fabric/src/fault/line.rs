//! One direction of one link with its faults.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::chance::Chance;
use super::script::Fault;

/// A fault and its time.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) from_ps: u64,
    pub(super) until_ps: u64,
    pub(super) fault: Fault,
}

impl Window {
    /// Ends a `down` that lasts at this time. A frame may leave at that very moment.
    pub(super) fn end_down(&mut self, at_ps: u64) -> bool {
        let lasts = matches!(self.fault, Fault::Down) && self.from_ps <= at_ps && at_ps < self.until_ps;
        if lasts {
            self.until_ps = at_ps;
        }
        lasts
    }

    fn holds(&self, at_ps: u64) -> bool {
        self.from_ps <= at_ps && at_ps < self.until_ps
    }
}

/// Why a frame did not get through a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropCause {
    Random,
    Burst,
    BitError,
    LinkDown,
    /// One of those that a script names.
    Named,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) lost: Option<DropCause>,
    /// Seed of the corruption.
    pub(crate) corrupt: Option<u64>,
    pub(crate) duplicate: bool,
    /// Later than without faults.
    pub(crate) delay_ps: u64,
}

#[derive(Clone, Debug)]
struct Active {
    window: Window,
    chance: Chance,
    stream: ChaCha8Rng,
    /// Frames that the burst still takes.
    burst_left: u32,
    /// Frames of a named priority so far.
    seen: u64,
    /// Length of the last frame, and the chance of a bit error in it.
    bytes: u64,
}

/// One direction of one link with its faults.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    faults: Vec<Active>,
    /// When the last frame that was not reordered was complete at the other end.
    last_arrival_ps: u64,
}

impl Line {
    pub(super) fn new(seed: u64, number: u64, windows: Vec<Window>) -> Self {
        let active = |(position, window): (usize, Window)| {
            let mut stream = ChaCha8Rng::seed_from_u64(seed);
            stream.set_stream(number << 20 | position as u64);
            let chance = match window.fault {
                Fault::Drop { ppm }
                | Fault::Burst { ppm, .. }
                | Fault::Duplicate { ppm }
                | Fault::Reorder { ppm, .. }
                | Fault::Corrupt { ppm } => Chance::ppm(ppm),
                _ => Chance::ppm(0),
            };
            Active { window, chance, stream, burst_left: 0, seen: 0, bytes: 0 }
        };
        Self { faults: windows.into_iter().enumerate().map(active).collect(), last_arrival_ps: 0 }
    }

    /// When a frame that could leave at this time may.
    pub(crate) fn release_ps(&self, mut at_ps: u64) -> u64 {
        // A pause may end within another; each can hold it once.
        for _ in 0..self.faults.len() {
            let paused = |f: &&Active| matches!(f.window.fault, Fault::Pause) && f.window.holds(at_ps);
            match self.faults.iter().filter(paused).map(|f| f.window.until_ps).max() {
                Some(until_ps) => at_ps = until_ps,
                None => break,
            }
        }
        at_ps
    }

    /// A frame of a priority leaves from `start_ps` to `end_ps` and would be complete at the other end at `arrival_ps`.
    ///
    /// Every fault that lasts draws, whatever the others did: what one fault does never depends on the others.
    pub(crate) fn carry(
        &mut self,
        start_ps: u64,
        end_ps: u64,
        arrival_ps: u64,
        bytes: u64,
        own_priority: usize,
    ) -> Fate {
        let length_ps = end_ps - start_ps;
        let mut fate = Fate::default();
        let mut held_ps = 0;
        for fault in &mut self.faults {
            if let Fault::Down = fault.window.fault {
                let Window { from_ps, until_ps, .. } = fault.window;
                if from_ps < until_ps && from_ps < end_ps && start_ps < until_ps {
                    fate.lost.get_or_insert(DropCause::LinkDown);
                }
                continue;
            }
            if !fault.window.holds(start_ps) {
                continue;
            }
            match fault.window.fault {
                Fault::Drop { .. } => {
                    if fault.chance.happens(&mut fault.stream) {
                        fate.lost.get_or_insert(DropCause::Random);
                    }
                }
                Fault::Burst { frames, .. } => {
                    if fault.chance.happens(&mut fault.stream) && fault.burst_left == 0 {
                        fault.burst_left = frames;
                    }
                    if fault.burst_left > 0 {
                        fault.burst_left -= 1;
                        fate.lost.get_or_insert(DropCause::Burst);
                    }
                }
                Fault::BitErrors { rate } => {
                    if fault.bytes != bytes {
                        fault.bytes = bytes;
                        fault.chance = Chance::any_bit(rate, 8 * bytes);
                    }
                    if fault.chance.happens(&mut fault.stream) {
                        fate.lost.get_or_insert(DropCause::BitError);
                    }
                }
                Fault::Frames { priority, first, count } => {
                    if usize::from(priority) == own_priority {
                        if fault.seen >= first && fault.seen - first < count {
                            fate.lost.get_or_insert(DropCause::Named);
                        }
                        fault.seen += 1;
                    }
                }
                Fault::Duplicate { .. } => fate.duplicate |= fault.chance.happens(&mut fault.stream),
                Fault::Corrupt { .. } => {
                    let seed = fault.stream.next_u64();
                    if fault.chance.happens(&mut fault.stream) {
                        fate.corrupt = Some(seed);
                    }
                }
                Fault::Reorder { behind, .. } => {
                    if fault.chance.happens(&mut fault.stream) {
                        // One picosecond more than the last of those that overtake.
                        held_ps = held_ps.max(u64::from(behind) * length_ps + 1);
                    }
                }
                Fault::Delay { extra_ps, jitter_ps } => {
                    let draw = u128::from(fault.stream.next_u64()) * (u128::from(jitter_ps) + 1);
                    fate.delay_ps += extra_ps + (draw >> 64) as u64;
                }
                Fault::Pause | Fault::Down | Fault::Up => {}
            }
        }
        if fate.lost.is_none() {
            let in_order_ps = (arrival_ps + fate.delay_ps).max(self.last_arrival_ps + length_ps);
            if held_ps == 0 {
                self.last_arrival_ps = in_order_ps;
            }
            fate.delay_ps = in_order_ps + held_ps - arrival_ps;
        }
        fate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(windows: &[(u64, u64, Fault)]) -> Line {
        let window = |&(from_ps, until_ps, fault)| Window { from_ps, until_ps, fault };
        Line::new(1, 3, windows.iter().map(window).collect())
    }

    /// Fates of frames of 100 bytes and 1000 ps, back to back, 500 ps from end to end.
    fn fates(line: &mut Line, frames: u64) -> Vec<Fate> {
        (0..frames).map(|n| line.carry(1000 * n, 1000 * (n + 1), 1000 * (n + 1) + 500, 100, n as usize % 2)).collect()
    }

    const ALWAYS: u64 = u64::MAX;

    #[test]
    fn a_fault_draws_the_same_whatever_the_others_do() {
        let drop = (0, ALWAYS, Fault::Drop { ppm: 200_000 });
        let alone = fates(&mut line(&[drop]), 1000);
        let other = (0, ALWAYS, Fault::Burst { ppm: 100_000, frames: 2 });
        let together = fates(&mut line(&[drop, other, (0, ALWAYS, Fault::Duplicate { ppm: 500_000 })]), 1000);
        for (alone, together) in alone.iter().zip(&together) {
            assert_eq!(alone.lost.is_some(), together.lost == Some(DropCause::Random));
        }
    }

    #[test]
    fn bursts_have_their_length() {
        let fates = fates(&mut line(&[(0, ALWAYS, Fault::Burst { ppm: 10_000, frames: 5 })]), 10_000);
        let runs: Vec<usize> =
            fates.chunk_by(|a, b| a.lost == b.lost).filter(|r| r[0].lost.is_some()).map(<[_]>::len).collect();
        assert!(runs.len() > 50);
        assert!(runs[..runs.len() - 1].iter().all(|run| run % 5 == 0), "{runs:?}");
    }

    #[test]
    fn named_frames_vanish_by_their_number_among_those_of_their_priority() {
        let named = Fault::Frames { priority: 1, first: 2, count: 3 };
        let fates = fates(&mut line(&[(2000, ALWAYS, named)]), 20);
        let lost: Vec<usize> =
            fates.iter().enumerate().filter(|(_, fate)| fate.lost == Some(DropCause::Named)).map(|(n, _)| n).collect();
        assert_eq!(lost, [7, 9, 11], "frames 3 and 5 get through");
    }

    #[test]
    fn jitter_keeps_order_and_distance_and_reordering_does_not() {
        let arrivals = |line: &mut Line| -> Vec<u64> {
            let fates = fates(line, 1000);
            fates.iter().enumerate().map(|(n, fate)| 1000 * (n as u64 + 1) + 500 + fate.delay_ps).collect()
        };
        let jitter = Fault::Delay { extra_ps: 10_000, jitter_ps: 30_000 };
        let times = arrivals(&mut line(&[(0, ALWAYS, jitter)]));
        assert!(times.windows(2).all(|pair| pair[0] + 1000 <= pair[1]));
        assert!(times.iter().enumerate().all(|(n, at)| *at >= 1000 * (n as u64 + 1) + 10_500));

        let times = arrivals(&mut line(&[(0, ALWAYS, Fault::Reorder { ppm: 50_000, behind: 3 })]));
        for (n, at) in times.iter().enumerate() {
            let overtaken = times[n..].iter().filter(|later| *later < at).count();
            let held = *at > 1000 * (n as u64 + 1) + 500;
            // Those that overtake may be held back themselves.
            assert!(if held { (1..=3).contains(&overtaken) || n > 990 } else { overtaken == 0 }, "{n}: {overtaken}");
        }
        assert!(times.windows(2).any(|pair| pair[0] > pair[1]));
    }

    #[test]
    fn pauses_join_and_a_line_that_goes_down_cuts_what_is_leaving() {
        let paused = line(&[(100, 200, Fault::Pause), (150, 400, Fault::Pause), (400, 401, Fault::Pause)]);
        let released: Vec<u64> = [99, 100, 199, 400, 401].map(|at| paused.release_ps(at)).to_vec();
        assert_eq!(released, [99, 401, 401, 401, 401]);

        let fates = fates(&mut line(&[(1500, 3000, Fault::Down)]), 5);
        let lost: Vec<bool> = fates.iter().map(|fate| fate.lost == Some(DropCause::LinkDown)).collect();
        assert_eq!(lost, [false, true, true, false, false]);
    }
}

//! Tournament of the cards for what happens first.

/// What comes first has the least key. No two that wait have the same, and the keys of a lane identify it.
pub(crate) type Key = u128;

/// The key of nothing.
pub(crate) const NEVER: Key = Key::MAX;

/// The first of what waits in each of many lanes, and the first of all: each lane plays against its neighbour, the
/// winner against that of the next two, and so on. A lane whose first changes plays its own few games again, against
/// opponents that are known beforehand. The table is so small that it stays in the caches of the processor, where what
/// waits does not.
#[derive(Debug, Default)]
pub(crate) struct Firsts {
    /// Winner of all at 1, and those of the games before game n at 2n and 2n + 1. Behind the games there are the lanes
    /// themselves, a power of two.
    keys: Vec<Key>,
}

impl Firsts {
    /// Has room for so many lanes; in new ones there is nothing.
    pub(crate) fn widen(&mut self, lanes: usize) {
        let (before, size) = (self.size(), lanes.next_power_of_two());
        if size <= before {
            return;
        }
        let mut keys = vec![NEVER; 2 * size];
        keys[size..size + before].copy_from_slice(&self.keys[before..]);
        for game in (1..size).rev() {
            keys[game] = keys[2 * game].min(keys[2 * game + 1]);
        }
        self.keys = keys;
    }

    fn size(&self) -> usize {
        self.keys.len() / 2
    }

    /// The key of the first of a lane.
    #[inline]
    pub(crate) fn of(&self, lane: usize) -> Key {
        self.keys.get(self.size() + lane).copied().unwrap_or(NEVER)
    }

    /// The key of the first of all.
    #[inline]
    pub(crate) fn first(&self) -> Key {
        self.keys.get(1).copied().unwrap_or(NEVER)
    }

    /// The first of a lane is another one.
    #[inline]
    pub(crate) fn set(&mut self, lane: usize, key: Key) {
        let mut at = self.size() + lane;
        let mut winner = key;
        self.keys[at] = key;
        while at > 1 {
            winner = winner.min(self.keys[at ^ 1]);
            at /= 2;
            self.keys[at] = winner;
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn the_least_key_wins() {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let mut firsts = Firsts::default();
        assert_eq!((firsts.first(), firsts.of(0)), (NEVER, NEVER));
        let mut keys = Vec::new();
        for number in 0..5_000_u32 {
            if number % 100 == 0 {
                keys.push(NEVER);
                firsts.widen(keys.len());
            }
            let lane = random.random_range(0..keys.len());
            // No two are equal.
            let key = Key::from(random.random_range(0..50_u32)) << 64 | Key::from(number) << 32 | lane as Key;
            keys[lane] = if random.random_range(0..4) == 0 { NEVER } else { key };
            firsts.set(lane, keys[lane]);
            assert_eq!(firsts.of(lane), keys[lane]);
            assert_eq!(Some(firsts.first()), keys.iter().copied().min());
        }
    }
}

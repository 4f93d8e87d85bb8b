use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

/// The registrations that exist.
#[derive(Clone, Default)]
struct Card(Rc<RefCell<(u64, BTreeSet<u64>)>>);

/// One of them: gone from the card when it is dropped.
struct Region {
    card: Card,
    id: u64,
}

impl Card {
    fn register(&self) -> Region {
        let mut inner = self.0.borrow_mut();
        inner.0 += 1;
        let id = inner.0;
        inner.1.insert(id);
        Region { card: self.clone(), id }
    }

    fn regions(&self) -> BTreeSet<u64> {
        self.0.borrow().1.clone()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        assert!(self.card.0.borrow_mut().1.remove(&self.id));
    }
}

fn range(address: u64, length: u64) -> Range {
    Range::new(address, length).unwrap()
}

fn get(cache: &mut RegistrationCache<Region>, card: &Card, address: u64, length: u64) -> Registration<Region> {
    cache.get(range(address, length), Access::LOCAL_WRITE, |_, _| Ok::<_, ()>(card.register())).unwrap()
}

#[test]
fn the_same_buffers_hit_from_the_second_time_on() {
    let (card, mut cache) = (Card::default(), RegistrationCache::new(Limits { entries: 8, bytes: 1 << 20 }));
    for _ in 0..10 {
        for buffer in 0..8 {
            get(&mut cache, &card, buffer << 20, 1 << 17);
        }
    }
    let expected = CacheStatistics { hits: 72, misses: 8, entries: 8, bytes: 1 << 20, ..CacheStatistics::default() };
    assert_eq!(cache.statistics(), expected);
}

#[test]
fn what_is_in_use_is_not_evicted_and_outlives_the_cache() {
    let (card, mut cache) = (Card::default(), RegistrationCache::new(Limits { entries: 1, bytes: 100 }));
    let held = get(&mut cache, &card, 0, 60);
    let other = get(&mut cache, &card, 1000, 200);
    assert_eq!(cache.statistics().entries, 2, "both are in use");
    drop(other);
    get(&mut cache, &card, 2000, 10);
    assert_eq!((cache.statistics().entries, cache.statistics().evictions, card.regions()), (2, 1, [1, 3].into()));
    assert_eq!(cache.trim(), 1);
    drop(cache);
    assert_eq!((held.id, held.range(), held.rights()), (1, range(0, 60), Access::LOCAL_WRITE));
    let again = held.clone();
    drop(held);
    assert_eq!(card.regions(), [1].into());
    drop(again);
    assert_eq!(card.regions(), [].into());
}

#[test]
fn the_least_recently_used_makes_way() {
    let (card, mut cache) = (Card::default(), RegistrationCache::new(Limits { entries: 2, bytes: u64::MAX }));
    get(&mut cache, &card, 0, 10);
    get(&mut cache, &card, 100, 10);
    get(&mut cache, &card, 2, 5);
    get(&mut cache, &card, 200, 10);
    assert_eq!(card.regions(), [1, 3].into(), "the first was used through a part of it");
}

#[test]
fn what_is_invalidated_is_not_found_again() {
    let (card, mut cache) = (Card::default(), RegistrationCache::new(Limits::default()));
    let held = get(&mut cache, &card, 0, 100);
    get(&mut cache, &card, 100, 100);
    assert_eq!(cache.invalidate(range(99, 1)), 1, "one is in use");
    assert_eq!((cache.statistics().entries, card.regions()), (1, [1, 2].into()));
    assert_eq!(cache.invalidate(range(150, 1 << 40)), 0);
    let new = get(&mut cache, &card, 0, 100);
    assert_eq!((held.id, new.id, cache.statistics().invalidations), (1, 3, 2));
    drop(held);
    assert_eq!(card.regions(), [3].into());
}

#[test]
fn a_registration_that_fails_leaves_nothing() {
    let (card, mut cache) = (Card::default(), RegistrationCache::new(Limits::default()));
    let failed = cache.get(range(0, 1), Access::LOCAL_WRITE, |_, _| Err::<Region, _>("out of memory"));
    assert_eq!((failed.err(), cache.statistics().entries), (Some("out of memory"), 0));
    assert_eq!(get(&mut cache, &card, 0, 1).id, 1);
    assert_eq!(cache.statistics().misses, 2);
}

#[test]
fn ranges_at_the_ends_of_the_address_space() {
    assert_eq!(Range::new(7, 0), Err(RangeError::Empty { address: 7 }));
    assert_eq!(Range::of(&[]), None);
    let beyond = Range::new(u64::MAX, 2).unwrap_err();
    assert_eq!(beyond.to_string(), "2 bytes at 0xffffffffffffffff reach beyond the address space, by 1 bytes");
    let (card, mut cache) = (Card::default(), RegistrationCache::new(Limits::default()));
    let all = range(0, u64::MAX);
    cache.get(all, Access::empty(), |_, _| Ok::<_, ()>(card.register())).unwrap();
    cache.get(range(1, u64::MAX), Access::empty(), |_, _| Ok::<_, ()>(card.register())).unwrap();
    let statistics = cache.statistics();
    assert_eq!(
        (statistics.misses, statistics.evictions, statistics.bytes),
        (2, 1, u64::MAX),
        "both are more than any limit"
    );
    cache.get(range(u64::MAX, 1), Access::empty(), |_, _| Ok::<_, ()>(card.register())).unwrap();
    assert_eq!(cache.statistics().hits, 1);
    assert_eq!(cache.invalidate(range(u64::MAX, 1)), 0);
    assert_eq!((cache.statistics().entries, card.regions()), (0, [].into()));
}

/// The same by lists and loops.
#[derive(Default)]
struct Naive {
    /// Range, rights, number of the registration, last use.
    entries: Vec<(Range, Access, u64, u64)>,
    statistics: CacheStatistics,
    requests: u64,
    registered: u64,
}

impl Naive {
    fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.0.length()).sum()
    }

    fn get(&mut self, limits: Limits, range: Range, rights: Access, held: &[u64]) -> u64 {
        self.requests += 1;
        let rank = |entry: &(Range, Access, u64, u64)| {
            let same = (entry.0, entry.1) == (range, rights);
            (same, entry.0.address(), entry.0.length(), entry.1.bits())
        };
        let fits = |entry: &&mut (Range, Access, u64, u64)| entry.0.contains(range) && entry.1.contains(rights);
        if let Some(found) = self.entries.iter_mut().filter(fits).max_by_key(|entry| rank(entry)) {
            self.statistics.hits += 1;
            found.3 = self.requests;
            return found.2;
        }
        self.statistics.misses += 1;
        while self.entries.len() >= limits.entries || self.bytes() + range.length() > limits.bytes {
            let unused = self.entries.iter().filter(|entry| !held.contains(&entry.2));
            let Some(oldest) = unused.min_by_key(|entry| entry.3).map(|entry| entry.2) else { break };
            self.entries.retain(|entry| entry.2 != oldest);
            self.statistics.evictions += 1;
        }
        self.registered += 1;
        self.entries.push((range, rights, self.registered, self.requests));
        self.registered
    }

    fn invalidate(&mut self, range: Range, held: &[u64]) -> usize {
        let (gone, kept) = std::mem::take(&mut self.entries).into_iter().partition(|entry| entry.0.overlaps(range));
        self.entries = kept;
        self.statistics.invalidations += Vec::len(&gone) as u64;
        gone.iter().filter(|entry| held.contains(&entry.2)).count()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Get { range: Range, rights: Access, keep: bool },
    LetGo(prop::sample::Index),
    Invalidate(Range),
    Trim,
}

fn any_range() -> impl Strategy<Value = Range> {
    // Few addresses, so that ranges meet.
    (0u64..40, prop_oneof![1u64..4, 1u64..40]).prop_map(|(address, length)| range(address, length))
}

fn any_step() -> impl Strategy<Value = Step> {
    let get = (any_range(), 0u32..8, any::<bool>()).prop_map(|(range, rights, keep)| Step::Get {
        range,
        rights: Access::from_bits_retain(rights),
        keep,
    });
    prop_oneof![
        8 => get,
        3 => any::<prop::sample::Index>().prop_map(Step::LetGo),
        1 => any_range().prop_map(Step::Invalidate),
        1 => Just(Step::Trim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn does_what_lists_and_loops_do(
        entries in 1usize..8, bytes in 1u64..100, steps in proptest::collection::vec(any_step(), 1..120),
    ) {
        let limits = Limits { entries, bytes };
        let (card, mut cache, mut naive) = (Card::default(), RegistrationCache::new(limits), Naive::default());
        let mut guards: Vec<Registration<Region>> = Vec::new();
        for step in steps {
            let held: Vec<u64> = guards.iter().map(|guard| guard.id).collect();
            match step {
                Step::Get { range, rights, keep } => {
                    let guard = cache.get(range, rights, |_, _| Ok::<_, ()>(card.register())).unwrap();
                    prop_assert_eq!(guard.id, naive.get(limits, range, rights, &held));
                    prop_assert!(guard.range().contains(range) && guard.rights().contains(rights));
                    if keep {
                        guards.push(guard);
                    }
                }
                Step::LetGo(index) if !guards.is_empty() => {
                    guards.swap_remove(index.index(guards.len()));
                }
                Step::LetGo(_) => {}
                Step::Invalidate(range) => prop_assert_eq!(cache.invalidate(range), naive.invalidate(range, &held)),
                Step::Trim => {
                    let before = naive.entries.len();
                    naive.entries.retain(|entry| held.contains(&entry.2));
                    naive.statistics.evictions += (before - naive.entries.len()) as u64;
                    prop_assert_eq!(cache.trim(), before - naive.entries.len());
                }
            }
            let expected = CacheStatistics { entries: naive.entries.len(), bytes: naive.bytes(), ..naive.statistics };
            prop_assert_eq!(cache.statistics(), expected);
            // What is registered is what is kept or held, and nothing else.
            let alive = naive.entries.iter().map(|entry| entry.2).chain(guards.iter().map(|guard| guard.id));
            prop_assert_eq!(card.regions(), alive.collect::<BTreeSet<_>>());
        }
        drop((cache, guards));
        prop_assert_eq!(card.regions(), BTreeSet::new());
    }
}

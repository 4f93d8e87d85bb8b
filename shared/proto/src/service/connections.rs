//! Cache of connections of a service process to other ones: at most one set-up per pair, bounded, with eviction of what
//! is idle.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use thiserror::Error;

/// Connections of one process to its peers, as a state machine without IO. `P` names a process; both ends of a pair
/// order names alike.
///
/// What wants to go to a peer asks for its connection ([`Connections::acquire`]), and gives it back when it is through
/// ([`Connections::release`]). What holds a connection must not wait for another one: a message or a transfer holds
/// one, a collective does not. Then nobody waits for ever.
///
/// Connections that this side has set up and those that it has accepted have room of their own. Were it shared,
/// processes in a circle could each fill theirs with set-ups that the next one has no room for.
///
/// Where there is no room for a new connection, the one that has not been used for longest gives way; an idle one
/// before one that is in use, which takes nothing new and goes once it is idle. A connection ends when both sides have
/// said that they send nothing more (GOODBYE), so that nothing is lost on it.
///
/// Actions are carried out in order, before the next event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Connections<P: Ord> {
    own: P,
    limit: u32,
    peers: BTreeMap<P, Peer>,
    /// Counted up with each use, to know which is older.
    time: u64,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Peer {
    state: State,
    /// What holds the connection.
    users: u32,
    /// What waits for it, or for the one after it.
    queued: u32,
    /// When it was last asked for.
    last: u64,
    side: Side,
}

/// Whose room a connection takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Side {
    /// That of own set-ups.
    Own,
    /// That of connections which peers have set up.
    Accepted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// There is no room yet.
    Wanted,
    /// A set-up is under way: the own one, or that of the peer, which has precedence.
    Connecting,
    Ready,
    /// It is to end: whether this side has said so, and the other.
    Ending {
        said: bool,
        received: bool,
    },
}

/// What a process has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionAction<P> {
    /// Set up a connection; then [`Connections::connected`], [`Connections::crossed`] or [`Connections::failed`].
    Connect(P),
    /// Give the own set-up up: the peer's is there.
    Cancel(P),
    /// Send GOODBYE, behind everything else.
    Goodbye(P),
    /// Free the connection: both sides have said that they send nothing more.
    Close(P),
}

/// Whether something can go to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// At once.
    Ready,
    /// When [`Connections::connected`] or [`Connections::accepted`] says that so many can.
    Later,
}

/// A connection that is not there and cannot be made now. Nothing has changed, but that an idle connection may give
/// way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConnectionError {
    /// No room for a connection, or for a peer that waits for one.
    #[error(
        "there is no room for more than {limit} connections, or peers that wait for one: try it again later, or raise \
         the limit"
    )]
    Full {
        /// Most connections of each side, and most peers that wait.
        limit: u32,
    },
    /// Both have begun to set a connection up; that of this side has precedence.
    #[error("both sides set up a connection, and the one of the smaller name is kept: wait for it")]
    Crossing,
    /// The peer has a connection already.
    #[error("the peer has a connection already: end that first")]
    Twice,
    /// No limit of connections can be 0.
    #[error("a limit of 0 connections: give at least 1")]
    Limit,
}

/// What a cache has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Uses that found a connection.
    pub hits: u64,
    /// Uses that found none, and had to wait for a set-up.
    pub misses: u64,
    /// Set-ups that this side has begun.
    pub set_ups: u64,
    /// Connections that the peers have set up.
    pub accepted: u64,
    /// Connections that this side has ended for others.
    pub evictions: u64,
    /// Messages and events that do not fit the state of their peer. They have changed nothing.
    pub ignored: u64,
}

impl Counts {
    /// Hits of all uses, 0 to 1; none before the first use.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        let uses = self.hits + self.misses;
        (uses > 0).then(|| self.hits as f64 / uses as f64)
    }
}

impl<P: Copy + Ord> Connections<P> {
    /// No connections yet. `limit`: most own ones at once, set-ups included, and most that have been accepted; as many
    /// peers may wait for one.
    ///
    /// # Errors
    /// A limit of 0.
    pub const fn new(own: P, limit: u32) -> Result<Self, ConnectionError> {
        if limit == 0 {
            return Err(ConnectionError::Limit);
        }
        let counts = Counts { hits: 0, misses: 0, set_ups: 0, accepted: 0, evictions: 0, ignored: 0 };
        Ok(Self { own, limit, peers: BTreeMap::new(), time: 0, counts })
    }

    /// Something wants to go to a peer. It holds the connection from now on, or from when it is there, until
    /// [`Connections::release`].
    ///
    /// # Errors
    /// There is no room even to wait.
    pub fn acquire(&mut self, peer: P, actions: &mut Vec<ConnectionAction<P>>) -> Result<Access, ConnectionError> {
        if !self.peers.contains_key(&peer) && self.wanted() >= self.limit {
            return Err(ConnectionError::Full { limit: self.limit });
        }
        self.time += 1;
        let new = Peer { state: State::Wanted, users: 0, queued: 0, last: self.time, side: Side::Own };
        let entry = self.peers.entry(peer).or_insert(new);
        entry.last = self.time;
        if entry.state == State::Ready {
            entry.users += 1;
            self.counts.hits += 1;
            return Ok(Access::Ready);
        }
        entry.queued += 1;
        self.counts.misses += 1;
        self.make_room(actions);
        Ok(Access::Later)
    }

    /// One of those that hold the connection of a peer is through.
    pub fn release(&mut self, peer: P, actions: &mut Vec<ConnectionAction<P>>) {
        match self.peers.get_mut(&peer) {
            Some(entry) if entry.users > 0 => entry.users -= 1,
            _ => {
                self.counts.ignored += 1;
                return;
            }
        }
        self.end(peer, actions);
        self.make_room(actions);
    }

    /// The own set-up is over, well: how many can go now.
    pub fn connected(&mut self, peer: P) -> u32 {
        match self.peers.get_mut(&peer) {
            Some(entry) if entry.state == State::Connecting => entry.begin(),
            _ => {
                self.counts.ignored += 1;
                0
            }
        }
    }

    /// The peer has refused the own set-up, because its own has precedence. It comes; who bounds the wait says
    /// [`Connections::failed`] in the end.
    pub fn crossed(&mut self, peer: P) {
        if self.peers.get(&peer).is_none_or(|entry| entry.state != State::Connecting) {
            self.counts.ignored += 1;
        }
    }

    /// The own set-up has failed: how many have waited for it, and cannot go.
    pub fn failed(&mut self, peer: P, actions: &mut Vec<ConnectionAction<P>>) -> u32 {
        match self.peers.get(&peer) {
            Some(entry) if entry.state == State::Connecting => self.lost(peer, actions),
            _ => {
                self.counts.ignored += 1;
                0
            }
        }
    }

    /// The peer has set up a connection: how many can go now. The acceptance itself holds the connection too, until it
    /// is sent to the peer; then [`Connections::release`].
    ///
    /// # Errors
    /// The own set-up has precedence, there is no room, or there is a connection. The peer's set-up is to be refused,
    /// with that as the reason.
    pub fn accepted(&mut self, peer: P, actions: &mut Vec<ConnectionAction<P>>) -> Result<u32, ConnectionError> {
        let is_first = self.own < peer;
        match self.peers.get(&peer).map(|entry| entry.state) {
            None | Some(State::Wanted) if self.taken(Side::Accepted) >= self.limit => {
                // One that ends makes the room for which the peer comes again.
                if self.ending(Side::Accepted) == 0 {
                    self.evict(Side::Accepted, actions);
                }
                return Err(ConnectionError::Full { limit: self.limit });
            }
            None | Some(State::Wanted) => {}
            Some(State::Connecting) if is_first => return Err(ConnectionError::Crossing),
            Some(State::Connecting) => actions.push(ConnectionAction::Cancel(peer)),
            // It has ended the old one, since it has received this side's goodbye; its own is still on the way.
            Some(State::Ending { said: true, .. }) => actions.push(ConnectionAction::Close(peer)),
            Some(State::Ready | State::Ending { said: false, .. }) => return Err(ConnectionError::Twice),
        }
        self.time += 1;
        self.counts.accepted += 1;
        let new = Peer { state: State::Wanted, users: 0, queued: 0, last: self.time, side: Side::Accepted };
        let entry = self.peers.entry(peer).or_insert(new);
        // In the place of an own set-up or of an old connection it takes the room of that.
        if entry.state == State::Wanted {
            entry.side = Side::Accepted;
        }
        let granted = entry.begin();
        entry.users += 1;
        self.make_room(actions);
        Ok(granted)
    }

    /// The peer sends nothing more.
    pub fn goodbye(&mut self, peer: P, actions: &mut Vec<ConnectionAction<P>>) {
        match self.peers.get_mut(&peer).map(|entry| &mut entry.state) {
            Some(state @ State::Ready) => *state = State::Ending { said: false, received: true },
            Some(State::Ending { received: received @ false, .. }) => *received = true,
            _ => {
                self.counts.ignored += 1;
                return;
            }
        }
        self.end(peer, actions);
        self.make_room(actions);
    }

    /// The connection is gone without a goodbye, or the peer is: how many have held it or waited for it, and cannot go.
    pub fn lost(&mut self, peer: P, actions: &mut Vec<ConnectionAction<P>>) -> u32 {
        let Some(entry) = self.peers.remove(&peer) else {
            self.counts.ignored += 1;
            return 0;
        };
        self.make_room(actions);
        entry.users + entry.queued
    }

    /// Says goodbye once nothing holds a connection that is to end, and frees it once the peer has said so too.
    fn end(&mut self, peer: P, actions: &mut Vec<ConnectionAction<P>>) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let State::Ending { said, received } = &mut entry.state else { return };
        if entry.users == 0 && !*said {
            *said = true;
            actions.push(ConnectionAction::Goodbye(peer));
        }
        if !(*said && *received) {
            return;
        }
        actions.push(ConnectionAction::Close(peer));
        if entry.queued > 0 {
            (entry.state, entry.side) = (State::Wanted, Side::Own);
        } else {
            self.peers.remove(&peer);
        }
    }

    /// Begins set-ups where there is room, and makes room where there is none.
    fn make_room(&mut self, actions: &mut Vec<ConnectionAction<P>>) {
        while self.taken(Side::Own) < self.limit
            && let Some((&peer, entry)) = self
                .peers
                .iter_mut()
                .filter(|(_, entry)| entry.state == State::Wanted)
                .min_by_key(|(_, entry)| entry.last)
        {
            entry.state = State::Connecting;
            self.counts.set_ups += 1;
            actions.push(ConnectionAction::Connect(peer));
        }
        // What ends already makes room for as many.
        while self.ending(Side::Own) < self.wanted() && self.evict(Side::Own, actions) {}
    }

    /// Lets one connection of a side end. False if there is none.
    fn evict(&mut self, side: Side, actions: &mut Vec<ConnectionAction<P>>) -> bool {
        let ready = self.peers.iter_mut().filter(|(_, entry)| entry.state == State::Ready && entry.side == side);
        let Some((&peer, entry)) = ready.min_by_key(|(_, entry)| (entry.users > 0, entry.last)) else { return false };
        entry.state = State::Ending { said: false, received: false };
        self.counts.evictions += 1;
        self.end(peer, actions);
        true
    }

    fn count(&self, of: impl Fn(&Peer) -> bool) -> u32 {
        self.peers.values().filter(|entry| of(entry)).count() as u32
    }

    fn wanted(&self) -> u32 {
        self.count(|entry| entry.state == State::Wanted)
    }

    fn ending(&self, side: Side) -> u32 {
        self.count(|entry| matches!(entry.state, State::Ending { .. }) && entry.side == side)
    }

    fn taken(&self, side: Side) -> u32 {
        self.count(|entry| entry.state != State::Wanted && entry.side == side)
    }

    /// Connections that are there or set up: at most twice the limit.
    #[must_use]
    pub fn there(&self) -> u32 {
        self.taken(Side::Own) + self.taken(Side::Accepted)
    }

    /// What has been counted so far, the hit rate among it.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }
}

impl Peer {
    /// The connection is there: who has waited holds it.
    fn begin(&mut self) -> u32 {
        let granted = core::mem::take(&mut self.queued);
        self.users = granted;
        self.state = State::Ready;
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString as _;

    /// A cache with connections to these peers, which nothing holds.
    fn with(limit: u32, peers: &[u32]) -> (Connections<u32>, Vec<ConnectionAction<u32>>) {
        let (mut cache, mut actions) = (Connections::new(10, limit).unwrap(), Vec::new());
        for peer in peers {
            assert_eq!(cache.acquire(*peer, &mut actions), Ok(Access::Later));
            assert_eq!(cache.connected(*peer), 1);
            cache.release(*peer, &mut actions);
        }
        actions.clear();
        (cache, actions)
    }

    #[test]
    fn a_pair_is_set_up_once() {
        let (mut cache, mut actions) = (Connections::new(10, 4).unwrap(), Vec::new());
        for _ in 0..3 {
            assert_eq!(cache.acquire(1, &mut actions), Ok(Access::Later));
        }
        assert_eq!((&actions[..], cache.connected(1)), (&[ConnectionAction::Connect(1)][..], 3));
        for _ in 0..9 {
            assert_eq!(cache.acquire(1, &mut actions), Ok(Access::Ready));
        }
        let counts = cache.counts();
        assert_eq!((counts.hits, counts.misses, counts.set_ups, counts.hit_rate()), (9, 3, 1, Some(0.75)));
        assert_eq!((actions.len(), Counts::default().hit_rate()), (1, None));
    }

    #[test]
    fn the_idle_one_that_is_oldest_gives_way() {
        let (mut cache, mut actions) = with(3, &[1, 2, 3]);
        assert_eq!(cache.acquire(1, &mut actions), Ok(Access::Ready));
        cache.release(1, &mut actions);
        assert_eq!(cache.acquire(2, &mut actions), Ok(Access::Ready));
        // 2 is held; of 1 and 3, which are idle, 3 is older.
        assert_eq!(cache.acquire(4, &mut actions), Ok(Access::Later));
        assert_eq!(actions, [ConnectionAction::Goodbye(3)]);
        cache.goodbye(3, &mut actions);
        assert_eq!(actions[1..], [ConnectionAction::Close(3), ConnectionAction::Connect(4)]);
        assert_eq!((cache.there(), cache.counts().evictions), (3, 1));
    }

    /// What is in flight stays: a connection that is held ends when it is given back, and not before.
    #[test]
    fn what_is_held_is_not_evicted() {
        let (mut cache, mut actions) = with(1, &[1]);
        assert_eq!(cache.acquire(1, &mut actions), Ok(Access::Ready));
        assert_eq!(cache.acquire(2, &mut actions), Ok(Access::Later));
        assert_eq!(actions, []);
        // Nothing new goes on it, or who waits would wait for ever.
        assert_eq!(cache.acquire(1, &mut actions), Ok(Access::Later));
        cache.release(1, &mut actions);
        assert_eq!(actions, [ConnectionAction::Goodbye(1)]);
        cache.goodbye(1, &mut actions);
        assert_eq!(actions[1..], [ConnectionAction::Close(1), ConnectionAction::Connect(2)]);
        assert_eq!(cache.connected(2), 1);
        actions.clear();
        cache.release(2, &mut actions);
        cache.goodbye(2, &mut actions);
        assert_eq!(actions, [ConnectionAction::Goodbye(2), ConnectionAction::Close(2), ConnectionAction::Connect(1)]);
    }

    #[test]
    fn set_ups_that_cross_become_one() {
        let (mut cache, mut actions) = (Connections::new(10, 4).unwrap(), Vec::new());
        for peer in [1, 20] {
            assert_eq!(cache.acquire(peer, &mut actions), Ok(Access::Later));
        }
        actions.clear();
        // 1 < 10 < 20: the smaller one's is kept.
        cache.crossed(1);
        assert_eq!((cache.accepted(1, &mut actions), &actions[..]), (Ok(1), &[ConnectionAction::Cancel(1)][..]));
        assert_eq!(cache.accepted(20, &mut actions), Err(ConnectionError::Crossing));
        assert_eq!((cache.connected(20), cache.accepted(20, &mut actions)), (1, Err(ConnectionError::Twice)));
        assert_eq!(cache.counts().ignored, 0);
    }

    #[test]
    fn limits_and_losses_are_reported() {
        let (mut cache, mut actions) = with(1, &[1]);
        assert_eq!(cache.acquire(1, &mut actions), Ok(Access::Ready));
        assert_eq!(cache.acquire(2, &mut actions), Ok(Access::Later));
        let full = cache.acquire(3, &mut actions).unwrap_err();
        assert_eq!(
            full.to_string(),
            "there is no room for more than 1 connections, or peers that wait for one: try it again later, or raise \
             the limit"
        );
        assert_eq!((cache.accepted(3, &mut actions), cache.accepted(4, &mut actions)), (Ok(0), Err(full)));
        cache.release(3, &mut actions);
        assert_eq!((actions.pop(), cache.there()), (Some(ConnectionAction::Goodbye(3)), 2));
        assert_eq!((cache.lost(1, &mut actions), &actions[..]), (1, &[ConnectionAction::Connect(2)][..]));
        assert_eq!((cache.failed(2, &mut actions), cache.there()), (1, 1));
        assert_eq!(Connections::new(1, 0), Err(ConnectionError::Limit));
        cache.release(7, &mut actions);
        cache.goodbye(7, &mut actions);
        cache.crossed(7);
        assert_eq!((cache.connected(7), cache.failed(7, &mut actions), cache.lost(7, &mut actions)), (0, 0, 0));
        assert_eq!(cache.counts().ignored, 6);
    }

    /// A peer that connects finds room the next time, where something idle can give way.
    #[test]
    fn who_is_refused_for_lack_of_room_finds_it_later() {
        let (mut cache, mut actions) = with(1, &[1]);
        assert_eq!(cache.accepted(2, &mut actions), Ok(0));
        for _ in 0..2 {
            assert_eq!(cache.accepted(3, &mut actions), Err(ConnectionError::Full { limit: 1 }));
        }
        assert_eq!(actions, []);
        cache.release(2, &mut actions);
        // Own connections stay.
        assert_eq!(actions, [ConnectionAction::Goodbye(2)]);
        cache.goodbye(2, &mut actions);
        assert_eq!((actions.pop(), cache.accepted(3, &mut actions)), (Some(ConnectionAction::Close(2)), Ok(0)));
    }
}

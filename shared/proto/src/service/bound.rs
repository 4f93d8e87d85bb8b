//! A key that a program binds to one region after another, at the service process that has its alias.
//!
//! The program binds the key by a work request of its own, and announces number and region. The process makes nothing
//! for it: the alias is there. It lets go of a binding only when nothing can go by the alias any more, since what is
//! late would reach the next region:
//!
//! - Transfers of its own, and calls of Alltoallv and Allgatherv that name the region, it knows.
//!   [`Action::Complete`](super::Action::Complete) says that peers have read, too. It waits for their ends.
//! - What ranks of staged collectives have from other processes is known from flags in the rank's own memory alone. So
//!   the program says whether all of its calls have ended well ([`Body::KeyRevoke`](super::wire::Body::KeyRevoke)).
//! - A call that has failed leaves Reads of peers behind that nobody counts. Then the alias is destroyed, so that they
//!   fail, and another one takes its place.

use super::wire::KeyRefusal;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Free,
    Bound,
    /// The program has taken it back, and something still uses it.
    Leaving,
}

/// A key of a program's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BoundKey {
    generation: u32,
    state: State,
    /// A call that names it has failed.
    is_doubtful: bool,
}

/// What is to be done with a binding that the program takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LettingGo {
    /// It is not there: an older one, or one that was refused. KEY-REVOKED says so, and nothing changes.
    Unknown,
    /// Something of this process uses it: [`BoundKey::settle`] is asked when that is over.
    Waits,
    /// Nothing uses it: KEY-REVOKED.
    Now,
    /// Something may use it that nobody counts: another alias takes the place of the key's, then KEY-REVOKED.
    Replace,
}

impl Default for BoundKey {
    fn default() -> Self {
        Self::new()
    }
}

impl BoundKey {
    /// A key that has had no binding.
    #[must_use]
    pub const fn new() -> Self {
        Self { generation: 0, state: State::Free, is_doubtful: false }
    }

    /// Number of the binding that calls may name, if there is one.
    #[must_use]
    pub const fn binding(&self) -> Option<u32> {
        match self.state {
            State::Bound => Some(self.generation),
            State::Free | State::Leaving => None,
        }
    }

    /// Number of the last binding, whether it is there or not; 0 before the first.
    #[must_use]
    pub const fn last(&self) -> u32 {
        self.generation
    }

    /// The program has bound the key.
    ///
    /// # Errors
    /// A number that is not above the last one; a binding that has not been let go of. Nothing has changed.
    pub const fn bind(&mut self, generation: u32) -> Result<(), KeyRefusal> {
        let known = self.generation;
        if generation <= known {
            return Err(KeyRefusal::Generation { known });
        }
        if !matches!(self.state, State::Free) {
            return Err(KeyRefusal::Bound { generation: known });
        }
        *self = Self { generation, state: State::Bound, is_doubtful: false };
        Ok(())
    }

    /// A call that names a binding has failed: peers may still read or write by its alias.
    pub const fn doubt(&mut self, generation: u32) {
        self.is_doubtful |= generation == self.generation && !matches!(self.state, State::Free);
    }

    /// The program takes a binding back. `is_idle`: it says that all of its calls have ended well. `in_use`: a call or
    /// a transfer of this process uses it.
    pub const fn revoke(&mut self, generation: u32, is_idle: bool, in_use: bool) -> LettingGo {
        if generation != self.generation || !matches!(self.state, State::Bound) {
            return LettingGo::Unknown;
        }
        self.state = State::Leaving;
        self.is_doubtful |= !is_idle;
        self.settle(in_use)
    }

    /// Whether a binding that was taken back can be let go of by now. It can only once.
    pub const fn settle(&mut self, in_use: bool) -> LettingGo {
        match (self.state, self.is_doubtful, in_use) {
            (State::Free | State::Bound, ..) => LettingGo::Unknown,
            (State::Leaving, true, _) => {
                self.state = State::Free;
                LettingGo::Replace
            }
            (State::Leaving, false, true) => LettingGo::Waits,
            (State::Leaving, false, false) => {
                self.state = State::Free;
                LettingGo::Now
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_follows_another_one_that_was_let_go_of() {
        let mut key = BoundKey::new();
        assert_eq!((key.binding(), key.bind(0)), (None, Err(KeyRefusal::Generation { known: 0 })));
        assert_eq!((key.bind(1), key.binding()), (Ok(()), Some(1)));
        assert_eq!(key.bind(1), Err(KeyRefusal::Generation { known: 1 }), "bound twice");
        assert_eq!(key.bind(2), Err(KeyRefusal::Bound { generation: 1 }));
        assert_eq!(key.revoke(1, true, true), LettingGo::Waits);
        assert_eq!(key.binding(), None, "calls name it no more");
        assert_eq!(key.bind(2), Err(KeyRefusal::Bound { generation: 1 }));
        assert_eq!(key.revoke(1, true, false), LettingGo::Unknown, "taken back twice");
        assert_eq!((key.settle(true), key.settle(false)), (LettingGo::Waits, LettingGo::Now));
        assert_eq!((key.settle(false), key.bind(2)), (LettingGo::Unknown, Ok(())));
        assert_eq!(key.revoke(1, true, false), LettingGo::Unknown, "of the binding before");
        key.doubt(1);
        assert_eq!(key.revoke(2, true, false), LettingGo::Now);
    }

    #[test]
    fn what_nobody_counts_costs_the_alias() {
        let mut key = BoundKey::new();
        assert_eq!(key.bind(1), Ok(()));
        assert_eq!(key.revoke(1, false, true), LettingGo::Replace, "the program has calls under way");
        assert_eq!(key.bind(2), Ok(()));
        key.doubt(2);
        assert_eq!(key.revoke(2, true, false), LettingGo::Replace, "a call has failed here");
        assert_eq!(key.bind(3), Ok(()));
        assert_eq!(key.revoke(3, true, true), LettingGo::Waits);
        key.doubt(3);
        assert_eq!(key.settle(false), LettingGo::Replace, "a call has failed meanwhile");
    }
}

//! A shared path: one thing at a time, each for the same while. What arrives while it is busy waits; nothing else
//! models contention.

/// One path. Times are in [units](crate::unit).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Server {
    service: u64,
    free_at: u64,
}

impl Server {
    /// A path that takes `service` units for each; 0 never makes anyone wait.
    #[must_use]
    pub const fn new(service: u64) -> Self {
        Server { service, free_at: 0 }
    }

    /// Something arrives at `at`; returns when its service begins.
    #[inline]
    pub fn enter(&mut self, at: u64) -> u64 {
        let begins = at.max(self.free_at);
        self.free_at = begins + self.service;
        begins
    }

    /// When it is idle again.
    #[must_use]
    pub const fn free_at(&self) -> u64 {
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_limit_and_idle_time_is_not_made_up_for() {
        let mut path = Server::new(10);
        assert_eq!([0, 0, 5, 100, 101].map(|at| path.enter(at)), [0, 10, 20, 100, 110]);
        assert_eq!(path.free_at(), 120);
        let mut free = Server::new(0);
        assert_eq!([7, 7, 3].map(|at| free.enter(at)), [7, 7, 7]);
    }
}

//! Reads of a service process: those under way, never more than a limit, and those that wait.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::message::{Action, ContextId, Read};

/// Reads of all collectives of one service process, started in the order in which they were asked for.
///
/// Those that wait are bounded by admission: each is one block of one rank that the process serves, in one of the
/// collectives that may be under way ([`Limits::announcements`](super::Limits)).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reads {
    limit: u32,
    active: BTreeMap<(ContextId, u32, u32), Read>,
    waiting: VecDeque<(ContextId, Read)>,
}

impl Reads {
    pub(super) const fn new(limit: u32) -> Self {
        Self { limit, active: BTreeMap::new(), waiting: VecDeque::new() }
    }

    pub(super) fn ask(&mut self, context: ContextId, read: Read, actions: &mut Vec<Action>) {
        self.waiting.push_back((context, read));
        self.start(actions);
    }

    fn start(&mut self, actions: &mut Vec<Action>) {
        while (self.active.len() as u64) < u64::from(self.limit)
            && let Some((context, read)) = self.waiting.pop_front()
        {
            self.active.insert((context, read.source, read.target), read);
            actions.push(Action::Read { context, read });
        }
    }

    /// A Read is over, and the next begins. The Read; none if it was not under way.
    pub(super) fn finish(
        &mut self,
        context: ContextId,
        source: u32,
        target: u32,
        actions: &mut Vec<Action>,
    ) -> Option<Read> {
        let read = self.active.remove(&(context, source, target))?;
        self.start(actions);
        Some(read)
    }

    /// Forgets the Reads that have not begun.
    pub(super) fn cancel(&mut self, of: impl Fn(ContextId) -> bool) {
        self.waiting.retain(|(context, _)| !of(*context));
    }

    pub(super) fn is_active(&self, of: impl Fn(ContextId) -> bool) -> bool {
        self.active.keys().any(|(context, ..)| of(*context))
    }

    pub(super) fn active(&self) -> u32 {
        self.active.len() as u32
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::message::Region;

    const CONTEXT: ContextId = ContextId { group: 1, collective: 2 };

    fn read(source: u32) -> Read {
        let region = Region { address: 0, key: 0, bytes: 1 };
        Read { source, holder: source, target: 9, from: region, to: region }
    }

    #[test]
    fn the_next_begins_when_one_is_over() {
        let (mut reads, mut actions) = (Reads::new(2), Vec::new());
        for source in 0..4 {
            reads.ask(CONTEXT, read(source), &mut actions);
        }
        assert_eq!((actions.len(), reads.active(), reads.waiting()), (2, 2, 2));
        assert_eq!(reads.finish(CONTEXT, 3, 9, &mut actions), None);
        assert_eq!(reads.finish(CONTEXT, 1, 9, &mut actions), Some(read(1)));
        assert_eq!(actions.last(), Some(&Action::Read { context: CONTEXT, read: read(2) }));
        assert_eq!((reads.active(), reads.waiting()), (2, 1));
        reads.cancel(|context| context == CONTEXT);
        assert_eq!(reads.finish(CONTEXT, 0, 9, &mut actions), Some(read(0)));
        assert_eq!((actions.len(), reads.active()), (3, 1));
    }
}

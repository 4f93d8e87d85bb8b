//! Other processes of the host, by their numbers.

use std::os::fd::OwnedFd;

use emu_nic::{AsyncEvent, QueueMemory, Space};

use crate::card::Card;
use crate::host_process::HostProcess;
use crate::ranges::Ranges;
use crate::world::World;

impl World {
    /// Another process of the host begins to use the cards: gives the number of its memory ([`Space::HostProcess`]).
    /// `end` is a descriptor of it that is readable once it has ended: then its memory is not reached, whoever is given
    /// its PID.
    pub fn add_host_process(&mut self, pid: i32, end: Option<OwnedFd>) -> u32 {
        let processes = &mut self.host_processes;
        let number = processes.next;
        processes.next += 1;
        processes.by_number.insert(number, HostProcess { pid, end, ranges: Ranges::default() });
        number
    }

    /// The number of the memory of this process itself, for ranges of which bytes may be absent: that they are there is
    /// found out at each access, as of other processes (on-demand paging).
    pub fn own_pages(&mut self) -> u32 {
        if let Some(number) = self.host_processes.own {
            return number;
        }
        let number = self.add_host_process(std::process::id().cast_signed(), None);
        self.host_processes.own = Some(number);
        number
    }

    /// It does so no more: the cards do not reach its memory from now on.
    pub fn remove_host_process(&mut self, number: u32) {
        self.host_processes.by_number.remove(&number);
    }

    /// The registered memory of another process.
    pub fn host_process(&mut self, number: u32) -> Option<&mut HostProcess> {
        self.host_processes.by_number.get_mut(&number)
    }

    /// Whether the program of this process is notified of a queue's failure: not if the queue is another process's.
    pub(crate) fn is_notified(&self, card: usize, event: AsyncEvent) -> bool {
        let Some(Card { nic, .. }) = self.cards.get(card).filter(|_| !self.host_processes.by_number.is_empty()) else {
            return true;
        };
        let place = match event {
            AsyncEvent::CqError { cqn, .. } => nic.query_cq(cqn).map(|attr| attr.ring),
            AsyncEvent::QpFatal { qpn, .. } | AsyncEvent::LastReceive { qpn } => {
                nic.query_qp(qpn).ok().map(|query| query.attr.doorbell_record)
            }
            AsyncEvent::SrqError { srqn, .. } | AsyncEvent::SrqLimit { srqn } => {
                nic.query_srq(srqn).ok().map(|progress| progress.attr.ring)
            }
            AsyncEvent::UnknownQueue { .. } => None,
        };
        !matches!(place, Some(QueueMemory { space: Space::HostProcess(_), .. }))
    }

    /// Other processes that use the cards.
    #[must_use]
    pub fn host_process_count(&self) -> usize {
        self.host_processes.by_number.len() - usize::from(self.host_processes.own.is_some())
    }
}

//! Standing of a thread, for a host that asks: whom it waits for, and whether all workers have their answers.

use core::mem::offset_of;

use dpa::abi::{SPARSE_LOOK_UNANSWERED, SparseOperation, SparseReport, SparseStatus};
use dpa::{HostLine, WindowCell, error, fatal, fence};

use super::Served;

impl Served<'_> {
    /// Answers the host's question ([`SparseOperation::question`]), unless it has been answered.
    #[cold]
    #[inline(never)]
    pub(super) fn answer_inquiry(&mut self) {
        let Some(instance) = self.instances.get(0) else { return };
        let line = HostLine::<SparseOperation>::attach(&instance.operation);
        let question = line.load_at::<{ offset_of!(SparseOperation, question) }>();
        if question == self.state.answered {
            return;
        }
        self.state.answered = question;
        let answer = question << 32 | self.standing();
        let cell: WindowCell<SparseReport> =
            self.window.cell(self.report_host).unwrap_or_else(|_| fatal(error::NO_RESOURCE));
        cell.store_at::<{ offset_of!(SparseReport, look) }>(answer);
        fence::window_writeback();
    }

    /// The lower 32 bits of [`SparseReport::look`].
    fn standing(&mut self) -> u64 {
        let (mut awaited, mut unanswered) = (0, 0);
        for instance in self.instances.iter_mut() {
            let state = &instance.state;
            if state.status != SparseStatus::Running as u32 {
                continue;
            }
            let waits = state.iteration > 0 || state.arrived > 0;
            let workers = self.peers.iter_mut().skip(instance.first_peer as usize).take(instance.workers as usize);
            for (worker, peer) in (1..).zip(workers) {
                if awaited == 0 && waits && peer.received == state.answers {
                    awaited = worker;
                }
                if peer.completed != peer.produced {
                    unanswered = SPARSE_LOOK_UNANSWERED;
                }
            }
        }
        unanswered | awaited
    }
}

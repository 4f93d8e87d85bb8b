//! Context of one step of the card.

use crate::effects::Effects;
use crate::log::Log;
use crate::memory::Dma;

/// What a step of an engine works with: its time, the memories, what follows from it, and the log.
pub(crate) struct Cx<'a> {
    pub(crate) now_ps: u64,
    pub(crate) mem: &'a mut dyn Dma,
    pub(crate) fx: &'a mut Effects,
    pub(crate) log: &'a mut Log,
}

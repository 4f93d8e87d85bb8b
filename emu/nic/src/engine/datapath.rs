//! Parts of the card that requester and responder share.

use super::completions::Completions;
use super::pcie::Pcie;
use super::port::Port;
use crate::groups::Groups;
use crate::keys::Keys;
use crate::shared_receives::SharedReceives;
use crate::steering::Steering;
use crate::table::Table;

/// What lies between the engines of the card and its surroundings.
#[derive(Debug)]
pub(crate) struct Datapath {
    pub(crate) keys: Keys,
    pub(crate) groups: Groups,
    pub(crate) steering: Steering,
    pub(crate) port: Port,
    pub(crate) pcie: Pcie,
    pub(crate) completions: Completions,
    /// Shared receive queues.
    pub(crate) shared: Table<SharedReceives>,
    /// How often a queue pair has come, gone or changed its state.
    pub(crate) state_changes: u64,
}

//! Commands for steering of Ethernet frames. They take effect at once and take no time.

use super::Nic;
use crate::error::NicError;
use crate::steering::{FlowAction, FlowDirection, FlowMatch, Steering};

impl Nic {
    /// The root table of a direction: what frames see first. It is always there.
    #[must_use]
    pub const fn root_flow_table(direction: FlowDirection) -> u32 {
        Steering::root(direction)
    }

    /// Makes a flow table, to which rules of others lead.
    ///
    /// # Errors
    /// Too many have been made.
    pub fn create_flow_table(&mut self) -> Result<u32, NicError> {
        self.datapath.steering.add_table()
    }

    /// Destroys a flow table.
    ///
    /// # Errors
    /// It does not exist, has rules, or rules lead to it.
    pub fn destroy_flow_table(&mut self, table: u32) -> Result<(), NicError> {
        self.datapath.steering.remove_table(table)
    }

    /// Makes a rule. Of two rules that take a frame the one of lower priority number counts, then the older one.
    ///
    /// # Errors
    /// There is no such table or receive queue, or too many have been made.
    pub fn create_flow(
        &mut self,
        table: u32,
        priority: u16,
        matched: FlowMatch,
        action: FlowAction,
    ) -> Result<u32, NicError> {
        if let FlowAction::Queue(queue) = action {
            self.query_qp(queue)?;
        }
        self.datapath.steering.add_rule(table, priority, matched, action)
    }

    /// Whether a table has a rule of this priority for the same frames.
    #[must_use]
    pub fn has_flow(&self, table: u32, priority: u16, matched: &FlowMatch) -> bool {
        self.datapath.steering.has_rule(table, priority, matched)
    }

    /// Whether any rule leads frames to a receive queue.
    #[must_use]
    pub fn steers_to_queue(&self) -> bool {
        self.datapath.steering.leads_to_queue()
    }

    /// Destroys a rule.
    ///
    /// # Errors
    /// It does not exist.
    pub fn destroy_flow(&mut self, rule: u32) -> Result<(), NicError> {
        self.datapath.steering.remove_rule(rule)
    }
}

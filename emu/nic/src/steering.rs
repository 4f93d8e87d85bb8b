//! Steering of Ethernet frames: tables of rules that lead a frame to a receive queue, to the port, on to another table,
//! or nowhere (mlx5 flow tables, as `mlx5dv_dr_*` makes them).
//!
//! A frame begins at the root table of its direction. The first rule that it matches decides: matchers by ascending
//! priority, rules of one priority in the order in which they were made. A received frame that no rule takes is dropped
//! and counted; a sent one leaves by the port, as it does from a card without rules.

use std::collections::BTreeMap;

use crate::error::NicError;
use crate::ethernet::{MATCH_BYTES, MatchFields};

/// Which frames the root table sees first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowDirection {
    /// Those that arrive at the port.
    Receive,
    /// Those that send queues send.
    Transmit,
}

/// What becomes of a frame that matches a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowAction {
    /// The receive queue of this number gets it.
    Queue(u32),
    /// This table decides.
    Table(u32),
    /// It leaves by the port.
    Port,
    /// It is dropped.
    Drop,
}

/// Which frames a rule takes: those whose fields are `value` where `mask` has ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowMatch {
    /// Fields that count, bit by bit.
    pub mask: MatchFields,
    /// What they must be.
    pub value: MatchFields,
}

impl FlowMatch {
    fn takes(&self, fields: &MatchFields) -> bool {
        (0..MATCH_BYTES).all(|at| (fields[at] ^ self.value[at]) & self.mask[at] == 0)
    }

    fn masked(&self) -> MatchFields {
        std::array::from_fn(|at| self.value[at] & self.mask[at])
    }
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    number: u32,
    matched: FlowMatch,
    action: FlowAction,
}

/// Most tables that a frame passes: more is a circle.
const MOST_TABLES: usize = 64;
/// Most tables and rules of a card together.
const LIMIT: u32 = 1 << 20;

/// The card's flow tables.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    /// Rules by table and priority.
    tables: BTreeMap<u32, BTreeMap<u16, Vec<Rule>>>,
    /// Tables and rules that there are.
    live: u32,
    next: u32,
}

impl Steering {
    /// The root table of a direction.
    pub(crate) const fn root(direction: FlowDirection) -> u32 {
        direction as u32
    }

    fn number(&mut self) -> Result<u32, NicError> {
        if self.live >= LIMIT || self.next == u32::MAX - 2 {
            return Err(NicError::TooManyFlows { limit: LIMIT });
        }
        self.live += 1;
        self.next += 1;
        // Behind the roots.
        Ok(self.next + FlowDirection::Transmit as u32)
    }

    fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.tables.values().flat_map(BTreeMap::values).flatten()
    }

    pub(crate) fn add_table(&mut self) -> Result<u32, NicError> {
        let table = self.number()?;
        self.tables.insert(table, BTreeMap::new());
        Ok(table)
    }

    pub(crate) fn remove_table(&mut self, table: u32) -> Result<(), NicError> {
        let own = self.tables.get(&table).ok_or(NicError::UnknownFlowTable { table })?;
        let rules = own.values().map(Vec::len).sum::<usize>();
        let users = rules + self.rules().filter(|rule| rule.action == FlowAction::Table(table)).count();
        if users > 0 {
            return Err(NicError::FlowTableInUse { table, users });
        }
        self.tables.remove(&table);
        self.live -= 1;
        Ok(())
    }

    pub(crate) fn add_rule(
        &mut self,
        table: u32,
        priority: u16,
        matched: FlowMatch,
        action: FlowAction,
    ) -> Result<u32, NicError> {
        if let FlowAction::Table(to) = action
            && !self.tables.contains_key(&to)
        {
            return Err(NicError::UnknownFlowTable { table: to });
        }
        let is_root = table <= FlowDirection::Transmit as u32;
        if !is_root && !self.tables.contains_key(&table) {
            return Err(NicError::UnknownFlowTable { table });
        }
        let number = self.number()?;
        let rule = Rule { number, matched, action };
        self.tables.entry(table).or_default().entry(priority).or_default().push(rule);
        Ok(number)
    }

    pub(crate) fn has_rule(&self, table: u32, priority: u16, matched: &FlowMatch) -> bool {
        let mut rules = self.tables.get(&table).and_then(|own| own.get(&priority)).into_iter().flatten();
        rules.any(|rule| rule.matched.mask == matched.mask && rule.matched.masked() == matched.masked())
    }

    pub(crate) fn remove_rule(&mut self, number: u32) -> Result<(), NicError> {
        for rules in self.tables.values_mut().flat_map(BTreeMap::values_mut) {
            if let Some(at) = rules.iter().position(|rule| rule.number == number) {
                rules.remove(at);
                self.live -= 1;
                return Ok(());
            }
        }
        Err(NicError::UnknownFlow { rule: number })
    }

    /// How many rules lead to a receive queue.
    pub(crate) fn users(&self, queue: u32) -> usize {
        self.rules().filter(|rule| rule.action == FlowAction::Queue(queue)).count()
    }

    /// Whether any rule leads to a receive queue.
    pub(crate) fn leads_to_queue(&self) -> bool {
        self.rules().any(|rule| matches!(rule.action, FlowAction::Queue(_)))
    }

    /// What becomes of a frame: a queue, the port, or nothing; `None` if no rule takes it.
    pub(crate) fn decide(&self, direction: FlowDirection, fields: &MatchFields) -> Option<FlowAction> {
        let mut table = Self::root(direction);
        for _ in 0..MOST_TABLES {
            let mut rules = self.tables.get(&table)?.values().flatten();
            match rules.find(|rule| rule.matched.takes(fields))?.action {
                FlowAction::Table(next) => table = next,
                action => return Some(action),
            }
        }
        Some(FlowAction::Drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(at: usize, bytes: &[u8]) -> MatchFields {
        let mut fields = [0; MATCH_BYTES];
        fields[at..at + bytes.len()].copy_from_slice(bytes);
        fields
    }

    fn port(number: u8) -> FlowMatch {
        FlowMatch { mask: fields(0x1E, &[0xFF, 0xFF]), value: fields(0x1E, &[0, number]) }
    }

    const ALL: FlowMatch = FlowMatch { mask: [0; MATCH_BYTES], value: [0; MATCH_BYTES] };
    const RECEIVE: u32 = Steering::root(FlowDirection::Receive);

    #[test]
    fn the_lowest_priority_number_counts_then_the_oldest_rule() {
        let mut steering = Steering::default();
        let frame = fields(0x1E, &[0, 53]);
        let decide = |steering: &Steering| steering.decide(FlowDirection::Receive, &frame);
        assert_eq!(decide(&steering), None);
        steering.add_rule(RECEIVE, 7, ALL, FlowAction::Drop).expect("a rule");
        assert_eq!(decide(&steering), Some(FlowAction::Drop));
        let first = steering.add_rule(RECEIVE, 3, port(53), FlowAction::Queue(1)).expect("a rule");
        let wider = FlowMatch { mask: fields(0x1E, &[0xFF, 0xF0]), ..port(53) };
        steering.add_rule(RECEIVE, 3, wider, FlowAction::Queue(2)).expect("it overlaps");
        assert_eq!(decide(&steering), Some(FlowAction::Queue(1)));
        assert_eq!(steering.users(1), 1);
        steering.remove_rule(first).expect("it is there");
        assert_eq!(decide(&steering), Some(FlowAction::Queue(2)));
        assert!(steering.remove_rule(first).is_err());
        assert_eq!(steering.decide(FlowDirection::Transmit, &frame), None, "each direction has its own");
    }

    #[test]
    fn tables_lead_on_and_circles_end() {
        let mut steering = Steering::default();
        let (one, two) = (steering.add_table().expect("one"), steering.add_table().expect("another"));
        steering.add_rule(RECEIVE, 0, ALL, FlowAction::Table(one)).expect("a rule");
        let on = steering.add_rule(one, 0, port(9), FlowAction::Table(two)).expect("a rule");
        let last = steering.add_rule(two, 0, ALL, FlowAction::Queue(5)).expect("a rule");
        let decide = |steering: &Steering, port| steering.decide(FlowDirection::Receive, &fields(0x1E, &[0, port]));
        assert_eq!(decide(&steering, 9), Some(FlowAction::Queue(5)));
        assert_eq!(decide(&steering, 8), None);
        assert_eq!(steering.remove_table(two), Err(NicError::FlowTableInUse { table: two, users: 2 }));
        steering.remove_rule(last).expect("it is there");
        steering.add_rule(two, 0, ALL, FlowAction::Table(one)).expect("a circle");
        assert_eq!(decide(&steering, 9), Some(FlowAction::Drop));
        steering.remove_rule(on).expect("it is there");
        assert!(steering.remove_table(two).is_err(), "its own rule");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut steering = Steering::default();
        assert_eq!(steering.remove_table(99), Err(NicError::UnknownFlowTable { table: 99 }));
        assert!(steering.add_rule(99, 0, ALL, FlowAction::Drop).is_err());
        assert!(steering.add_rule(RECEIVE, 0, ALL, FlowAction::Table(99)).is_err());
        steering.add_rule(RECEIVE, 0, port(1), FlowAction::Drop).expect("a rule");
        let mut same = port(1);
        same.value[0] = 0xFF;
        assert!(steering.has_rule(RECEIVE, 0, &same), "bits outside the mask do not count");
        assert!(!steering.has_rule(RECEIVE, 1, &same) && !steering.has_rule(RECEIVE, 0, &port(2)));
    }
}

//! Steering of Ethernet frames: tables of rules that lead a frame to a receive queue, to the port, on to another table,
//! or nowhere (mlx5 flow tables, as `mlx5dv_dr_*` makes them).
//!
//! A frame begins at the root table of its direction. The first rule that it matches decides: matchers by ascending
//! priority, rules of one priority in the order in which they were made. A received frame that no rule takes is dropped
//! and counted; a sent one leaves by the port, as it does from a card without rules.

use std::collections::BTreeMap;

use crate::error::NicError;
use crate::ethernet::MatchFields;

/// Which frames the root table sees first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowDirection {
    /// Those that arrive at the port.
    Receive,
    /// Those that send queues send.
    Transmit,
}

/// What becomes of a frame that matches a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

fn masked(fields: &MatchFields, mask: &MatchFields) -> MatchFields {
    std::array::from_fn(|at| fields[at] & mask[at])
}

impl FlowMatch {
    fn masked(&self) -> MatchFields {
        masked(&self.value, &self.mask)
    }
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    /// Those of older rules are smaller.
    number: u32,
    action: FlowAction,
}

/// Rules with one mask, by what the fields must be.
#[derive(Debug)]
struct Group {
    mask: MatchFields,
    rules: BTreeMap<MatchFields, Vec<Rule>>,
}

impl Group {
    fn oldest(&self, fields: &MatchFields) -> Option<Rule> {
        self.rules.get(&masked(fields, &self.mask))?.first().copied()
    }
}

/// Where a rule is.
#[derive(Clone, Copy, Debug)]
struct Place {
    table: u32,
    priority: u16,
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
    /// Rules by table and priority. Programs have few masks and many values.
    tables: BTreeMap<u32, BTreeMap<u16, Vec<Group>>>,
    /// Every rule by its number.
    places: BTreeMap<u32, Place>,
    /// How many rules have each action.
    actions: BTreeMap<FlowAction, usize>,
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

    fn count(&self, action: FlowAction) -> usize {
        self.actions.get(&action).copied().unwrap_or(0)
    }

    fn group(&self, table: u32, priority: u16, mask: &MatchFields) -> Option<&Group> {
        self.tables.get(&table)?.get(&priority)?.iter().find(|group| group.mask == *mask)
    }

    pub(crate) fn add_table(&mut self) -> Result<u32, NicError> {
        let table = self.number()?;
        self.tables.insert(table, BTreeMap::new());
        Ok(table)
    }

    pub(crate) fn remove_table(&mut self, table: u32) -> Result<(), NicError> {
        let own = self.tables.get(&table).ok_or(NicError::UnknownFlowTable { table })?;
        let groups = own.values().flatten();
        let rules = groups.flat_map(|group| group.rules.values()).map(Vec::len).sum::<usize>();
        let users = rules + self.count(FlowAction::Table(table));
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
        let groups = self.tables.entry(table).or_default().entry(priority).or_default();
        let at = groups.iter().position(|group| group.mask == matched.mask).unwrap_or_else(|| {
            groups.push(Group { mask: matched.mask, rules: BTreeMap::new() });
            groups.len() - 1
        });
        groups[at].rules.entry(matched.masked()).or_default().push(Rule { number, action });
        self.places.insert(number, Place { table, priority, matched, action });
        *self.actions.entry(action).or_default() += 1;
        Ok(number)
    }

    pub(crate) fn has_rule(&self, table: u32, priority: u16, matched: &FlowMatch) -> bool {
        self.group(table, priority, &matched.mask).is_some_and(|group| group.rules.contains_key(&matched.masked()))
    }

    pub(crate) fn remove_rule(&mut self, number: u32) -> Result<(), NicError> {
        let place = self.places.remove(&number).ok_or(NicError::UnknownFlow { rule: number })?;
        let Place { table, priority, matched, action } = place;
        if let Some(groups) = self.tables.get_mut(&table).and_then(|own| own.get_mut(&priority)) {
            let value = matched.masked();
            for group in groups.iter_mut().filter(|group| group.mask == matched.mask) {
                let rules = group.rules.entry(value).or_default();
                rules.retain(|rule| rule.number != number);
                if rules.is_empty() {
                    group.rules.remove(&value);
                }
            }
            groups.retain(|group| !group.rules.is_empty());
        }
        match self.actions.get_mut(&action) {
            Some(count) if *count > 1 => *count -= 1,
            _ => _ = self.actions.remove(&action),
        }
        self.live -= 1;
        Ok(())
    }

    /// How many rules lead to a receive queue.
    pub(crate) fn users(&self, queue: u32) -> usize {
        self.count(FlowAction::Queue(queue))
    }

    /// Whether any rule leads to a receive queue.
    pub(crate) fn leads_to_queue(&self) -> bool {
        self.actions.range(FlowAction::Queue(0)..=FlowAction::Queue(u32::MAX)).next().is_some()
    }

    /// What becomes of a frame: a queue, the port, or nothing; `None` if no rule takes it.
    pub(crate) fn decide(&self, direction: FlowDirection, fields: &MatchFields) -> Option<FlowAction> {
        let mut table = Self::root(direction);
        for _ in 0..MOST_TABLES {
            let mut priorities = self.tables.get(&table)?.values();
            let rule = priorities.find_map(|groups| {
                groups.iter().filter_map(|group| group.oldest(fields)).min_by_key(|rule| rule.number)
            });
            match rule?.action {
                FlowAction::Table(next) => table = next,
                action => return Some(action),
            }
        }
        Some(FlowAction::Drop)
    }
}

#[cfg(test)]
mod tests {
    use proptest::strategy::Strategy as _;

    use super::*;
    use crate::ethernet::MATCH_BYTES;

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

    /// Rules of a few masks and values, so that they overlap and repeat, in two priorities.
    fn rule() -> impl proptest::strategy::Strategy<Value = (u16, FlowMatch, u32)> {
        let mask = proptest::sample::select(vec![[0_u8, 0], [0xFF, 0xFF], [0xFF, 0xFE], [0, 0x03]]);
        (0..2_u16, mask, 0..4_u8, 0..9_u32).prop_map(|(priority, mask, value, queue)| {
            (priority, FlowMatch { mask: fields(0x1E, &mask), value: fields(0x1E, &[0, value]) }, queue)
        })
    }

    proptest::proptest! {
        /// As a list of all rules decides, of which some are removed again.
        #[test]
        fn frames_go_where_the_first_rule_that_takes_them_says(
            rules in proptest::collection::vec((rule(), proptest::bool::ANY), 0..24)
        ) {
            let mut steering = Steering::default();
            let mut list = Vec::new();
            let mut gone = Vec::new();
            for ((priority, matched, queue), stays) in rules {
                let number = steering.add_rule(RECEIVE, priority, matched, FlowAction::Queue(queue)).expect("a rule");
                if stays { list.push((priority, number, matched, queue)) } else { gone.push(number) }
            }
            for number in gone {
                steering.remove_rule(number).expect("it is there");
            }
            list.sort_by_key(|(priority, number, ..)| (*priority, *number));
            for port in 0..5 {
                let frame = fields(0x1E, &[0, port]);
                let takes = |matched: &FlowMatch| masked(&frame, &matched.mask) == matched.masked();
                let first = list.iter().find(|(_, _, matched, _)| takes(matched));
                proptest::prop_assert_eq!(
                    steering.decide(FlowDirection::Receive, &frame),
                    first.map(|(.., queue)| FlowAction::Queue(*queue))
                );
            }
            for queue in 0..9 {
                proptest::prop_assert_eq!(steering.users(queue), list.iter().filter(|rule| rule.3 == queue).count());
            }
            proptest::prop_assert_eq!(steering.leads_to_queue(), !list.is_empty());
            proptest::prop_assert_eq!(steering.live as usize, list.len());
        }
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

//! Numbered objects and things in flight.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::error::NicError;

/// Queue numbers have 24 bits; the last one is the multicast number.
const NUMBER_LIMIT: usize = 0xFF_FFFF;

/// Objects by number. A number is never given twice, so that what is in flight for a destroyed object cannot reach its
/// successor.
#[derive(Debug)]
pub(crate) struct Table<T> {
    first: usize,
    entries: Vec<Option<Box<T>>>,
    /// Objects at numbers below the first, which are given for what they mean.
    well_known: BTreeMap<u32, Box<T>>,
}

impl<T> Table<T> {
    pub(crate) fn new(first: u32) -> Self {
        Self { first: first as usize, entries: Vec::new(), well_known: BTreeMap::new() }
    }

    /// Gives an object a number below the first.
    pub(crate) fn insert_at(&mut self, number: u32, make: impl FnOnce(u32) -> T) -> Result<u32, NicError> {
        debug_assert!((number as usize) < self.first, "others are given in order");
        match self.well_known.entry(number) {
            Entry::Occupied(_) => Err(NicError::QpTaken { qpn: number }),
            Entry::Vacant(vacant) => {
                vacant.insert(Box::new(make(number)));
                Ok(number)
            }
        }
    }

    pub(crate) fn insert(&mut self, make: impl FnOnce(u32) -> T) -> Result<u32, NicError> {
        let number = self.first + self.entries.len();
        if number >= NUMBER_LIMIT {
            return Err(NicError::TooManyQueues { limit: NUMBER_LIMIT - self.first });
        }
        let number = number as u32;
        self.entries.push(Some(Box::new(make(number))));
        Ok(number)
    }

    fn index(&self, number: u32) -> Option<usize> {
        (number as usize).checked_sub(self.first)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        match self.index(number) {
            Some(index) => self.entries.get(index)?.as_deref(),
            None => self.well_known.get(&number).map(Box::as_ref),
        }
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.index(number) {
            Some(index) => self.entries.get_mut(index)?.as_deref_mut(),
            None => self.well_known.get_mut(&number).map(Box::as_mut),
        }
    }

    /// Takes the object out for good.
    pub(crate) fn take(&mut self, number: u32) -> Option<Box<T>> {
        match self.index(number) {
            Some(index) => self.entries.get_mut(index)?.take(),
            None => self.well_known.remove(&number),
        }
    }

    /// Numbers from `from` on, in order.
    pub(crate) fn numbers_from(&self, from: u32) -> impl Iterator<Item = u32> + '_ {
        let skipped = (from as usize).saturating_sub(self.first);
        let number = |(index, entry): (usize, &Option<Box<T>>)| entry.as_ref().map(|_| (self.first + index) as u32);
        let well_known = self.well_known.range(from..).map(|(number, _)| *number);
        well_known.chain(self.entries.iter().enumerate().skip(skipped).filter_map(number))
    }

    /// Numbers of the objects that satisfy `test`, in order.
    pub(crate) fn numbers(&self, test: impl Fn(&T) -> bool) -> Vec<u32> {
        let number = |(index, entry): (usize, &Option<Box<T>>)| {
            entry.as_deref().filter(|object| test(object)).map(|_| (self.first + index) as u32)
        };
        self.entries.iter().enumerate().filter_map(number).collect()
    }
}

/// Things in flight; a slot is reused when its thing has been taken.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, thing: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.entries[slot as usize] = Some(thing);
            return slot;
        }
        self.entries.push(Some(thing));
        (self.entries.len() - 1) as u32
    }

    pub(crate) fn take(&mut self, slot: u32) -> Option<T> {
        let thing = self.entries.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(thing)
    }
}

//! Storage for what is under way, without an allocation per item once it has grown to its size.

/// Numbered places.
#[derive(Clone, Debug)]
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = Some(item);
                place
            }
            None => {
                self.places.push(Some(item));
                (self.places.len() - 1) as u32
            }
        }
    }

    #[inline]
    pub(super) fn get(&self, place: u32) -> Option<&T> {
        self.places[place as usize].as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.places[place as usize].as_mut()
    }

    #[inline]
    pub(super) fn remove(&mut self, place: u32) -> Option<T> {
        let item = self.places[place as usize].take();
        if item.is_some() {
            self.free.push(place);
        }
        item
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

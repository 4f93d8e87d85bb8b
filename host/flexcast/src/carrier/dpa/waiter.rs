//! Waits for a card, by its provider's clock.

use std::time::Duration;

use flexio::{Device, Provider};

use crate::engine::datapath::Waiter;

/// Lets time pass between two polls of what a card has written.
#[derive(Debug)]
pub(crate) struct CardWaiter(Provider);

impl CardWaiter {
    pub(crate) fn new(device: &Device) -> Self {
        Self(device.provider().clone())
    }
}

impl Waiter for CardWaiter {
    fn wait(&self, _most: Duration) {
        self.0.relax().relax();
    }

    fn wake(&self) {}

    fn blocks(&self) -> bool {
        false
    }

    fn is_virtual(&self) -> bool {
        self.0.relax().is_virtual()
    }
}

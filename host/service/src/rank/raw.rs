//! Messages of a faulty program.

use super::Client;
use crate::error::{Error, Result};

impl Client {
    /// Sends bytes to the service process as they are, which need not be a message: how tests show that a process bears
    /// whatever a program says. Nothing here counts as called or shared by it.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Order`]: longer than any message.
    pub fn say_bytes(&mut self, message: Vec<u8>) -> Result<()> {
        if self.is_gone {
            return Err(Error::Gone);
        }
        if message.len() > flexcast_proto::service::wire::MAX_BYTES {
            return Err(Error::Order { what: "more bytes than a message has", next: "send 4096 at most" });
        }
        self.collect()?;
        self.links.send(self.process, message)
    }
}

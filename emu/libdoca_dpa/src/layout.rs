//! Structures behind the handles of kernels, in the layouts of the device library
//! (`device/rt-emu/doca/doca_dpa_dev.c`). All numbers are little-endian.

/// Bytes of a structure, member by member.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn words<const N: usize>(mut self, words: [u64; N]) -> Self {
        self.0.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self
    }

    fn halves<const N: usize>(mut self, halves: [u32; N]) -> Self {
        self.0.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
        self
    }
}

/// What a thread does at the end of a kernel that was launched, and what it calls: `struct thread`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Thread {
    pub(crate) local_storage: u64,
    pub(crate) rank: u32,
    pub(crate) count: u32,
    pub(crate) unpack: u64,
    pub(crate) function: u64,
    pub(crate) arguments: u64,
    /// Where the number of threads stands that have not ended.
    pub(crate) running: u64,
    /// A sync event, or 0.
    pub(crate) event: u64,
    pub(crate) event_value: u64,
    pub(crate) event_adds: bool,
}

impl Thread {
    pub(crate) const BYTES: u64 = 72;

    pub(crate) fn bytes(self) -> Vec<u8> {
        Bytes::default()
            .words([self.local_storage])
            .halves([self.rank, self.count])
            .words([self.unpack, self.function, self.arguments, self.running, self.event, self.event_value])
            .words([self.event_adds.into()])
            .0
    }
}

/// A completion context: `struct completion`.
pub(crate) fn completion(ring: u64, record: u64, number: u32, log_depth: u8) -> Vec<u8> {
    Bytes::default().words([ring, record]).halves([number, log_depth.into(), 0, 0]).0
}

/// The receives of an RDMA context, and what follows: `struct rdma`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rdma {
    pub(crate) ring: u64,
    pub(crate) record: u64,
    pub(crate) log_depth: u8,
    pub(crate) scratch: u64,
    pub(crate) scratch_key: u32,
}

/// A connection: `struct connection`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) ring: u64,
    pub(crate) number: u32,
    pub(crate) log_depth: u8,
}

impl Rdma {
    /// Bytes before the first connection.
    const HEAD: u64 = 40;
    /// Bytes of a connection.
    const CONNECTION: u64 = 24;
    /// Where a connection says that it is connected.
    const IS_CONNECTED: u64 = 20;

    pub(crate) fn bytes(self, connections: &[Connection]) -> Vec<u8> {
        let head = Bytes::default()
            .words([self.ring, self.record])
            .halves([self.log_depth.into(), 0])
            .words([self.scratch])
            .halves([self.scratch_key, connections.len() as u32]);
        let all = connections.iter().fold(head, |bytes, connection| {
            let Connection { ring, number, log_depth } = *connection;
            bytes.words([ring]).halves([number, log_depth.into(), 0, 0])
        });
        all.0
    }

    /// Offset of the mark of a connection.
    pub(crate) fn is_connected(id: u32) -> u64 {
        Self::HEAD + u64::from(id) * Self::CONNECTION + Self::IS_CONNECTED
    }
}

/// A peer's sync event: `struct remote_event`.
pub(crate) fn remote_event(address: u64, key: u32) -> Vec<u8> {
    Bytes::default().words([address]).halves([key, 0]).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_device_library() {
        assert_eq!(Thread::default().bytes().len() as u64, Thread::BYTES);
        assert_eq!(completion(1, 2, 3, 4).len(), 32);
        let rdma = Rdma { ring: 1, record: 2, log_depth: 3, scratch: 4, scratch_key: 5 };
        let connection = Connection { ring: 6, number: 7, log_depth: 8 };
        assert_eq!(rdma.bytes(&[]).len() as u64, Rdma::HEAD);
        let bytes = rdma.bytes(&[connection, connection]);
        assert_eq!(bytes.len() as u64, Rdma::HEAD + 2 * Rdma::CONNECTION);
        assert_eq!(Rdma::is_connected(1) + 4, bytes.len() as u64);
        assert_eq!(remote_event(1, 2).len(), 16);
    }
}

//! Codes of failures: what `flexcast_report.code` says, by its cause.

/// Bytes of a message, or their number, do not fit the memory of this rank.
pub const FLEXCAST_CODE_LOCAL_LENGTH: u32 = 1;
/// The queue pair of this rank cannot carry out the request.
pub const FLEXCAST_CODE_LOCAL_QUEUE_PAIR: u32 = 2;
/// Memory of this rank is not registered for the request.
pub const FLEXCAST_CODE_LOCAL_PROTECTION: u32 = 4;
/// The queue pair had failed before.
pub const FLEXCAST_CODE_FLUSHED: u32 = 5;
/// A memory window cannot be bound.
pub const FLEXCAST_CODE_WINDOW_BIND: u32 = 6;
/// The peer's card gave an answer that cannot be.
pub const FLEXCAST_CODE_BAD_RESPONSE: u32 = 7;
/// A write of the peer does not fit the memory of this rank.
pub const FLEXCAST_CODE_LOCAL_ACCESS: u32 = 8;
/// The peer's card refuses the request.
pub const FLEXCAST_CODE_REMOTE_INVALID_REQUEST: u32 = 9;
/// The peer's memory does not allow the access.
pub const FLEXCAST_CODE_REMOTE_ACCESS: u32 = 10;
/// The peer's card cannot carry out the request.
pub const FLEXCAST_CODE_REMOTE_OPERATION: u32 = 11;
/// The peer's card did not answer: it is gone, or the network is.
pub const FLEXCAST_CODE_RETRIES_EXCEEDED: u32 = 12;
/// The peer had no receive posted for too long.
pub const FLEXCAST_CODE_RECEIVER_NOT_READY: u32 = 13;
/// The peer aborted the request.
pub const FLEXCAST_CODE_REMOTE_ABORTED: u32 = 16;
/// The card has failed.
pub const FLEXCAST_CODE_FATAL: u32 = 19;
/// The peer's card did not answer in time.
pub const FLEXCAST_CODE_RESPONSE_TIMEOUT: u32 = 20;
/// The completion has another status; the log has its number.
pub const FLEXCAST_CODE_COMPLETION: u32 = 21;
/// The system gave an error that has no code of its own; the log has its number.
pub const FLEXCAST_CODE_SYSTEM: u32 = 4096;
/// The system does not permit it: `EPERM`.
pub const FLEXCAST_CODE_NOT_PERMITTED: u32 = 4097;
/// Input or output error: `EIO`.
pub const FLEXCAST_CODE_INPUT_OUTPUT: u32 = 4101;
/// The operating system has no memory left: `ENOMEM`.
pub const FLEXCAST_CODE_OUT_OF_MEMORY: u32 = 4108;
/// Permission denied: `EACCES`.
pub const FLEXCAST_CODE_ACCESS_DENIED: u32 = 4109;
/// Invalid argument: `EINVAL`.
pub const FLEXCAST_CODE_INVALID_ARGUMENT: u32 = 4118;
/// Too many open files in the system: `ENFILE`.
pub const FLEXCAST_CODE_SYSTEM_FILES: u32 = 4119;
/// Too many open files in the process: `EMFILE`.
pub const FLEXCAST_CODE_PROCESS_FILES: u32 = 4120;
/// Broken pipe: `EPIPE`.
pub const FLEXCAST_CODE_BROKEN_PIPE: u32 = 4128;
/// Address in use: `EADDRINUSE`.
pub const FLEXCAST_CODE_ADDRESS_IN_USE: u32 = 4194;
/// Address not available: `EADDRNOTAVAIL`.
pub const FLEXCAST_CODE_ADDRESS_NOT_AVAILABLE: u32 = 4195;
/// Network down: `ENETDOWN`.
pub const FLEXCAST_CODE_NETWORK_DOWN: u32 = 4196;
/// Network unreachable: `ENETUNREACH`.
pub const FLEXCAST_CODE_NETWORK_UNREACHABLE: u32 = 4197;
/// Connection dropped by the network: `ENETRESET`.
pub const FLEXCAST_CODE_NETWORK_RESET: u32 = 4198;
/// Connection aborted: `ECONNABORTED`.
pub const FLEXCAST_CODE_CONNECTION_ABORTED: u32 = 4199;
/// `ECONNRESET`, or the peer has closed the connection.
pub const FLEXCAST_CODE_CONNECTION_RESET: u32 = 4200;
/// The operating system has no buffers left: `ENOBUFS`.
pub const FLEXCAST_CODE_NO_BUFFERS: u32 = 4201;
/// Not connected: `ENOTCONN`.
pub const FLEXCAST_CODE_NOT_CONNECTED: u32 = 4203;
/// Timed out: `ETIMEDOUT`.
pub const FLEXCAST_CODE_TIMED_OUT: u32 = 4206;
/// Connection refused: `ECONNREFUSED`.
pub const FLEXCAST_CODE_CONNECTION_REFUSED: u32 = 4207;
/// Host down: `EHOSTDOWN`.
pub const FLEXCAST_CODE_HOST_DOWN: u32 = 4208;
/// Host unreachable: `EHOSTUNREACH`.
pub const FLEXCAST_CODE_HOST_UNREACHABLE: u32 = 4209;
/// The operation could not be begun; its error on the failed rank says why.
pub const FLEXCAST_CODE_NOT_STARTED: u32 = 8193;
/// The peer said what no rank of this release says.
pub const FLEXCAST_CODE_PROTOCOL_VIOLATION: u32 = 8194;
/// A receive worker or a send worker of the card did not answer.
pub const FLEXCAST_CODE_WORKER_SILENT: u32 = 8195;
/// The progress thread of the card did not answer.
pub const FLEXCAST_CODE_PROGRESS_THREAD_SILENT: u32 = 8196;
/// The process on the card has died.
pub const FLEXCAST_CODE_PROCESS_DIED: u32 = 8197;
/// The card has not copied the own block.
pub const FLEXCAST_CODE_COPY: u32 = 8198;
/// A queue pair for datagrams has failed; the log has the status of the work completion.
pub const FLEXCAST_CODE_DATAGRAMS: u32 = 8199;
/// The service process is gone, or refuses.
pub const FLEXCAST_CODE_SERVICE_PROCESS: u32 = 8200;
/// The program is gone, as its service process says.
pub const FLEXCAST_CODE_PROGRAM: u32 = 8201;
/// The progress thread reported a cause that is not known.
pub const FLEXCAST_CODE_UNKNOWN_CAUSE: u32 = 8202;
/// At the other end of the connection there is not the rank that was meant; the log says what came.
/// Firmware never finds that, nor is it notified of it.
pub const FLEXCAST_CODE_WRONG_PEER: u32 = 8203;
/// Receive worker: an error completion on its receive queue.
pub const FLEXCAST_CODE_RECEIVE_QUEUE: u32 = 8451;
/// Receive worker: a copy to the user's buffer failed.
pub const FLEXCAST_CODE_RECEIVE_COPY: u32 = 8452;
/// Receive worker: the operation does not fit its context.
pub const FLEXCAST_CODE_RECEIVE_OPERATION: u32 = 8453;
/// Receive worker: a completion of a kind that its transport does not produce.
pub const FLEXCAST_CODE_RECEIVE_OPCODE: u32 = 8454;
/// Receive worker: an error completion on the control queue of its thread.
pub const FLEXCAST_CODE_RECEIVE_CONTROL: u32 = 8455;
/// Send worker: a send failed.
pub const FLEXCAST_CODE_SEND_QUEUE: u32 = 8708;
/// Send worker: the operation does not fit its context.
pub const FLEXCAST_CODE_SEND_OPERATION: u32 = 8709;
/// Send worker: an error completion on its control queue.
pub const FLEXCAST_CODE_SEND_CONTROL: u32 = 8710;
/// Send worker: a completion of a kind that a send does not produce.
pub const FLEXCAST_CODE_SEND_OPCODE: u32 = 8711;
/// Progress thread: an error completion on its control queue.
pub const FLEXCAST_CODE_PROGRESS_CONTROL: u32 = 8961;
/// Progress thread: a command that makes no sense.
pub const FLEXCAST_CODE_PROGRESS_COMMAND: u32 = 8962;

/// FLEXCAST_CAUSE_SILENT: what the detecting rank waited for. A signal of the barrier: it has not called the operation,
/// or waits itself.
pub const FLEXCAST_WAITED_FOR_BARRIER: u32 = 1;
/// FLEXCAST_CAUSE_SILENT: what the detecting rank waited for. The end of its multicast, after which the next rank
/// begins.
pub const FLEXCAST_WAITED_FOR_ACTIVATION: u32 = 2;
/// FLEXCAST_CAUSE_SILENT: what the detecting rank waited for. The end of its own multicast.
pub const FLEXCAST_WAITED_FOR_OWN_SEND: u32 = 3;
/// FLEXCAST_CAUSE_SILENT: what the detecting rank waited for. A block, or the acknowledgement of one.
pub const FLEXCAST_WAITED_FOR_BLOCK: u32 = 4;
/// FLEXCAST_CAUSE_SILENT: what the detecting rank waited for. The message that ends the operation.
pub const FLEXCAST_WAITED_FOR_FINAL: u32 = 5;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    use flexcast_rust::{FailureCode, WaitedFor};

    fn file(path: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Constants of the header that begin so, with their values.
    fn constants(prefix: &str) -> BTreeMap<String, u32> {
        let header = file("host/capi/include/flexcast.h");
        let defined = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
        let ours =
            defined.filter_map(|(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value.parse().ok()?)));
        ours.collect()
    }

    #[test]
    fn header_document_and_library_have_the_same_codes() {
        let library: BTreeMap<String, u32> =
            FailureCode::ALL.iter().map(|code| (code.c_name().to_owned(), code.to_raw().into())).collect();
        assert_eq!(constants("FLEXCAST_CODE_"), library);
        let values: BTreeSet<u32> = library.values().copied().collect();
        assert_eq!(values.len(), library.len(), "no two are equal");
        let document = file("docs/failure-codes.md");
        let rows = document.lines().filter(|line| line.starts_with("| `FLEXCAST_CODE_"));
        let written: Vec<&str> = rows.collect();
        let expected: Vec<String> = FailureCode::ALL
            .iter()
            .map(|code| {
                let (number, text) = (code.to_raw(), code.text());
                format!("| `FLEXCAST_CODE_{}` | `{code:?}` | {number} | {number:#06x} | {text} |", code.c_name())
            })
            .collect();
        assert_eq!(written, expected);
    }

    #[test]
    fn header_and_library_name_the_same_things_to_wait_for() {
        use WaitedFor::{Activation, Barrier, Block, Final, OwnSend};
        let library = [
            ("ACTIVATION", Activation),
            ("BARRIER", Barrier),
            ("BLOCK", Block),
            ("FINAL", Final),
            ("OWN_SEND", OwnSend),
        ];
        let library = library.map(|(name, waited_for)| (name.to_owned(), u32::from(waited_for as u8)));
        assert_eq!(constants("FLEXCAST_WAITED_FOR_"), BTreeMap::from(library));
    }
}

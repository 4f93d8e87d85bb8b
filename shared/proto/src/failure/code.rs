//! Codes of failures of workers and connections.

/// Declares the codes with their numbers, and what they say.
macro_rules! codes {
    ($( $(#[doc = $doc:literal])+ $(#[cfg($cfg:meta)])? $name:ident = $number:literal, $c_name:literal, $text:literal; )+) => {
        /// What has happened to a worker or a connection.
        ///
        /// Each has a number of its own, which does not change: 0x0001 to 0x00ff are statuses of work completions
        /// (`enum ibv_wc_status`), 0x1000 to 0x1fff errors of the operating system (0x1000 + `errno`, as Linux numbers
        /// them), and from 0x2000 on codes of this library.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum FailureCode {
            $( $(#[doc = $doc])+ $(#[cfg($cfg)])? $name = $number, )+
        }

        impl FailureCode {
            /// All of them, ascending by their numbers.
            pub const ALL: &'static [Self] = &[$( $(#[cfg($cfg)])? Self::$name, )+];

            /// Its name in C, behind `FLEXCAST_CODE_`.
            #[cfg(not(target_os = "none"))]
            #[must_use]
            pub const fn c_name(self) -> &'static str {
                match self { $( $(#[cfg($cfg)])? Self::$name => $c_name, )+ }
            }

            /// What it says, in a few words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $( $(#[cfg($cfg)])? Self::$name => $text, )+ }
            }
        }
    };
}

codes! {
    /// Bytes of a message, or their number, do not fit the memory of this rank.
    LocalLength = 0x0001, "LOCAL_LENGTH", "a message does not fit into local memory";
    /// The queue pair of this rank cannot carry out the request.
    LocalQueuePair = 0x0002, "LOCAL_QUEUE_PAIR", "the local queue pair refused the request";
    /// Memory of this rank is not registered for the request.
    LocalProtection = 0x0004, "LOCAL_PROTECTION", "local memory is not registered for the request";
    /// The queue pair had failed before.
    Flushed = 0x0005, "FLUSHED", "the queue pair had failed before";
    /// A memory window cannot be bound.
    WindowBind = 0x0006, "WINDOW_BIND", "a memory window cannot be bound";
    /// The peer's card gave an answer that cannot be.
    BadResponse = 0x0007, "BAD_RESPONSE", "the peer's card gave an answer that cannot be";
    /// A write of the peer does not fit the memory of this rank.
    LocalAccess = 0x0008, "LOCAL_ACCESS", "local memory does not allow the access";
    /// The peer's card refuses the request.
    RemoteInvalidRequest = 0x0009, "REMOTE_INVALID_REQUEST", "the peer's card refuses the request";
    /// The peer's memory does not allow the access.
    RemoteAccess = 0x000a, "REMOTE_ACCESS", "the peer's memory does not allow the access";
    /// The peer's card cannot carry out the request.
    RemoteOperation = 0x000b, "REMOTE_OPERATION", "the peer's card cannot carry out the request";
    /// The peer's card did not answer: it is gone, or the network is.
    RetriesExceeded = 0x000c, "RETRIES_EXCEEDED", "retries exceeded";
    /// The peer had no receive posted for too long.
    ReceiverNotReady = 0x000d, "RECEIVER_NOT_READY", "the peer had no receive posted for too long";
    /// The peer aborted the request.
    RemoteAborted = 0x0010, "REMOTE_ABORTED", "the peer aborted the request";
    /// The card has failed.
    Fatal = 0x0013, "FATAL", "the card has failed";
    /// The peer's card did not answer in time.
    ResponseTimeout = 0x0014, "RESPONSE_TIMEOUT", "the peer's card did not answer in time";
    /// The completion has another status; the log has its number.
    Completion = 0x0015, "COMPLETION", "a work completion has an error of another kind";

    /// The system gave an error that has no code of its own; the log has its number.
    System = 0x1000, "SYSTEM", "the operating system gave an error of another kind";
    /// The system does not permit it: `EPERM`.
    NotPermitted = 0x1001, "NOT_PERMITTED", "operation not permitted";
    /// `EIO`.
    InputOutput = 0x1005, "INPUT_OUTPUT", "input or output error";
    /// `ENOMEM`.
    OutOfMemory = 0x100c, "OUT_OF_MEMORY", "the operating system has no memory left";
    /// `EACCES`.
    AccessDenied = 0x100d, "ACCESS_DENIED", "permission denied";
    /// `EINVAL`.
    InvalidArgument = 0x1016, "INVALID_ARGUMENT", "invalid argument";
    /// `ENFILE`.
    SystemFiles = 0x1017, "SYSTEM_FILES", "too many open files in the system";
    /// `EMFILE`.
    ProcessFiles = 0x1018, "PROCESS_FILES", "too many open files in the process";
    /// `EPIPE`.
    BrokenPipe = 0x1020, "BROKEN_PIPE", "broken pipe";
    /// `EADDRINUSE`.
    AddressInUse = 0x1062, "ADDRESS_IN_USE", "address in use";
    /// `EADDRNOTAVAIL`.
    AddressNotAvailable = 0x1063, "ADDRESS_NOT_AVAILABLE", "address not available";
    /// `ENETDOWN`.
    NetworkDown = 0x1064, "NETWORK_DOWN", "network down";
    /// `ENETUNREACH`.
    NetworkUnreachable = 0x1065, "NETWORK_UNREACHABLE", "network unreachable";
    /// `ENETRESET`.
    NetworkReset = 0x1066, "NETWORK_RESET", "connection dropped by the network";
    /// `ECONNABORTED`.
    ConnectionAborted = 0x1067, "CONNECTION_ABORTED", "connection aborted";
    /// `ECONNRESET`, or the peer has closed the connection.
    ConnectionReset = 0x1068, "CONNECTION_RESET", "connection reset";
    /// `ENOBUFS`.
    NoBuffers = 0x1069, "NO_BUFFERS", "the operating system has no buffers left";
    /// `ENOTCONN`.
    NotConnected = 0x106b, "NOT_CONNECTED", "not connected";
    /// `ETIMEDOUT`.
    TimedOut = 0x106e, "TIMED_OUT", "timed out";
    /// `ECONNREFUSED`.
    ConnectionRefused = 0x106f, "CONNECTION_REFUSED", "connection refused";
    /// `EHOSTDOWN`.
    HostDown = 0x1070, "HOST_DOWN", "host down";
    /// `EHOSTUNREACH`.
    HostUnreachable = 0x1071, "HOST_UNREACHABLE", "host unreachable";

    /// The operation could not be begun; its error on the failed rank says why.
    NotStarted = 0x2001, "NOT_STARTED", "the operation could not be begun";
    /// The peer said what no rank of this release says.
    ProtocolViolation = 0x2002, "PROTOCOL_VIOLATION", "the peer does not keep to the protocol";
    /// A receive worker or a send worker of the card did not answer.
    WorkerSilent = 0x2003, "WORKER_SILENT", "worker of the card did not answer";
    /// The progress thread of the card did not answer.
    ProgressThreadSilent = 0x2004, "PROGRESS_THREAD_SILENT", "progress thread did not answer";
    /// The process on the card has died.
    ProcessDied = 0x2005, "PROCESS_DIED", "process on the card has died";
    /// The card has not copied the own block.
    Copy = 0x2006, "COPY", "copy of the own block failed";
    /// A queue pair for datagrams has failed; the log has the status of the work completion.
    Datagrams = 0x2007, "DATAGRAMS", "queue pair for datagrams failed";
    /// The service process is gone, or refuses.
    ServiceProcess = 0x2008, "SERVICE_PROCESS", "service process is gone, or refuses";
    /// The program is gone, as its service process says.
    Program = 0x2009, "PROGRAM", "program is gone, as its service process says";
    /// The progress thread reported a cause that is not known.
    UnknownCause = 0x200a, "UNKNOWN_CAUSE", "progress thread reported a cause that is not known";
    /// At the other end of the connection there is not the rank that was meant; the log says what came.
    /// Firmware never finds that, nor is it reported to it.
    #[cfg(not(target_os = "none"))]
    WrongPeer = 0x200b, "WRONG_PEER", "the other end is not the rank that was meant";

    /// Receive worker: an error completion on its receive queue.
    ReceiveQueue = 0x2103, "RECEIVE_QUEUE", "error completion on a receive queue";
    /// Receive worker: a copy to the user's buffer failed.
    ReceiveCopy = 0x2104, "RECEIVE_COPY", "copy to the user's buffer failed";
    /// Receive worker: the operation does not fit its context.
    ReceiveOperation = 0x2105, "RECEIVE_OPERATION", "operation does not fit the receive context";
    /// Receive worker: a completion of a kind that its transport does not produce.
    ReceiveOpcode = 0x2106, "RECEIVE_OPCODE", "completion of an unexpected kind on a receive queue";
    /// Receive worker: an error completion on the control queue of its thread.
    ReceiveControl = 0x2107, "RECEIVE_CONTROL", "error completion on a receive thread's control queue";
    /// Send worker: a send failed.
    SendQueue = 0x2204, "SEND_QUEUE", "error completion on a send queue";
    /// Send worker: the operation does not fit its context.
    SendOperation = 0x2205, "SEND_OPERATION", "operation does not fit the send context";
    /// Send worker: an error completion on its control queue.
    SendControl = 0x2206, "SEND_CONTROL", "error completion on a send thread's control queue";
    /// Send worker: a completion of a kind that a send does not produce.
    SendOpcode = 0x2207, "SEND_OPCODE", "completion of an unexpected kind on a send queue";
    /// Progress thread: an error completion on its control queue.
    ProgressControl = 0x2301, "PROGRESS_CONTROL", "error completion on the progress thread's control queue";
    /// Progress thread: a command that makes no sense.
    ProgressCommand = 0x2302, "PROGRESS_COMMAND", "progress thread refused a command";
}

/// Where errors of the system begin.
const SYSTEM: u16 = FailureCode::System as u16;
/// The highest number of an error that Linux gives to a program.
const LAST_ERRNO: i32 = 4095;

impl FailureCode {
    /// Its number.
    #[must_use]
    pub const fn to_raw(self) -> u16 {
        self as u16
    }

    /// The code of a number; the number itself when it names none.
    ///
    /// # Errors
    /// The number.
    pub const fn from_raw(raw: u16) -> Result<Self, u16> {
        let mut at = 0;
        while at < Self::ALL.len() {
            if Self::ALL[at] as u16 == raw {
                return Ok(Self::ALL[at]);
            }
            at += 1;
        }
        Err(raw)
    }

    /// The code of a work completion with this status (`enum ibv_wc_status`) that is not success;
    /// [`FailureCode::Completion`] for one that has no code of its own.
    #[must_use]
    pub const fn of_completion(status: u32) -> Self {
        if status > 0xFF {
            return Self::Completion;
        }
        match Self::from_raw(status as u16) {
            Ok(code) => code,
            Err(_) => Self::Completion,
        }
    }

    /// The same of the syndrome of a completion as a card writes it (rdma-core, `mlx5_handle_error_cqe`), so that
    /// failures have the same codes wherever the protocol runs.
    #[must_use]
    pub const fn of_syndrome(syndrome: u8) -> Self {
        match syndrome {
            0x01 => Self::LocalLength,
            0x02 => Self::LocalQueuePair,
            0x04 => Self::LocalProtection,
            0x05 => Self::Flushed,
            0x06 => Self::WindowBind,
            0x10 => Self::BadResponse,
            0x11 => Self::LocalAccess,
            0x12 => Self::RemoteInvalidRequest,
            0x13 => Self::RemoteAccess,
            0x14 => Self::RemoteOperation,
            0x15 => Self::RetriesExceeded,
            0x16 => Self::ReceiverNotReady,
            0x22 => Self::RemoteAborted,
            _ => Self::Completion,
        }
    }

    /// The code of an error of the system with this number (`errno`); [`FailureCode::System`] for one that has no code
    /// of its own.
    #[must_use]
    pub const fn of_errno(errno: i32) -> Self {
        if errno < 0 || errno > LAST_ERRNO {
            return Self::System;
        }
        match Self::from_raw(SYSTEM + errno as u16) {
            Ok(code) => code,
            Err(_) => Self::System,
        }
    }

    /// The number of the system's error (`errno`) that it stands for; none if it is no error of the system, or one of
    /// another kind.
    #[must_use]
    pub const fn errno(self) -> Option<i32> {
        match self.to_raw() {
            raw if raw > SYSTEM && raw <= SYSTEM + LAST_ERRNO as u16 => Some((raw - SYSTEM) as i32),
            _ => None,
        }
    }
}

impl core::fmt::Display for FailureCode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_codes_have_one_number_one_name_or_one_text() {
        let all = FailureCode::ALL;
        assert!(all.is_sorted_by_key(|code| code.to_raw()));
        let numbers: BTreeSet<u16> = all.iter().map(|code| code.to_raw()).collect();
        let names: BTreeSet<&str> = all.iter().map(|code| code.c_name()).collect();
        let texts: BTreeSet<&str> = all.iter().map(|code| code.text()).collect();
        assert_eq!([numbers.len(), names.len(), texts.len()], [all.len(); 3]);
    }

    #[test]
    fn a_code_is_its_number_and_other_numbers_are_none() {
        for &code in FailureCode::ALL {
            assert_eq!(FailureCode::from_raw(code.to_raw()), Ok(code));
        }
        let known = (0..=u16::MAX).filter(|raw| FailureCode::from_raw(*raw).is_ok()).count();
        assert_eq!(known, FailureCode::ALL.len());
    }

    #[test]
    fn completions_and_errors_of_the_system_have_ranges_of_their_own() {
        for status in 1..=u32::from(u16::MAX) {
            assert!((1..=0xFF).contains(&FailureCode::of_completion(status).to_raw()), "status {status}");
        }
        for errno in -1..=5000 {
            let code = FailureCode::of_errno(errno);
            assert!((0x1000..=0x1FFF).contains(&code.to_raw()), "errno {errno}");
            assert!(code.errno().is_none_or(|back| back == errno));
        }
        assert_eq!(FailureCode::of_completion(12), FailureCode::RetriesExceeded);
        assert_eq!(FailureCode::of_completion(17), FailureCode::Completion);
        // Linux: ECONNRESET, ETIMEDOUT.
        assert_eq!([104, 110].map(FailureCode::of_errno), [FailureCode::ConnectionReset, FailureCode::TimedOut]);
        assert_eq!([0, 11, 9999].map(FailureCode::of_errno), [FailureCode::System; 3]);
        assert_eq!(FailureCode::RetriesExceeded.errno(), None);
    }
}

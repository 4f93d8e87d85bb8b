//! Errors of the control plane. Errors of the data plane are error CQEs and asynchronous events.

use crate::qp::QpState;
use crate::transport::Transport;

/// Why the card refuses a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// No such protection domain.
    #[error("protection domain {pd} does not exist: allocate it first")]
    UnknownPd {
        /// The protection domain.
        pd: u32,
    },
    /// The protection domain still has users.
    #[error("protection domain {pd} is used by {users} memory keys and queue pairs: destroy them first")]
    PdInUse {
        /// The protection domain.
        pd: u32,
        /// Memory keys and queue pairs in it.
        users: u32,
    },
    /// No such memory key.
    #[error("memory key {key:#x} does not exist: it was never created, or destroyed since")]
    UnknownMkey {
        /// The key.
        key: u32,
    },
    /// Memory windows are bound to the key's memory.
    #[error("{windows} memory windows are bound to memory key {key:#x}: invalidate or deallocate them first")]
    MkeyBound {
        /// The key.
        key: u32,
        /// Windows.
        windows: usize,
    },
    /// A memory key over nothing, or past the end of the address space.
    #[error("a memory key cannot cover {len} bytes at {start:#x}: the range must be non-empty and end by 2^64")]
    MkeyRange {
        /// First byte.
        start: u64,
        /// Bytes.
        len: u64,
    },
    /// Out of memory keys.
    #[error("all {limit} memory keys are in use: destroy some")]
    TooManyKeys {
        /// The limit.
        limit: usize,
    },
    /// Out of queue numbers.
    #[error("all {limit} queue numbers have been used: numbers are never reused, so make a new card")]
    TooManyQueues {
        /// The limit.
        limit: usize,
    },
    /// No such shared receive queue.
    #[error("shared receive queue {srqn:#x} does not exist: it was never created, or destroyed since")]
    UnknownSrq {
        /// The shared receive queue.
        srqn: u32,
    },
    /// The shared receive queue has users.
    #[error("shared receive queue {srqn:#x} is used by {users} queue pairs: destroy them first")]
    SrqInUse {
        /// The shared receive queue.
        srqn: u32,
        /// Queue pairs that take receives from it.
        users: u32,
    },
    /// The queue pair cannot use the shared receive queue.
    #[error(
        "a queue pair of another function, or with a receive ring of its own (no_rq: {no_rq}), cannot take receives \
         from shared receive queue {srqn:#x}"
    )]
    SrqOfOther {
        /// The shared receive queue.
        srqn: u32,
        /// The queue pair has no receive ring.
        no_rq: bool,
    },
    /// A well-known queue pair exists already.
    #[error("queue pair {qpn} of the port exists already: it is one for all, so destroy it first")]
    QpTaken {
        /// Its number.
        qpn: u32,
    },
    /// General services use another transport.
    #[error("queue pair 1 of a port is UD, not {transport}")]
    GsiTransport {
        /// What was asked for.
        transport: Transport,
    },
    /// No such flow table.
    #[error("flow table {table} does not exist: create it first")]
    UnknownFlowTable {
        /// The table.
        table: u32,
    },
    /// The flow table has rules, or rules lead to it.
    #[error("flow table {table} is used by {users} rules: destroy them first")]
    FlowTableInUse {
        /// The table.
        table: u32,
        /// Rules in it, and those that lead to it.
        users: usize,
    },
    /// No such steering rule.
    #[error("steering rule {rule} does not exist: it was never created, or destroyed since")]
    UnknownFlow {
        /// The rule.
        rule: u32,
    },
    /// Out of tables and rules.
    #[error("all {limit} flow tables and rules are in use: destroy some")]
    TooManyFlows {
        /// The limit.
        limit: u32,
    },
    /// Steering rules lead to the receive queue.
    #[error("{flows} steering rules lead to receive queue {qpn:#x}: destroy them first")]
    QpSteered {
        /// The receive queue.
        qpn: u32,
        /// The rules.
        flows: usize,
    },
    /// No such completion queue.
    #[error("completion queue {cqn:#x} does not exist: create it first")]
    UnknownCq {
        /// The completion queue.
        cqn: u32,
    },
    /// Queue pairs still complete into the completion queue.
    #[error("completion queue {cqn:#x} is used by {users} work queues: destroy their queue pairs first")]
    CqInUse {
        /// The completion queue.
        cqn: u32,
        /// Send and receive queues that complete into it.
        users: u32,
    },
    /// No such queue pair.
    #[error("queue pair {qpn:#x} does not exist: create it first")]
    UnknownQp {
        /// The queue pair.
        qpn: u32,
    },
    /// A log2 size is outside its limits.
    #[error("{name} is {value}, but must be from {min} to {max}")]
    LogSize {
        /// The attribute.
        name: &'static str,
        /// What was asked for.
        value: u8,
        /// Smallest value.
        min: u8,
        /// Largest value.
        max: u8,
    },
    /// A ring or record does not lie on the boundary it needs.
    #[error("the {name} at {addr:#x} is not aligned to {align} bytes")]
    Alignment {
        /// What it is.
        name: &'static str,
        /// Where it is.
        addr: u64,
        /// Where it may be.
        align: u64,
    },
    /// No such change of state.
    #[error(
        "queue pair {qpn:#x} cannot go from {from} to {to}: the order is RESET, INIT, RTR, RTS; RESET and ERR always \
         work"
    )]
    Transition {
        /// The queue pair.
        qpn: u32,
        /// Its state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// A transition lacks an attribute.
    #[error("queue pair {qpn:#x} ({transport}) needs `{attribute}` to enter {to}")]
    MissingAttribute {
        /// The queue pair.
        qpn: u32,
        /// Its transport.
        transport: Transport,
        /// The state asked for.
        to: QpState,
        /// The missing attribute.
        attribute: &'static str,
    },
    /// An attribute is outside its limits.
    #[error("`{attribute}` of queue pair {qpn:#x} is {value:#x}, but may be at most {max:#x}")]
    AttributeRange {
        /// The queue pair.
        qpn: u32,
        /// The attribute.
        attribute: &'static str,
        /// What was asked for.
        value: u64,
        /// Largest value.
        max: u64,
    },
    /// A port that the card does not have.
    #[error("queue pair {qpn:#x} cannot be at port {port}: a card has port 1 alone")]
    NoPort {
        /// The queue pair.
        qpn: u32,
        /// The port asked for.
        port: u8,
    },
    /// The protection domain of a queue pair is fixed when it is created.
    #[error("queue pair {qpn:#x} was created in protection domain {owner} and cannot move to {pd}")]
    PdChange {
        /// The queue pair.
        qpn: u32,
        /// Its protection domain.
        owner: u32,
        /// The one asked for.
        pd: u32,
    },
    /// A partition key of no partition.
    #[error("partition key {pkey:#06x} names no partition: bits 14:0 must not all be zero")]
    PkeyInvalid {
        /// The key.
        pkey: u16,
    },
    /// No such entry of the partition key table.
    #[error(
        "partition key index {index}: the table has {entries} entries, grows at its end, and holds {limit} at most"
    )]
    PkeyIndex {
        /// The index.
        index: usize,
        /// Entries there are.
        entries: usize,
        /// Entries there may be.
        limit: usize,
    },
    /// Out of virtual HCAs.
    #[error("the card has all of its {limit} virtual HCAs")]
    TooManyVhcas {
        /// The limit.
        limit: u16,
    },
    /// The virtual HCA is not on this card.
    #[error("virtual HCA {vhca:#x} is not on this card: an alias key and its target must be on the same one")]
    UnknownVhca {
        /// The virtual HCA.
        vhca: u16,
    },
    /// A queue pair's completion queue and protection domain are of two virtual HCAs.
    #[error(
        "completion queue {cqn:#x} is of virtual HCA {vhca:#x}, protection domain {pd} of {pd_vhca:#x}: make both \
         through one function"
    )]
    CqOfOther {
        /// The completion queue.
        cqn: u32,
        /// Its virtual HCA.
        vhca: u16,
        /// The protection domain.
        pd: u32,
        /// Its virtual HCA.
        pd_vhca: u16,
    },
    /// An alias of a key of the same virtual HCA.
    #[error("memory key {key:#x} is of virtual HCA {vhca:#x} itself: use it without an alias")]
    AliasOfOwn {
        /// The key.
        key: u32,
        /// The virtual HCA.
        vhca: u16,
    },
    /// An alias cannot be shared.
    #[error("memory key {key:#x} is an alias: share the key that it stands for")]
    AliasOfAlias {
        /// The key.
        key: u32,
    },
    /// The owner does not allow the alias.
    #[error(
        "memory key {key:#x} of virtual HCA {vhca:#x} is not shared with this token: its owner must share it first"
    )]
    NotShared {
        /// The key.
        key: u32,
        /// Its virtual HCA.
        vhca: u16,
    },
    /// No entries, or too many.
    #[error("a UMR key has from 1 to {limit} entries, not {entries}")]
    UmrEntries {
        /// What was asked for.
        entries: u32,
        /// The limit.
        limit: u32,
    },
    /// The address is not that of a group.
    #[error("{gid} is no group: multicast identifiers are ff00::/8, or 224.0.0.0/4 mapped into IPv6")]
    NotAGroup {
        /// The identifier.
        gid: crate::address::Gid,
    },
    /// Only UD queue pairs can be members of a group.
    #[error("queue pair {qpn:#x} is {transport}: only UD queue pairs join groups")]
    NotADatagramQp {
        /// The queue pair.
        qpn: u32,
        /// Its transport.
        transport: Transport,
    },
    /// Group keys are those of UC queue pairs, where they take part in multicast at all.
    #[error(
        "queue pair {qpn:#x} is {transport}: group keys are for UC queue pairs of an emulated card with hypothetical \
         UC multicast (uc_multicast)"
    )]
    NoGroupKeys {
        /// The queue pair.
        qpn: u32,
        /// Its transport.
        transport: Transport,
    },
    /// A group key stands for one memory at a time.
    #[error("group key {key:#x} of queue pair {qpn:#x} stands for memory already: end that first")]
    GroupKeyTaken {
        /// The queue pair.
        qpn: u32,
        /// The group key.
        key: u32,
    },
    /// No such group key.
    #[error("queue pair {qpn:#x} has no group key {key:#x}")]
    UnknownGroupKey {
        /// The queue pair.
        qpn: u32,
        /// The group key.
        key: u32,
    },
    /// The queue pair is not a member.
    #[error("queue pair {qpn:#x} is not attached to {gid}")]
    NotAttached {
        /// The queue pair.
        qpn: u32,
        /// The group.
        gid: crate::address::Gid,
    },
    /// The queue pair is still a member of groups.
    #[error("queue pair {qpn:#x} is attached to {groups} multicast groups: detach it first")]
    QpAttached {
        /// The queue pair.
        qpn: u32,
        /// Groups it is a member of.
        groups: usize,
    },
}

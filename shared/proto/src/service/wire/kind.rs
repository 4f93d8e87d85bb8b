//! Kinds of messages of service processes, and what each is about.

pub(super) const HELLO: u8 = 1;
pub(super) const CHALLENGE: u8 = 2;
pub(super) const PROOF: u8 = 3;
pub(super) const WELCOME: u8 = 4;
pub(super) const REJECTED: u8 = 5;
pub(super) const HEARTBEAT: u8 = 6;
pub(super) const GOODBYE: u8 = 7;
pub(super) const KEY_EXPORT: u8 = 8;
pub(super) const KEY_ANSWER: u8 = 9;
pub(super) const KEY_REVOKE: u8 = 10;
pub(super) const KEY_REVOKED: u8 = 11;
pub(super) const GROUP_CREATE: u8 = 12;
pub(super) const GROUP_ACCEPTED: u8 = 13;
pub(super) const GROUP_REFUSED: u8 = 14;
pub(super) const GROUP_LEAVE: u8 = 15;
pub(super) const GROUP_LEFT: u8 = 16;
pub(super) const FLAGS: u8 = 17;
pub(super) const JOINED: u8 = 18;
pub(super) const JOIN_REFUSED: u8 = 19;
pub(super) const GROUP_FAILED: u8 = 20;
pub(super) const OP_START: u8 = 21;
pub(super) const TASK: u8 = 22;
pub(super) const OP_REFUSED: u8 = 23;
pub(super) const LOCAL_DATA: u8 = 24;
pub(super) const LOCAL_COPIED: u8 = 25;
pub(super) const OP_DONE: u8 = 26;
pub(super) const OP_FAILED: u8 = 27;
pub(super) const READY: u8 = 28;
pub(super) const BLOCK: u8 = 29;
pub(super) const LISTED: u8 = 30;
pub(super) const HAS_READ: u8 = 31;
pub(super) const HELD: u8 = 32;
pub(super) const COPIED: u8 = 33;
pub(super) const UNREADABLE: u8 = 34;
pub(super) const FAILED: u8 = 35;
pub(super) const OFFER: u8 = 36;
pub(super) const TAKEN: u8 = 37;
pub(super) const STAGED_FAILED: u8 = 38;
pub(super) const LINK: u8 = 39;

/// Whether messages of a kind are of a group.
pub(super) const fn has_group(kind: u8) -> bool {
    kind >= GROUP_CREATE && kind != LINK
}

/// Whether messages of a kind are of a collective.
pub(super) const fn has_collective(kind: u8) -> bool {
    kind >= OP_START && kind != LINK
}

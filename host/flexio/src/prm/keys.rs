//! Command layouts for memory keys of other functions of a card: the target key, its permission, and the alias.
//!
//! Layouts: Linux `mlx5_ifc.h` (CREATE_MKEY, ALLOW_OTHER_VHCA_ACCESS, alias objects of CREATE_GENERAL_OBJECT,
//! QUERY_HCA_CAP). That the first dword of an alias's metadata is the protection domain, and that the key of an alias
//! is its number with tag 0, is how public programs for keys across functions (UCX) use it.

use super::{CREATE_GENERAL_OBJECT, Field, Mailbox, OBJECT_TYPE};

const CREATE_MKEY: u32 = 0x200;
const QUERY_HCA_CAP: u32 = 0x100;
const ALLOW_OTHER_VHCA_ACCESS: u32 = 0xB16;

/// Bytes of CREATE_MKEY.
pub(crate) const MKEY_COMMAND_BYTES: usize = 272;
/// Number of what was made, in the answers to CREATE_MKEY and CREATE_GENERAL_OBJECT.
pub(crate) const OUT_INDEX: Field = Field(0x8, 8, 24);
/// Where the key context lies in CREATE_MKEY.
const MKC: usize = 0x10;
const MKEY_UMEM_VALID: Field = Field(0xC, 1, 1);
const MKEY_UMEM_ID: Field = Field(0x64, 0, 32);
const REMOTE_WRITE: Field = Field(0x0, 18, 1).within(MKC);
const REMOTE_READ: Field = Field(0x0, 19, 1).within(MKC);
const LOCAL_WRITE: Field = Field(0x0, 20, 1).within(MKC);
const LOCAL_READ: Field = Field(0x0, 21, 1).within(MKC);
/// 1: pages.
const ACCESS_MODE: Field = Field(0x0, 22, 2).within(MKC);
const MKEY_QPN: Field = Field(0x4, 0, 24).within(MKC);
const MKEY_TAG: Field = Field(0x4, 24, 8).within(MKC);
const MKEY_PD: Field = Field(0xC, 8, 24).within(MKC);
const MKEY_START: usize = MKC + 0x10;
const MKEY_LEN: usize = MKC + 0x18;

/// Bytes of ALLOW_OTHER_VHCA_ACCESS.
pub(crate) const ALLOW_COMMAND_BYTES: usize = 0x40;
const ALLOW_TYPE: Field = Field(0x10, 16, 16);
const ALLOW_ID: Field = Field(0x14, 0, 32);
const ALLOW_ACCESS_KEY: usize = 0x20;

/// Bytes of CREATE_GENERAL_OBJECT for an alias.
pub(crate) const ALIAS_COMMAND_BYTES: usize = 0x50;
/// Type of a memory key, as an object of which aliases are made.
const MKEY_TYPE: u32 = 0xFF01;
const IS_ALIAS: Field = Field(0xC, 0, 1);
const TARGET_VHCA: Field = Field(0x10, 0, 16);
const TARGET_ID: Field = Field(0x14, 0, 32);
const TARGET_ACCESS_KEY: usize = 0x20;
const ALIAS_PD: Field = Field(0x40, 0, 32);

/// Bytes of QUERY_HCA_CAP.
pub(crate) const CAPABILITY_COMMAND_BYTES: usize = 16;
/// Bytes of its answer: a head, and a structure of 4,096 bytes with what is reserved.
pub(crate) const CAPABILITY_ANSWER_BYTES: usize = 0x1010;
const OP_MOD: Field = Field(0x4, 16, 16);
/// Id of the device's virtual HCA, in its general capabilities.
pub(crate) const VHCA_ID: Field = Field(0x10 + 0x4, 16, 16);

/// Rights of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    pub(crate) local_write: bool,
    pub(crate) remote_write: bool,
    pub(crate) remote_read: bool,
}

/// A key over registered memory at its own addresses.
pub(crate) fn create_mkey(
    pd: u32,
    umem_id: u32,
    (start, len): (u64, u64),
    rights: Rights,
) -> Mailbox<MKEY_COMMAND_BYTES> {
    const PAGES: u32 = 1;
    const ANY_QP: u32 = 0xFF_FFFF;
    let mut m = Mailbox::command(CREATE_MKEY);
    m.set(MKEY_UMEM_VALID, 1);
    m.set(MKEY_UMEM_ID, umem_id);
    m.set(LOCAL_READ, 1);
    m.set(LOCAL_WRITE, rights.local_write.into());
    m.set(REMOTE_WRITE, rights.remote_write.into());
    m.set(REMOTE_READ, rights.remote_read.into());
    m.set(ACCESS_MODE, PAGES);
    m.set(MKEY_QPN, ANY_QP);
    m.set(MKEY_TAG, 0);
    m.set(MKEY_PD, pd);
    m.set_u64(MKEY_START, start);
    m.set_u64(MKEY_LEN, len);
    m
}

/// Lets other functions make aliases of the key of this index if they know the access key.
pub(crate) fn allow_access(index: u32, access_key: &[u8; 32]) -> Mailbox<ALLOW_COMMAND_BYTES> {
    let mut m = Mailbox::command(ALLOW_OTHER_VHCA_ACCESS);
    m.set(ALLOW_TYPE, MKEY_TYPE);
    m.set(ALLOW_ID, index);
    m.set_bytes(ALLOW_ACCESS_KEY, access_key);
    m
}

/// An alias, of protection domain `pd`, of the key of this index on virtual HCA `vhca`.
pub(crate) fn create_alias(pd: u32, vhca: u16, index: u32, access_key: &[u8; 32]) -> Mailbox<ALIAS_COMMAND_BYTES> {
    let mut m = Mailbox::command(CREATE_GENERAL_OBJECT);
    m.set(OBJECT_TYPE, MKEY_TYPE);
    m.set(IS_ALIAS, 1);
    m.set(TARGET_VHCA, vhca.into());
    m.set(TARGET_ID, index);
    m.set_bytes(TARGET_ACCESS_KEY, access_key);
    m.set(ALIAS_PD, pd);
    m
}

/// The current general capabilities of the device.
pub(crate) fn query_capabilities() -> Mailbox<CAPABILITY_COMMAND_BYTES> {
    const CURRENT: u32 = 1;
    let mut m = Mailbox::command(QUERY_HCA_CAP);
    m.set(OP_MOD, CURRENT);
    m
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_of_a_key_is_at_its_byte() {
        let rights = Rights { local_write: true, remote_write: false, remote_read: true };
        let m = create_mkey(0x12_3456, 0x77, (0x1122_3344_5566_7788, 0x99), rights);
        let b = m.as_bytes();
        assert_eq!((&b[..2], b[0xC], &b[0x64..0x68]), (&[2, 0][..], 0x40, &[0, 0, 0, 0x77][..]));
        assert_eq!(b[0x10..0x18], [0, 0, 0b1_1101, 0, 0xFF, 0xFF, 0xFF, 0], "read, write, read at a peer; by pages");
        assert_eq!(b[0x1C..0x20], [0, 0x12, 0x34, 0x56]);
        assert_eq!(b[0x20..0x28], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(b[0x28..0x30], [0, 0, 0, 0, 0, 0, 0, 0x99]);
    }

    #[test]
    fn permission_and_alias_name_key_and_access_key() {
        let m = allow_access(0xABCDE, &[7; 32]);
        let b = m.as_bytes();
        assert_eq!((&b[..2], &b[0x10..0x18]), (&[0xB, 0x16][..], &[0, 0, 0xFF, 1, 0, 0xA, 0xBC, 0xDE][..]));
        assert_eq!((&b[0x20..], b.len()), (&[7; 32][..], 64));
        let m = create_alias(0x55, 0x1234, 0xABCDE, &[9; 32]);
        let b = m.as_bytes();
        assert_eq!((&b[..2], &b[6..8], b[0xC]), (&[0xA, 0][..], &[0xFF, 1][..], 0x80));
        assert_eq!((&b[0x10..0x18], &b[0x20..0x40]), (&[0x12, 0x34, 0, 0, 0, 0xA, 0xBC, 0xDE][..], &[9; 32][..]));
        assert_eq!((&b[0x40..0x44], b.len()), (&[0, 0, 0, 0x55][..], 80));
        assert_eq!(query_capabilities().as_bytes()[..8], [1, 0, 0, 0, 0, 0, 0, 1]);
    }
}

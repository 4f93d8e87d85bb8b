//! Alias keys: a memory key of one virtual HCA used by another one of the same card.
//!
//! A card shows itself as several virtual HCAs (the host's function, that of its Arm cores, scalable functions). Keys
//! of one are unknown to the others, unless the owner allows it: the owner shares a key with a token, and who knows the
//! token makes an alias of it. Revoking or destroying the target kills every alias, also for accesses that are under
//! way. (`ALLOW_OTHER_VHCA_ACCESS`, 0xB16, and alias objects of `CREATE_GENERAL_OBJECT`: Linux `mlx5_ifc.h`; DOCA:
//! "cross-GVMI memory keys".)

/// Proof that the owner of a key allows its use: the 256-bit access key of the PRM.
pub type Token = [u8; 32];

/// What an alias stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AliasAttr {
    /// Protection domain that may use the alias; of another virtual HCA than the target's.
    pub pd: u32,
    /// Virtual HCA of the target.
    pub target_vhca: u16,
    /// The target: an ordinary or a UMR key.
    pub target: u32,
    /// The token with which the target is shared.
    pub token: Token,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Alias {
    pub(crate) pd: u32,
    pub(crate) target: u32,
    /// Life of the target's slot when the alias was made.
    pub(crate) life: u64,
    pub(crate) token: Token,
}

//! Alias keys: a memory key of one virtual HCA used by another one of the same card.
//!
//! A card shows itself as several virtual HCAs (the host's function, that of its Arm cores, scalable functions). Keys of
//! one are unknown to the others, unless the owner allows it: the owner shares a key with a token, and who knows the token
//! makes an alias of it. Revoking or destroying the target kills every alias, also for accesses that are under way.
//! (`ALLOW_OTHER_VHCA_ACCESS`, 0xB16, and alias objects of `CREATE_GENERAL_OBJECT`: Linux `mlx5_ifc.h`; DOCA: "cross-GVMI
//! memory keys".)

use crate::error::NicError;
use crate::mkey::Kind;
use crate::nic::Nic;

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
    pub(crate) token: Token,
}

impl Nic {
    /// The virtual HCA that every card has; [`alloc_pd`](Self::alloc_pd) makes protection domains of it.
    #[must_use]
    pub fn vhca_id(&self) -> u16 {
        self.first_vhca
    }

    /// Makes another virtual HCA on the card, and gives its id. Ids of different cards differ unless their seeds collide.
    ///
    /// # Errors
    /// The card has 256 already.
    pub fn create_vhca(&mut self) -> Result<u16, NicError> {
        const LIMIT: u16 = 256;
        if self.vhcas >= LIMIT {
            return Err(NicError::TooManyVhcas { limit: LIMIT });
        }
        let id = self.first_vhca + self.vhcas;
        self.vhcas += 1;
        Ok(id)
    }

    /// The key of this index with the tag that it has at present, if there is one. Commands name keys by their index.
    #[must_use]
    pub fn mkey_of_index(&self, index: u32) -> Option<u32> {
        let key = index.checked_mul(1 << 8)?;
        let slot = self.protection.index_of_any_tag(key)?;
        Some(key | u32::from(self.protection.slots[slot].tag))
    }

    pub(crate) fn check_vhca(&self, vhca: u16) -> Result<(), NicError> {
        let known = vhca.checked_sub(self.first_vhca).is_some_and(|index| index < self.vhcas);
        if known { Ok(()) } else { Err(NicError::UnknownVhca { vhca }) }
    }

    /// Makes a protection domain of a virtual HCA.
    ///
    /// # Errors
    /// There is no such virtual HCA on this card.
    pub fn alloc_pd_on(&mut self, vhca: u16) -> Result<u32, NicError> {
        self.check_vhca(vhca)?;
        Ok(self.protection.alloc_pd(vhca))
    }

    /// Lets other virtual HCAs of the card make aliases of a key if they know `token`. Sharing it again with another token
    /// kills the aliases of the earlier one.
    ///
    /// # Errors
    /// The key does not exist, or is an alias itself.
    pub fn share_mkey(&mut self, key: u32, token: Token) -> Result<(), NicError> {
        let index = self.protection.index(key).ok_or(NicError::UnknownMkey { key })?;
        let slot = &mut self.protection.slots[index];
        if matches!(slot.kind, Some(Kind::Alias(_))) {
            return Err(NicError::AliasOfAlias { key });
        }
        slot.shared = Some(token);
        Ok(())
    }

    /// Takes the permission back. Every alias of the key is dead from now on.
    ///
    /// # Errors
    /// The key does not exist.
    pub fn revoke_mkey(&mut self, key: u32) -> Result<(), NicError> {
        let index = self.protection.index(key).ok_or(NicError::UnknownMkey { key })?;
        self.protection.slots[index].shared = None;
        Ok(())
    }

    /// Makes an alias of another virtual HCA's key. Addresses, range and rights are those of the target at each access.
    ///
    /// # Errors
    /// No such protection domain; the target's virtual HCA is not on this card, or that of the domain itself; the target
    /// does not exist there, or is not shared with this token.
    pub fn create_alias_mkey(&mut self, attr: AliasAttr) -> Result<u32, NicError> {
        let AliasAttr { pd, target_vhca, target, token } = attr;
        let vhca = self.protection.vhca(pd)?;
        self.check_vhca(target_vhca)?;
        if vhca == target_vhca {
            return Err(NicError::AliasOfOwn { key: target, vhca });
        }
        let index = self.protection.index(target).ok_or(NicError::UnknownMkey { key: target })?;
        let slot = &self.protection.slots[index];
        let owner = slot.kind.as_ref().map(Kind::pd).ok_or(NicError::UnknownMkey { key: target })?;
        if self.protection.vhca(owner)? != target_vhca {
            return Err(NicError::UnknownMkey { key: target });
        }
        if slot.shared != Some(token) {
            return Err(NicError::NotShared { key: target, vhca: target_vhca });
        }
        self.protection.insert(Kind::Alias(Alias { pd, target, token }))
    }
}

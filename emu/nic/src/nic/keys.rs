//! Commands for protection domains, memory keys and virtual HCAs.

use super::Nic;
use crate::access::{Access, KeyFault, MkeyAttr};
use crate::error::NicError;
use crate::identity::PortAddresses;
use crate::keys::alias::{AliasAttr, Token};
use crate::memory::Space;
use crate::wqe::umr::KlmEntry;

impl Nic {
    /// Makes a protection domain of the card's first virtual HCA.
    ///
    /// # Errors
    /// None today; the signature leaves room for a limit.
    pub fn alloc_pd(&mut self) -> Result<u32, NicError> {
        self.datapath.keys.alloc_pd(self.vhca_id())
    }

    /// Destroys a protection domain.
    ///
    /// # Errors
    /// It does not exist, or is in use.
    pub fn dealloc_pd(&mut self, pd: u32) -> Result<(), NicError> {
        self.datapath.keys.dealloc_pd(pd)
    }

    /// Makes a memory key: index in bits 31:8, tag in bits 7:0. It serves as lkey and as rkey.
    ///
    /// # Errors
    /// The protection domain does not exist, the range is empty or passes 2^64, or there are too many keys.
    pub fn create_mkey(&mut self, attr: MkeyAttr) -> Result<u32, NicError> {
        self.datapath.keys.create(attr)
    }

    /// Destroys a memory key. The next key of the same index has another tag, so this one stays refused.
    ///
    /// # Errors
    /// It does not exist.
    pub fn destroy_mkey(&mut self, key: u32) -> Result<(), NicError> {
        self.datapath.keys.destroy(key)
    }

    /// What a memory key gives access to, if it exists and is neither a UMR key nor an alias.
    #[must_use]
    pub fn query_mkey(&self, key: u32) -> Option<&MkeyAttr> {
        self.datapath.keys.attr(key)
    }

    /// Checks an access as the card would, and says which memory it is in.
    ///
    /// # Errors
    /// The key does not exist, is of another protection domain, does not cover the range, or lacks a right; or the
    /// bytes lie at another address than `addr`, or in several places.
    pub fn check_access(&self, key: u32, pd: u32, addr: u64, len: u64, access: Access) -> Result<Space, KeyFault> {
        self.datapath.keys.check(key, pd, addr, len, access)
    }

    /// The virtual HCA that every card has; [`alloc_pd`](Self::alloc_pd) makes protection domains of it.
    #[must_use]
    pub fn vhca_id(&self) -> u16 {
        self.datapath.keys.first_vhca()
    }

    /// Makes another virtual HCA on the card, and gives its id. Ids of different cards differ unless their seeds
    /// collide.
    ///
    /// # Errors
    /// The card has 256 already.
    pub fn create_vhca(&mut self) -> Result<u16, NicError> {
        self.datapath.keys.create_vhca()
    }

    /// Makes another virtual HCA that is a function of the card with port addresses of its own: it is reached by them,
    /// and its queue pairs send from them. All functions share the port and what executes work requests.
    ///
    /// # Errors
    /// The card has 256 virtual HCAs already.
    pub fn create_function(&mut self, addresses: PortAddresses) -> Result<u16, NicError> {
        let vhca = self.create_vhca()?;
        let index = self.datapath.keys.index_of_vhca(vhca)?;
        self.datapath.port.identity.set_addresses(index, addresses);
        Ok(vhca)
    }

    /// The port addresses of a virtual HCA. One that was made without has those of the card's first.
    ///
    /// # Errors
    /// There is no such virtual HCA on this card.
    pub fn port_addresses(&self, vhca: u16) -> Result<&PortAddresses, NicError> {
        let index = self.datapath.keys.index_of_vhca(vhca)?;
        self.datapath.port.identity.addresses(index).ok_or(NicError::UnknownVhca { vhca })
    }

    /// The virtual HCA of a protection domain.
    ///
    /// # Errors
    /// There is no such protection domain.
    pub fn vhca_of_pd(&self, pd: u32) -> Result<u16, NicError> {
        self.datapath.keys.vhca(pd)
    }

    /// The key of this index with the tag that it has at present, if there is one. Commands name keys by their index.
    #[must_use]
    pub fn mkey_of_index(&self, index: u32) -> Option<u32> {
        self.datapath.keys.key_of_index(index)
    }

    /// The same, if the key belongs to this virtual HCA.
    #[must_use]
    pub fn mkey_of_index_on(&self, vhca: u16, index: u32) -> Option<u32> {
        self.datapath.keys.key_of_index_on(vhca, index)
    }

    /// Makes a protection domain of a virtual HCA.
    ///
    /// # Errors
    /// There is no such virtual HCA on this card.
    pub fn alloc_pd_on(&mut self, vhca: u16) -> Result<u32, NicError> {
        self.datapath.keys.alloc_pd(vhca)
    }

    /// Lets other virtual HCAs of the card make aliases of a key if they know `token`. Sharing it again with another
    /// token kills the aliases of the earlier one.
    ///
    /// # Errors
    /// The key does not exist, or is an alias itself.
    pub fn share_mkey(&mut self, key: u32, token: Token) -> Result<(), NicError> {
        self.datapath.keys.share(key, token)
    }

    /// Takes the permission back. Every alias of the key is dead from now on.
    ///
    /// # Errors
    /// The key does not exist.
    pub fn revoke_mkey(&mut self, key: u32) -> Result<(), NicError> {
        self.datapath.keys.revoke(key)
    }

    /// Makes an alias of another virtual HCA's key. Addresses, range and rights are those of the target at each access.
    ///
    /// # Errors
    /// No such protection domain; the target's virtual HCA is not on this card, or that of the domain itself; the
    /// target does not exist there, or is not shared with this token.
    pub fn create_alias_mkey(&mut self, attr: AliasAttr) -> Result<u32, NicError> {
        self.datapath.keys.create_alias(attr)
    }

    /// Makes a UMR key with room for `max_entries` entries. It is free: every access is refused until a UMR work
    /// request binds it.
    ///
    /// # Errors
    /// No such protection domain, no or too many entries, or too many keys.
    pub fn create_umr_mkey(&mut self, pd: u32, max_entries: u32) -> Result<u32, NicError> {
        self.datapath.keys.create_umr(pd, max_entries, false)
    }

    /// Makes a memory window: a UMR key with room for one entry, which is bound to regions with the right
    /// [`Access::WINDOW_BIND`] alone, and gives its peers rights that the region need not have. One whose binding names
    /// a queue pair (type 2) is for that alone.
    ///
    /// # Errors
    /// No such protection domain, or too many keys.
    pub fn create_window(&mut self, pd: u32) -> Result<u32, NicError> {
        self.datapath.keys.create_umr(pd, 1, true)
    }

    /// Gives a memory key another range, protection domain or rights. It keeps its number.
    ///
    /// # Errors
    /// It does not exist, or is no key of a range of memory; the protection domain does not exist, or is another
    /// virtual HCA's; memory windows are bound to it; or as [`create_mkey`](Self::create_mkey).
    pub fn change_mkey(&mut self, key: u32, attr: MkeyAttr) -> Result<(), NicError> {
        self.datapath.keys.change(key, attr)
    }

    /// The list that a UMR key is bound to; `None` if it is free, or not a UMR key.
    #[must_use]
    pub fn query_umr_mkey(&self, key: u32) -> Option<&[KlmEntry]> {
        self.datapath.keys.umr_entries(key)
    }
}

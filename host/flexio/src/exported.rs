//! Memory keys for another function of the card: exported by their owner, and aliases of them.
//!
//! A card in DPU mode is two devices, the host's function and that of its Arm cores, and keys of one are unknown to the
//! other. Four steps make memory of the host usable for work requests that a program on the Arm cores posts:
//!
//! 1. The owner makes a key on its virtual HCA, and
//! 2. marks it accessible to whoever knows an access key ([`ExportedRegion::new`]).
//! 3. It sends the other program virtual HCA, key and access key ([`KeyExport::encode`]; how the bytes get there is the
//!    program's business).
//! 4. The other makes the alias ([`AliasKey::new`]).
//!
//! Each registration costs control operations on both sides.
//!
//! Sources: Linux `mlx5_ifc.h`; UCX's mlx5 transport, which does the same for its exported memory handles; DOCA's
//! exported memory maps.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use verbs_sys as sys;

use crate::addr::HostAddr;
use crate::device::{Device, ProtectionDomain, non_null, random, warn_unless_ok};
use crate::dpa_qp::refused;
use crate::error::{Error, Result};
use crate::memory::{Access, MemoryRegion};
use crate::posting::LocalSlice;
use crate::prm::Mailbox;
use crate::prm::{self, keys};
use crate::raw::Raw;

/// Bytes of an encoded [`KeyExport`].
pub const KEY_EXPORT_BYTES: usize = 72;
/// First bytes of an encoded [`KeyExport`]: its kind, and version 1.
const MAGIC: u32 = u32::from_le_bytes(*b"FKX\x01");

/// What a program must know to make aliases of a key. Whoever has it and a function of the same card reaches the
/// memory, so it is as secret as the memory is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AccessKey([u8; 32]);

impl AccessKey {
    /// An access key of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// One that nobody can guess.
    ///
    /// # Errors
    /// [`Error::Io`]: the system's random numbers cannot be read.
    pub fn random() -> Result<Self> {
        random().map(Self)
    }

    /// Its bytes, to be sent to the other program only.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Logs are read by more people than memory is.
        f.write_str("AccessKey(..)")
    }
}

/// What the owner of a key sends to the program that is to make an alias of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyExport {
    /// System image GUID of the card.
    pub card: u64,
    /// Virtual HCA of the owner's function.
    pub vhca: u16,
    /// The key: index in bits 31:8, tag in bits 7:0.
    pub key: u32,
    /// First byte, as the owner's address.
    pub addr: u64,
    /// Bytes; 0 for a key that is not bound yet.
    pub len: u64,
    /// Rights of the key, which are those of its aliases.
    pub access: Access,
    /// What ALLOW_OTHER_VHCA_ACCESS was given.
    pub access_key: AccessKey,
}

impl KeyExport {
    /// The same in bytes, little-endian: kind and version (4), virtual HCA (2), rights as `ibv_access_flags` (2), key
    /// (4), 4 of zero, card (8), address (8), length (8), access key (32).
    #[must_use]
    pub fn encode(&self) -> [u8; KEY_EXPORT_BYTES] {
        let mut out = [0; KEY_EXPORT_BYTES];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..6].copy_from_slice(&self.vhca.to_le_bytes());
        out[6..8].copy_from_slice(&(self.access.bits() as u16).to_le_bytes());
        out[8..12].copy_from_slice(&self.key.to_le_bytes());
        out[16..24].copy_from_slice(&self.card.to_le_bytes());
        out[24..32].copy_from_slice(&self.addr.to_le_bytes());
        out[32..40].copy_from_slice(&self.len.to_le_bytes());
        out[40..].copy_from_slice(self.access_key.bytes());
        out
    }

    /// What bytes of [`KeyExport::encode`] say.
    ///
    /// # Errors
    /// [`Error::BadDescription`] names the field.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let bad = |what, found, limit: &str| Err(Error::BadDescription { what, found, limit: limit.to_owned() });
        let Ok(bytes) = <&[u8; KEY_EXPORT_BYTES]>::try_from(bytes) else {
            return bad("length", bytes.len() as u64, "72 bytes");
        };
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (head, rights) = (word(0) as u32, word(4) as u32 >> 16);
        if head != MAGIC {
            return bad("kind and version", head.into(), "0x1584b46, version 1");
        }
        let Some(access) = Access::from_bits(rights) else { return bad("rights", rights.into(), "at most 0x7") };
        if bytes[12..16] != [0; 4] {
            return bad("reserved bytes", word(8) >> 32, "0");
        }
        let (addr, len) = (word(24), word(32));
        if len > 0 && addr.checked_add(len - 1).is_none() {
            return bad("length", len, "a range below 2^64");
        }
        let access_key = AccessKey(std::array::from_fn(|i| bytes[40 + i]));
        Ok(Self { card: word(16), vhca: word(4) as u16, key: word(8) as u32, addr, len, access, access_key })
    }
}

impl Device {
    /// What all functions of one physical card have in common, and no other card: the system image GUID.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn system_image_guid(&self) -> Result<u64> {
        Ok(u64::from_be(self.attributes()?.sys_image_guid))
    }

    /// Id of the device's virtual HCA on its card: asked for once, by a control operation.
    ///
    /// # Errors
    /// [`Error::Command`]: a card of another maker, or a device opened without commands.
    pub fn vhca_id(&self) -> Result<u16> {
        if let Some(known) = self.known_vhca_id().get() {
            return Ok(*known);
        }
        let command = keys::query_capabilities();
        let mut answer = Mailbox::<{ keys::CAPABILITY_ANSWER_BYTES }>::zeroed();
        // SAFETY: the context is open; both mailboxes have the lengths passed.
        let errno = unsafe {
            (self.provider().verbs().mlx5dv_devx_general_cmd)(
                self.context(),
                command.as_bytes().as_ptr().cast(),
                keys::CAPABILITY_COMMAND_BYTES,
                answer.as_mut_bytes().as_mut_ptr().cast(),
                keys::CAPABILITY_ANSWER_BYTES,
            )
        };
        if errno != 0 {
            return Err(refused("QUERY_HCA_CAP", &answer, &format!("of {}", self.info().name)));
        }
        Ok(*self.known_vhca_id().get_or_init(|| answer.get(keys::VHCA_ID) as u16))
    }
}

/// Marks a key accessible for functions that know the access key. Aliases by an earlier one are dead.
pub(crate) fn allow(device: &Device, key: u32, access_key: &AccessKey) -> Result<()> {
    let command = keys::allow_access(key >> 8, access_key.bytes());
    let mut answer = Mailbox::<{ prm::QP_ANSWER_BYTES }>::zeroed();
    // SAFETY: the context is open; both mailboxes have the lengths passed.
    let errno = unsafe {
        (device.provider().verbs().mlx5dv_devx_general_cmd)(
            device.context(),
            command.as_bytes().as_ptr().cast(),
            keys::ALLOW_COMMAND_BYTES,
            answer.as_mut_bytes().as_mut_ptr().cast(),
            prm::QP_ANSWER_BYTES,
        )
    };
    if errno != 0 {
        return Err(refused("ALLOW_OTHER_VHCA_ACCESS", &answer, &format!("of key {key:#x}")));
    }
    Ok(())
}

/// A key that a command made, and the memory object that it is over.
#[derive(Debug)]
struct TargetKey {
    device: Device,
    umem: Raw<sys::mlx5dv_devx_umem>,
    /// Not yet made, or destroyed.
    object: Option<Raw<sys::mlx5dv_devx_obj>>,
}

impl TargetKey {
    /// Whether nothing of the memory can be reached by it any more.
    fn end(&mut self) -> bool {
        let verbs = self.device.provider().verbs();
        if let Some(object) = self.object.take() {
            // SAFETY: made by `ExportedRegion::new`, and destroyed only here.
            let errno = unsafe { (verbs.mlx5dv_devx_obj_destroy)(object.as_ptr()) };
            warn_unless_ok("mlx5dv_devx_obj_destroy", errno);
            if errno != 0 {
                return false;
            }
        }
        // SAFETY: as above; no key is over it any more.
        let errno = unsafe { (verbs.mlx5dv_devx_umem_dereg)(self.umem.as_ptr()) };
        warn_unless_ok("mlx5dv_devx_umem_dereg", errno);
        errno == 0
    }
}

/// A memory region that other functions of the card may use, until this is dropped.
///
/// It has a key of its own for them: one that a command made, as the driver does not let programs share those of
/// `ibv_reg_mr`. The card checks it at each access, so that aliases are dead once it is gone.
#[derive(Debug)]
pub struct ExportedRegion {
    export: KeyExport,
    /// `None` while this goes.
    target: Option<TargetKey>,
    /// Dropped once the key is gone; never, if the card does not let go of it.
    region: ManuallyDrop<MemoryRegion>,
}

impl ExportedRegion {
    /// Makes a key over a region, with the region's rights, and marks it accessible (steps 1 and 2). Three control
    /// operations.
    ///
    /// # Errors
    /// [`Error::Verbs`], [`Error::Command`]; the region is dropped.
    pub fn new(region: MemoryRegion, access_key: AccessKey) -> Result<Self> {
        let mut this = Self::unmarked(region, access_key)?;
        this.mark(access_key)?;
        Ok(this)
    }

    /// Step 1 alone: a key that nobody may make an alias of until [`ExportedRegion::mark`].
    ///
    /// # Errors
    /// As [`ExportedRegion::new`].
    pub fn unmarked(region: MemoryRegion, access_key: AccessKey) -> Result<Self> {
        let device = region.pd().device().clone();
        let (addr, len, access) = (region.addr().get(), region.len(), region.access());
        let (card, vhca, pd) = (device.system_image_guid()?, device.vhca_id()?, region.pd().number()?);
        let start = NonNull::new(addr as *mut std::ffi::c_void).map_or(std::ptr::null_mut(), NonNull::as_ptr);
        // SAFETY: the range is the region's, which lives until the key and the memory object are gone, and is reached
        // by raw pointer only.
        let umem =
            unsafe { (device.provider().verbs().mlx5dv_devx_umem_reg)(device.context(), start, len, access.bits()) };
        let umem = non_null("mlx5dv_devx_umem_reg", umem, || format!("{len} bytes with {access:?}"))?;
        // SAFETY: the object is live; the library filled the field.
        let umem_id = unsafe { (*umem.as_ptr()).umem_id };
        let export = KeyExport { card, vhca, key: 0, addr, len: len as u64, access, access_key };
        let target = TargetKey { device: device.clone(), umem, object: None };
        let mut this = Self { export, target: None, region: ManuallyDrop::new(region) };
        let target = this.target.insert(target);
        let rights = keys::Rights {
            local_write: access.contains(Access::LOCAL_WRITE),
            remote_write: access.contains(Access::REMOTE_WRITE),
            remote_read: access.contains(Access::REMOTE_READ),
        };
        let command = keys::create_mkey(pd, umem_id, (addr, len as u64), rights);
        let mut answer = Mailbox::<{ prm::QP_ANSWER_BYTES }>::zeroed();
        // SAFETY: the context is open; both mailboxes have the lengths passed.
        let object = unsafe {
            (device.provider().verbs().mlx5dv_devx_obj_create)(
                device.context(),
                command.as_bytes().as_ptr().cast(),
                keys::MKEY_COMMAND_BYTES,
                answer.as_mut_bytes().as_mut_ptr().cast(),
                prm::QP_ANSWER_BYTES,
            )
        };
        let object = NonNull::new(object);
        let object = object.ok_or_else(|| refused("CREATE_MKEY", &answer, &format!("{len} bytes with {access:?}")))?;
        target.object = Some(Raw::new(object));
        this.export.key = answer.get(keys::OUT_INDEX) << 8;
        Ok(this)
    }

    /// Marks the key accessible for whoever knows the access key (step 2). One control operation. Another access key
    /// than before takes the first one's place: aliases made with that are dead.
    ///
    /// # Errors
    /// [`Error::Command`].
    pub fn mark(&mut self, access_key: AccessKey) -> Result<()> {
        allow(self.region.pd().device(), self.export.key, &access_key)?;
        self.export.access_key = access_key;
        Ok(())
    }

    /// Takes the permission back: all aliases are dead, also for work requests that are under way, and nobody can make
    /// others until [`ExportedRegion::mark`].
    ///
    /// # Errors
    /// [`Error::Command`]; [`Error::Io`].
    pub fn revoke(&mut self) -> Result<()> {
        // The interface has no command for it: an access key that nobody is given takes the place of the old one.
        allow(self.region.pd().device(), self.export.key, &AccessKey::random()?)
    }

    /// What to send to the other program (step 3).
    #[must_use]
    pub fn export(&self) -> KeyExport {
        self.export
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Destroys the key and gives the region back; `None` if the card does not let go of the key, and the memory is
    /// never used again.
    #[must_use]
    pub fn into_region(self) -> Option<MemoryRegion> {
        let mut this = ManuallyDrop::new(self);
        let ended = this.target.take().is_none_or(|mut target| target.end());
        // SAFETY: `this` is not dropped, and its region not used again.
        let region = unsafe { ManuallyDrop::take(&mut this.region) };
        if ended {
            return Some(region);
        }
        // The card may still reach the bytes: leaking them is the lesser evil.
        std::mem::forget(region);
        None
    }
}

impl Drop for ExportedRegion {
    fn drop(&mut self) {
        if self.target.take().is_none_or(|mut target| target.end()) {
            // SAFETY: dropped only here, and `into_region` does not come here.
            unsafe { ManuallyDrop::drop(&mut self.region) };
        }
    }
}

/// A key of this function that stands for one of another function of the card, until this is dropped.
#[derive(Debug)]
pub struct AliasKey {
    pd: ProtectionDomain,
    raw: Raw<sys::mlx5dv_devx_obj>,
    key: u32,
    export: KeyExport,
}

impl AliasKey {
    /// Makes an alias in a protection domain (step 4). One control operation.
    ///
    /// # Errors
    /// [`Error::OtherCard`] for a key of another physical card. [`Error::Command`] when the card refuses: the key is
    /// gone, not marked with this access key, of the same function as the domain, or an alias itself. [`Error::Verbs`].
    pub fn new(pd: &ProtectionDomain, export: &KeyExport) -> Result<Self> {
        let device = pd.device();
        let own = device.system_image_guid()?;
        if export.card != own {
            return Err(Error::OtherCard { exported: export.card, own });
        }
        let KeyExport { vhca, key, .. } = *export;
        let command = keys::create_alias(pd.number()?, vhca, key >> 8, export.access_key.bytes());
        let mut answer = Mailbox::<{ prm::QP_ANSWER_BYTES }>::zeroed();
        // SAFETY: the context is open; both mailboxes have the lengths passed.
        let raw = unsafe {
            (device.provider().verbs().mlx5dv_devx_obj_create)(
                device.context(),
                command.as_bytes().as_ptr().cast(),
                keys::ALIAS_COMMAND_BYTES,
                answer.as_mut_bytes().as_mut_ptr().cast(),
                prm::QP_ANSWER_BYTES,
            )
        };
        let detail = || {
            format!(
                "alias of key {key:#x} of virtual HCA {vhca:#x}: its owner must have marked it with this access key, \
                 and not revoked or destroyed it since"
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| refused("CREATE_GENERAL_OBJECT", &answer, &detail()))?;
        let key = answer.get(keys::OUT_INDEX) << 8;
        Ok(Self { pd: pd.clone(), raw: Raw::new(raw), key, export: *export })
    }

    /// The key, for work requests of queue pairs of its domain, and for peers that write to or read from them.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// What it stands for.
    #[must_use]
    pub fn export(&self) -> &KeyExport {
        &self.export
    }

    /// `len` bytes at `offset` of the owner's memory for a work request.
    ///
    /// # Errors
    /// [`Error::RegionRange`].
    pub fn slice(&self, offset: u64, len: u32) -> Result<LocalSlice> {
        let (addr, region_len) = (HostAddr(self.export.addr), self.export.len);
        if offset.checked_add(u64::from(len)).is_none_or(|end| end > region_len) {
            return Err(Error::RegionRange { offset, len: len.into(), region: addr, region_len });
        }
        Ok(LocalSlice { addr: addr.offset(offset), len, lkey: self.key })
    }
}

impl Drop for AliasKey {
    fn drop(&mut self) {
        // SAFETY: made in `new` and destroyed only here.
        let errno = unsafe { (self.pd.device().provider().verbs().mlx5dv_devx_obj_destroy)(self.raw.as_ptr()) };
        warn_unless_ok("mlx5dv_devx_obj_destroy", errno);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export() -> KeyExport {
        KeyExport {
            card: 0x0200_00FF_FE00_0001,
            vhca: 0x1200,
            key: 0xABCD_EF00,
            addr: 0x7F00_0000_1000,
            len: 0x2000,
            access: Access::LOCAL_WRITE | Access::REMOTE_READ,
            access_key: AccessKey::new(std::array::from_fn(|i| i as u8)),
        }
    }

    #[test]
    fn a_description_goes_there_and_back() {
        let bytes = export().encode();
        assert_eq!(bytes[..16], [b'F', b'K', b'X', 1, 0, 0x12, 5, 0, 0, 0xEF, 0xCD, 0xAB, 0, 0, 0, 0]);
        assert_eq!(KeyExport::decode(&bytes).expect("as encoded"), export());
    }

    #[test]
    fn a_description_that_is_none_is_named() {
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = export().encode().to_vec();
            change(&mut bytes);
            KeyExport::decode(&bytes).expect_err("not a description").to_string()
        };
        assert!(
            refused(&|bytes| bytes.truncate(71))
                .starts_with("length 0x47 in the description of a key: must be 72 bytes")
        );
        assert!(refused(&|bytes| bytes.push(0)).contains("length 0x49"));
        assert!(refused(&|bytes| bytes[3] = 2).starts_with("kind and version 0x2584b46"), "a later version");
        assert!(refused(&|bytes| bytes[6] = 8).starts_with("rights 0x8"));
        assert!(refused(&|bytes| bytes[13] = 1).starts_with("reserved bytes 0x100"));
        assert!(refused(&|bytes| bytes[24..32].fill(0xFF)).starts_with("length 0x2000"));
    }

    #[test]
    fn an_access_key_is_not_shown() {
        assert_eq!(format!("{:?}", AccessKey::new([7; 32])), "AccessKey(..)");
        assert_ne!(AccessKey::random().expect("random bytes"), AccessKey::random().expect("random bytes"));
    }
}

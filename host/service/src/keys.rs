//! Memory keys in messages, and as the card's library has them.

use flexcast_proto::service::Region;
use flexcast_proto::service::wire::{self, KeyForm, Rights};
use flexio::{Access, AccessKey, KeyExport, MemoryRegion, ProtectionDomain};

use crate::error::Result;

/// A key of a rank as its service process makes an alias of it. Ranks are of the process's own card; the card itself
/// finds others.
pub(crate) fn export(pd: &ProtectionDomain, announced: &wire::KeyExport) -> Result<KeyExport> {
    let wire::KeyExport { region: Region { address, key, bytes }, rights, virtual_hca, access_key, .. } = *announced;
    let parts = [
        (rights.local_write, Access::LOCAL_WRITE),
        (rights.remote_write, Access::REMOTE_WRITE),
        (rights.remote_read, Access::REMOTE_READ),
    ];
    let access = parts.into_iter().filter(|(has, _)| *has).fold(Access::empty(), |all, (_, one)| all | one);
    Ok(KeyExport {
        card: pd.device().system_image_guid()?,
        vhca: virtual_hca,
        key,
        addr: address,
        len: bytes,
        access,
        access_key: AccessKey::new(access_key.0),
    })
}

const fn rights(access: Access) -> Rights {
    Rights {
        local_write: access.contains(Access::LOCAL_WRITE),
        remote_write: access.contains(Access::REMOTE_WRITE),
        remote_read: access.contains(Access::REMOTE_READ),
        remote_atomic: false,
    }
}

/// A key as a rank announces it to its service process.
pub(crate) fn announced(export: &KeyExport, generation: u32) -> wire::KeyExport {
    let KeyExport { vhca, key, addr, len, access, access_key, .. } = *export;
    wire::KeyExport {
        form: KeyForm::Memory,
        region: Region { address: addr, key, bytes: len },
        rights: rights(access),
        virtual_hca: vhca,
        generation,
        access_key: wire::AccessKey(*access_key.bytes()),
    }
}

/// A key of a pool, which reaches nothing yet.
pub(crate) fn pooled(export: &KeyExport) -> wire::KeyExport {
    wire::KeyExport { form: KeyForm::Pool, ..announced(export, 0) }
}

/// A key of a pool that is bound to memory at an address of the host.
pub(crate) fn bound(
    region: &MemoryRegion,
    (key, generation): (u32, u32),
    virtual_hca: u16,
    address: u64,
) -> wire::KeyExport {
    wire::KeyExport {
        form: KeyForm::Bound,
        region: Region { address, key, bytes: region.len() as u64 },
        rights: rights(region.access()),
        virtual_hca,
        generation,
        access_key: wire::AccessKey([0; 32]),
    }
}

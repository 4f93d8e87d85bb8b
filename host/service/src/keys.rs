//! Memory keys in messages, and as the card's library has them.

use flexcast_proto::service::Region;
use flexcast_proto::service::wire::{self, Rights};
use flexio::{Access, AccessKey, KeyExport, ProtectionDomain};

use crate::error::Result;

/// A key of a rank as its service process makes an alias of it. Ranks are of the process's own card; the card itself finds others.
pub(crate) fn export(pd: &ProtectionDomain, told: &wire::KeyExport) -> Result<KeyExport> {
    let wire::KeyExport { region: Region { address, key, bytes }, rights, virtual_hca, access_key, .. } = *told;
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

/// A key as a rank tells its service process of it.
pub(crate) fn told(export: &KeyExport, generation: u32) -> wire::KeyExport {
    let KeyExport { vhca, key, addr, len, access, access_key, .. } = *export;
    let has = |right| access.contains(right);
    wire::KeyExport {
        region: Region { address: addr, key, bytes: len },
        rights: Rights {
            local_write: has(Access::LOCAL_WRITE),
            remote_write: has(Access::REMOTE_WRITE),
            remote_read: has(Access::REMOTE_READ),
            remote_atomic: false,
        },
        virtual_hca: vhca,
        generation,
        access_key: wire::AccessKey(*access_key.bytes()),
    }
}

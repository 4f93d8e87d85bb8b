//! Memory keys over device memory.

use std::sync::Arc;

use emu_libibverbs::access_rights;
use emu_libibverbs::handle::{self, Object};
use emu_machine::nic::MkeyAttr;
use flexio_sys::*;

use crate::process::{Process, attribute, number_of, world};
use crate::status::{Failure, out, status};

pub(crate) struct Mkey {
    process: Arc<Process>,
    key: u32,
}

impl Object for Mkey {
    const KIND: &'static str = "memory key";
    type C = flexio_mkey;
    fn c_address(&self) -> *mut flexio_mkey {
        (self as *const Self).cast_mut().cast()
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_device_mkey_create(
    process: *mut flexio_process,
    fattr: *mut flexio_mkey_attr,
    mkey: *mut *mut flexio_mkey,
) -> flexio_status {
    status("flexio_device_mkey_create", || {
        let process = handle::get::<Process>(process)?;
        // SAFETY: null, or initialised and writable as the interface asks.
        let (attr, mkey) = unsafe { (attribute(fattr)?, out(mkey, "mkey")?) };
        let pd = process.domain(attr.pd)?.number;
        let len = attr.len as u64;
        let memory = process.device_memory("the key", attr.daddr, len)?;
        let access = access_rights(attr.access.cast_unsigned())?;
        let attr = MkeyAttr { pd, space: memory.space, start: attr.daddr, len, access, offset: 0 };
        let key = world(|world| Ok::<_, Failure>(world.card(process.card)?.nic.create_mkey(attr)?))?;
        mkey.write(handle::publish(&Arc::new(Mkey { process, key })));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_device_mkey_destroy(mkey: *mut flexio_mkey) -> flexio_status {
    status("flexio_device_mkey_destroy", || {
        if mkey.is_null() {
            return Ok(());
        }
        let object = handle::get::<Mkey>(mkey)?;
        world(|world| {
            world.explain_key_end(object.process.card, object.key);
            Ok::<_, Failure>(world.card(object.process.card)?.nic.destroy_mkey(object.key)?)
        })?;
        handle::retire::<Mkey>(mkey)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_mkey_get_id(mkey: *mut flexio_mkey) -> u32 {
    number_of::<Mkey>("flexio_mkey_get_id", mkey, |mkey| mkey.key)
}

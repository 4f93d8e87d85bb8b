//! A device image, checked and registered.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;

use flexcast_abi::{Rpc, RpcAnswer, RpcArgument};
use flexcast_image::{EntryKind, Image, ImageError, Unserved};
use flexio_sys as sys;

use crate::error::{Error, Result};
use crate::provider::{Library, Provider};
use crate::raw::Raw;

/// Bytes of an RPC's argument buffer: one 64-bit value.
const ARGUMENT_BYTES: usize = size_of::<u64>();

/// The host–device ABI that an image must have been built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbiExpectation {
    /// Version of the host.
    pub version: u32,
    /// Hash over the layouts of the host.
    pub hash: u64,
}

/// A device ELF that the library has taken, with its entries registered, until this, its clones and its processes are
/// gone.
#[derive(Clone)]
pub struct Application(Arc<Registered>);

struct Registered {
    provider: Provider,
    api: sys::FlexioApi,
    raw: Raw<sys::flexio_app>,
    name: String,
    image: Image,
    handlers: BTreeMap<String, sys::flexio_func_t>,
    rpcs: BTreeMap<String, Box<u64>>,
}

impl std::fmt::Debug for Application {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Application").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl Application {
    /// Parses and checks an image before the library sees it, then registers it and every entry in it.
    ///
    /// # Errors
    /// [`Error::Image`] with the reason (not an ELF, wrong machine, ABI of another version, thread-local variables, …),
    /// [`Error::FlexIo`], [`Error::NotInstalled`] by a provider of verbs alone.
    pub fn load(provider: &Provider, name: &str, elf: &[u8], abi: Option<AbiExpectation>) -> Result<Self> {
        let bad = |source| Error::Image { image: name.to_owned(), source };
        let image = Image::parse(elf).map_err(bad)?;
        // What a dynamic linker would have to do is left to the library: a card's may move images.
        let mut parts = image.unserved();
        parts.retain(|part| matches!(part, Unserved::ThreadLocal { .. } | Unserved::Functions { .. }));
        if !parts.is_empty() {
            return Err(bad(ImageError::Unserved { parts }));
        }
        if let Some(abi) = abi {
            image.expect_abi(abi.version, abi.hash).map_err(bad)?;
        }
        let api = provider.flexio_api()?;
        let c_name = c_string("name of an application", name)?;
        // The library may want the ELF aligned as one; copies are cheap, images are small.
        let mut bytes = elf.to_vec();
        let mut no_signature = [0 as std::ffi::c_char; 1];
        let mut attr = sys::flexio_app_attr {
            app_name: c_name.as_ptr(),
            app_ptr: bytes.as_mut_ptr().cast(),
            app_bsize: bytes.len(),
            app_sig_sec_name: no_signature.as_mut_ptr(),
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: name, ELF and signature name live through the call, which copies them; `raw` is writable.
        let status = unsafe { (provider.flexio(&api).flexio_app_create)(&raw mut attr, &raw mut raw) };
        provider.flexio_ok("flexio_app_create", status, || format!("{name}, {} bytes", elf.len()))?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::FlexIo {
            call: "flexio_app_create",
            status: crate::Status(sys::FLEXIO_STATUS_SUCCESS),
            detail: "success without an application".to_owned(),
        })?;
        let mut this = Registered {
            provider: provider.clone(),
            api,
            raw: Raw::new(raw),
            name: name.to_owned(),
            image,
            handlers: BTreeMap::new(),
            rpcs: BTreeMap::new(),
        };
        this.register_entries()?;
        Ok(Self(Arc::new(this)))
    }

    /// The library's functions, for one call.
    pub(crate) fn api(&self) -> Library<'_, sys::FlexioApi> {
        self.0.provider.flexio(&self.0.api)
    }

    /// The provider.
    #[must_use]
    pub fn provider(&self) -> &Provider {
        &self.0.provider
    }

    /// Name given when it was loaded.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The image, for its entries and symbols.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.0.image
    }

    pub(crate) fn raw(&self) -> *mut sys::flexio_app {
        self.0.raw.as_ptr()
    }

    /// Checks that the image has an RPC, and that its function takes what the host passes: both were built from one
    /// definition of the argument.
    ///
    /// # Errors
    /// [`Error::Image`].
    pub fn expect_rpc<Argument: RpcArgument, Answer: RpcAnswer>(&self, rpc: &Rpc<Argument, Answer>) -> Result<()> {
        self.check_kind(rpc.name(), EntryKind::Rpc)?;
        let bad = |source: ImageError| Error::Image { image: self.0.name.clone(), source };
        self.0.image.expect_argument(rpc.name(), Argument::LAYOUT_HASH).map_err(bad)
    }

    fn check_kind(&self, name: &str, kind: EntryKind) -> Result<()> {
        let bad = |source: ImageError| Error::Image { image: self.0.name.clone(), source };
        self.0.image.entry_of_kind(name, kind).map(|_| ()).map_err(bad)
    }

    pub(crate) fn handler(&self, name: &str) -> Result<sys::flexio_func_t> {
        self.check_kind(name, EntryKind::EventHandler)?;
        Ok(self.0.handlers[name])
    }

    pub(crate) fn rpc(&self, name: &str) -> Result<sys::flexio_func_t> {
        self.check_kind(name, EntryKind::Rpc)?;
        Ok(stub_of(&self.0.rpcs[name]))
    }
}

impl Registered {
    fn register_entries(&mut self) -> Result<()> {
        for entry in self.image.entries() {
            let c_name = c_string("name of an entry", &entry.name)?;
            if entry.kind == EntryKind::Rpc {
                let unpack = c_string("name of an unpack function", &format!("{}__unpack", entry.name))?;
                // The key is an address and nothing else: that of a box is unique while the application lives.
                let key = Box::new(entry.addr);
                let stub = stub_of(&key);
                // SAFETY: the application is live; the names live through the call; the pack function fills exactly
                // ARGUMENT_BYTES.
                let status = unsafe {
                    (self.provider.flexio(&self.api).flexio_func_pup_register)(
                        self.raw.as_ptr(),
                        c_name.as_ptr(),
                        unpack.as_ptr(),
                        stub,
                        ARGUMENT_BYTES,
                        Some(sys::pack_u64()),
                    )
                };
                self.provider.flexio_ok("flexio_func_pup_register", status, || entry.name.clone())?;
                self.rpcs.insert(entry.name.clone(), key);
            } else {
                let mut stub: sys::flexio_func_t = None;
                // SAFETY: the application is live, the name lives through the call, `stub` is writable.
                let status = unsafe {
                    (self.provider.flexio(&self.api).flexio_func_register)(
                        self.raw.as_ptr(),
                        c_name.as_ptr(),
                        (&raw mut stub).cast(),
                    )
                };
                self.provider.flexio_ok("flexio_func_register", status, || entry.name.clone())?;
                self.handlers.insert(entry.name.clone(), stub);
            }
        }
        Ok(())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: created in `load`; processes that use it hold a count of this object, so none does.
        let status = unsafe { (self.provider.flexio(&self.api).flexio_app_destroy)(self.raw.as_ptr()) };
        if status != sys::FLEXIO_STATUS_SUCCESS {
            tracing::warn!(status, name = self.name, "application could not be destroyed");
        }
    }
}

fn stub_of(key: &u64) -> sys::flexio_func_t {
    sys::stub_key(NonNull::from(key).cast())
}

pub(crate) fn c_string(what: &'static str, value: &str) -> Result<CString> {
    CString::new(value).map_err(|_| Error::Nul { what, value: value.to_owned() })
}

//! Applications: device images with the functions registered in them.

use core::ffi::{c_char, c_void};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use emu_libibverbs::Context;
use emu_libibverbs::handle::{self, CStruct, Object};
use emu_machine::{Config, World};
use flexio_sys::*;

use crate::status::{Result, failed, input, out, pointer, status, status_without_card, text, value};

/// Largest argument buffer of an RPC.
const MAX_ARGBUF_BYTES: usize = 64 << 10;

/// An application.
pub struct App {
    name: CString,
    elf: Vec<u8>,
    /// A machine that never runs: loading the image into it checks the image, and answers for its symbols.
    shelf: Mutex<(World, u32)>,
    functions: Mutex<Functions>,
}

#[derive(Default)]
struct Functions {
    by_key: BTreeMap<usize, Function>,
    /// The addresses given out as keys.
    keys: Vec<Pin<Box<u64>>>,
}

/// A function of the image that the host may name.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name in the image.
    pub name: String,
    /// Its address there.
    pub addr: u64,
    /// How the host passes arguments to it, if it does.
    pub rpc: Option<Rpc>,
}

/// What calls need.
#[derive(Clone, Debug)]
pub struct Rpc {
    unpack_name: String,
    /// Address of the function that takes the arguments out of a buffer.
    pub unpack: u64,
    /// Bytes of that buffer.
    pub argbuf_bytes: usize,
    /// The host's function that puts them there.
    pub pack: unsafe extern "C" fn(*mut c_void, *mut __va_list_tag),
}

impl Object for App {
    const KIND: &'static str = "application";
    type C = flexio_app;
    fn c_address(&self) -> *mut flexio_app {
        (self as *const Self).cast_mut().cast()
    }
}

impl App {
    fn functions(&self) -> MutexGuard<'_, Functions> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name, as the host gave it.
    #[must_use]
    pub fn label(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// The image.
    #[must_use]
    pub fn elf(&self) -> &[u8] {
        &self.elf
    }

    /// Address of a symbol of the image.
    ///
    /// # Errors
    /// It has none of this name.
    pub fn symbol(&self, name: &str) -> Result<u64> {
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let (world, process) = &mut *shelf;
        let process = world.card(0)?.process(*process)?;
        process
            .image
            .symbol(name)
            .ok_or_else(|| failed(format!("the image has no symbol {name}; is it stripped, or the name misspelt?")))
    }

    /// The function registered under a key.
    ///
    /// # Errors
    /// None is.
    pub fn function(&self, key: flexio_func_t) -> Result<Function> {
        let address = key.map_or(0, |key| key as usize);
        self.functions().by_key.get(&address).cloned().ok_or_else(|| {
            failed(format!("{address:#x} is not the key of a function registered with this application"))
        })
    }
}

static APPS: Mutex<Vec<Weak<App>>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_app_create(
    fattr: *mut flexio_app_attr,
    app: *mut *mut flexio_app,
) -> flexio_status {
    status_without_card("flexio_app_create", || {
        // SAFETY: null, or initialised and writable as the interface asks.
        let (attr, app) = unsafe { (input(fattr, "fattr")?, out(app, "app")?) };
        // SAFETY: a terminated string, as the interface asks.
        let name = unsafe { text(attr.app_name, "app_name") }?;
        if attr.app_ptr.is_null() || attr.app_bsize == 0 {
            return Err(failed("app_ptr is null or app_bsize 0: a device ELF is needed"));
        }
        // SAFETY: not null; the interface asks for this many readable bytes.
        let elf = unsafe { core::slice::from_raw_parts(attr.app_ptr.cast::<u8>(), attr.app_bsize) }.to_vec();
        let mut world = World::new(Config { cards: 1, heap_bytes: 64, ..Config::default() })?;
        let process = world.create_process(0, &elf)?;
        let object = Arc::new(App {
            name: CString::new(name).map_err(failed)?,
            elf,
            shelf: Mutex::new((world, process)),
            functions: Mutex::default(),
        });
        APPS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&object));
        app.write(handle::publish(&object));
        Ok(())
    })
}

/// The applications that exist.
fn apps() -> Vec<Arc<App>> {
    let mut apps = APPS.lock().unwrap_or_else(PoisonError::into_inner);
    // A weak reference keeps the memory of what it refers to.
    apps.retain(|app| app.strong_count() > 0);
    apps.iter().filter_map(Weak::upgrade).collect()
}

/// Finds the application that `dpacc` has made, as programs do from release 24.10 on.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_app_get(
    fattr: *mut flexio_app_select_attr,
    app: *mut *mut flexio_app,
) -> flexio_status {
    status_without_card("flexio_app_get", || {
        // SAFETY: null, or initialised and writable as the interface asks.
        let (attr, app) = unsafe { (input(fattr, "fattr")?, out(app, "app")?) };
        // SAFETY: a terminated string, as the interface asks.
        let name = unsafe { text(attr.app_name, "app_name") }?;
        if attr.hw_model_id != FLEXIO_HW_MODEL_DEF {
            let model = attr.hw_model_id;
            return Err(failed(format!(
                "hw_model_id is {model}: here is FLEXIO_HW_MODEL_DEF (0) alone, the card's own"
            )));
        }
        if attr.ibv_ctx.is_null() {
            return Err(failed("ibv_ctx is null: FLEXIO_HW_MODEL_DEF asks the device for its model"));
        }
        handle::get::<Context>(attr.ibv_ctx)?;
        let apps = apps();
        let Some(found) = apps.iter().find(|app| app.name.as_bytes() == name.as_bytes()) else {
            let names: Vec<String> = apps.iter().map(|app| app.label()).collect();
            let there =
                if names.is_empty() { "there is none".to_owned() } else { format!("there are: {}", names.join(", ")) };
            return Err(failed(format!(
                "no application is named {name} ({there}); dpacc names it by --app-name, and its archive must be linked"
            )));
        };
        app.write(found.c_address());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_app_destroy(app: *mut flexio_app) -> flexio_status {
    status_without_card("flexio_app_destroy", || {
        let object = handle::get::<App>(app)?;
        // This call and the set of live handles hold it as well.
        let processes = Arc::strong_count(&object).saturating_sub(2);
        if processes > 0 {
            return Err(failed(format!("processes of the application still exist ({processes}): destroy them first")));
        }
        handle::retire::<App>(app)?;
        Ok(())
    })
}

struct AppList(CStruct<Vec<*mut flexio_app>>);

impl Object for AppList {
    const KIND: &'static str = "application list";
    type C = *mut flexio_app;
    fn c_address(&self) -> *mut *mut flexio_app {
        // SAFETY: nobody changes the vector after creation, so its buffer stays where it is.
        unsafe { (*self.0.get()).as_mut_ptr() }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_app_get_list(
    app_list: *mut *mut *mut flexio_app,
    num_apps: *mut u32,
) -> flexio_status {
    status("flexio_app_get_list", || {
        // SAFETY: null, or writable as the interface asks.
        let (list, count) = unsafe { (out(app_list, "app_list")?, out(num_apps, "num_apps")?) };
        let mut entries: Vec<_> = apps().iter().map(|app| app.c_address()).collect();
        count.write(entries.len() as u32);
        entries.push(core::ptr::null_mut());
        list.write(handle::publish(&Arc::new(AppList(CStruct::new(entries)))));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_app_list_free(apps_list: *mut *mut flexio_app) -> flexio_status {
    status("flexio_app_list_free", || Ok(handle::retire::<AppList>(apps_list).map(drop)?))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_app_get_name(app: *mut flexio_app) -> *const c_char {
    // The name lives as long as the handle.
    pointer("flexio_app_get_name", || Ok(handle::get::<App>(app)?.name.as_ptr().cast_mut()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_app_get_elf_size(app: *mut flexio_app) -> usize {
    value("flexio_app_get_elf_size", 0, || Ok(handle::get::<App>(app)?.elf.len()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_app_get_elf(app: *mut flexio_app, elf: *mut u64, bufsz: usize) -> flexio_status {
    status("flexio_app_get_elf", || {
        let app = handle::get::<App>(app)?;
        if elf.is_null() || bufsz < app.elf.len() {
            return Err(failed(format!(
                "the buffer of {bufsz} bytes is null or shorter than the ELF ({})",
                app.elf.len()
            )));
        }
        // SAFETY: not null and, as the caller says, `bufsz` bytes long.
        unsafe { core::ptr::copy_nonoverlapping(app.elf.as_ptr(), elf.cast(), app.elf.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_func_register(
    app: *mut flexio_app,
    dev_func_name: *const c_char,
    out_func: *mut flexio_func_t,
) -> flexio_status {
    status_without_card("flexio_func_register", || {
        let app = handle::get::<App>(app)?;
        // SAFETY: null, or a terminated string and a writable key, as the interface asks.
        let (name, out_func) = unsafe { (text(dev_func_name, "dev_func_name")?, out(out_func, "out_func")?) };
        let addr = app.symbol(name)?;
        let mut functions = app.functions();
        let record = Box::pin(addr);
        let key = flexio_sys::stub_key(core::ptr::NonNull::from(&*record).cast());
        functions.keys.push(record);
        functions.by_key.insert(key.map_or(0, |key| key as usize), Function { name: name.to_owned(), addr, rpc: None });
        out_func.write(key);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_func_pup_register(
    app: *mut flexio_app,
    dev_func_name: *const c_char,
    dev_unpack_func_name: *const c_char,
    host_stub_func_addr: flexio_func_t,
    argbuf_size: usize,
    host_pack_func: flexio_func_arg_pack_fn_t,
) -> flexio_status {
    status_without_card("flexio_func_pup_register", || {
        let app = handle::get::<App>(app)?;
        // SAFETY: null, or terminated strings as the interface asks.
        let (name, unpack_name) =
            unsafe { (text(dev_func_name, "dev_func_name")?, text(dev_unpack_func_name, "dev_unpack_func_name")?) };
        let key = host_stub_func_addr.ok_or_else(|| failed("host_stub_func_addr is null"))? as usize;
        let pack = host_pack_func.ok_or_else(|| failed("host_pack_func is null"))?;
        if argbuf_size > MAX_ARGBUF_BYTES {
            return Err(failed(format!("argbuf_size is {argbuf_size}: at most {MAX_ARGBUF_BYTES} bytes are possible")));
        }
        let rpc = Rpc {
            unpack_name: unpack_name.to_owned(),
            unpack: app.symbol(unpack_name)?,
            argbuf_bytes: argbuf_size,
            pack,
        };
        let addr = app.symbol(name)?;
        let mut functions = app.functions();
        if let Some(other) = functions.by_key.get(&key) {
            return Err(failed(format!("the key {key:#x} is that of {} already", other.name)));
        }
        functions.by_key.insert(key, Function { name: name.to_owned(), addr, rpc: Some(rpc) });
        Ok(())
    })
}

/// Copies a name into a buffer, unless that is null.
///
/// # Safety
/// If not null, `to` must be writable for `size` bytes.
unsafe fn put_name(to: *mut c_char, size: usize, name: &str) -> Result<()> {
    if to.is_null() {
        return Ok(());
    }
    if size <= name.len() {
        return Err(failed(format!("func_name_size is {size}: {name} needs {}", name.len() + 1)));
    }
    // SAFETY: the name and its terminator fit.
    unsafe {
        core::ptr::copy_nonoverlapping(name.as_ptr(), to.cast(), name.len());
        to.add(name.len()).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_func_get_register_info(
    app: *mut flexio_app,
    host_stub_func_addr: flexio_func_t,
    pup: *mut u32,
    dev_func_name: *mut c_char,
    dev_unpack_func_name: *mut c_char,
    func_name_size: usize,
    argbuf_size: *mut usize,
    host_pack_func: *mut flexio_func_arg_pack_fn_t,
    dev_func_addr: *mut flexio_uintptr_t,
    dev_unpack_func_addr: *mut flexio_uintptr_t,
) -> flexio_status {
    status("flexio_func_get_register_info", || {
        let function = handle::get::<App>(app)?.function(host_stub_func_addr)?;
        let rpc = function.rpc.as_ref();
        // SAFETY: every out-parameter is null or writable, the names for `func_name_size` bytes.
        unsafe {
            put_name(dev_func_name, func_name_size, &function.name)?;
            put_name(dev_unpack_func_name, func_name_size, rpc.map_or("", |rpc| &rpc.unpack_name))?;
            out(pup, "pup")?.write(u32::from(rpc.is_some()));
            out(argbuf_size, "argbuf_size")?.write(rpc.map_or(0, |rpc| rpc.argbuf_bytes));
            out(host_pack_func, "host_pack_func")?.write(rpc.map(|rpc| rpc.pack));
            out(dev_func_addr, "dev_func_addr")?.write(function.addr);
            out(dev_unpack_func_addr, "dev_unpack_func_addr")?.write(rpc.map_or(0, |rpc| rpc.unpack));
        }
        Ok(())
    })
}

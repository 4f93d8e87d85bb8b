//! FlexIO: applications, functions, processes and their memory.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::{NonNull, null, null_mut};

use flexcast_image::testing::TEXT;
use flexio_sys::*;
use verbs_sys::{ibv_context, ibv_pd};

use super::Api;
use super::handles::Kind;
use crate::abi::{ARGUMENT_BYTES, FUNCTIONS, image};
use crate::call;
use crate::input::Input;

const OK: flexio_status = FLEXIO_STATUS_SUCCESS;
/// Keys of RPCs: only their addresses count.
static KEYS: [u8; 8] = [0; 8];
/// A file that cannot be written, for calls that write files.
const NO_FILE: &CStr = c"/dev/null/fuzz";

impl Api<'_> {
    pub(super) fn create_application(&mut self, elf: &[u8]) -> bool {
        let elf_ptr = self.program.bytes(elf);
        let attr = self.program.put(flexio_app_attr {
            app_name: c"fuzz".as_ptr(),
            app_ptr: elf_ptr.cast(),
            app_bsize: elf.len(),
            app_sig_sec_name: null_mut(),
        });
        let mut app = null_mut();
        let status = call!(self.program.flexio, flexio_app_create(attr, &raw mut app));
        if status == OK {
            self.handles.add(Kind::App, app, 0);
        }
        status == OK
    }

    pub(super) fn register_function(&mut self, app: usize, name: *const c_char) {
        let app: *mut flexio_app = self.handles.nth(Kind::App, app);
        let mut key = None;
        if call!(self.program.flexio, flexio_func_register(app, name, &raw mut key)) == OK {
            self.keys.push(key);
        }
    }

    pub(super) fn create_process(&mut self, context: *mut ibv_context, app: *mut flexio_app, pd: *mut ibv_pd) {
        let flexio = self.program.flexio;
        let attr = self.program.put(flexio_process_attr { pd, en_pcc: 0 });
        let attr = if pd.is_null() { null() } else { attr.cast_const() };
        let mut process = null_mut();
        if call!(flexio, flexio_process_create(context, app, attr, &raw mut process)) == OK {
            let dumem = call!(flexio, flexio_process_get_dumem_id(process));
            self.handles.add(Kind::Process, process, dumem);
            let uar = call!(flexio, flexio_process_get_uar(process));
            self.handles.borrow(Kind::FlexioUar, uar, call!(flexio, flexio_uar_get_id(uar)));
            if pd.is_null() {
                self.handles.borrow(Kind::Pd, call!(flexio, others flexio_process_get_pd(process)), 0);
            }
        }
    }

    pub(super) fn key(&self, input: &mut Input<'_>) -> flexio_func_t {
        match input.u8() {
            0xFF => None,
            0xFE => stub_key(NonNull::from(&KEYS[0]).cast()),
            which => self.keys.get(usize::from(which) % self.keys.len().max(1)).copied().flatten(),
        }
    }

    /// A device address that was given out, one near it, or any.
    pub(super) fn daddr(&self, input: &mut Input<'_>) -> u64 {
        // Code, data and a stack of the image, windows, registers, the end of the address space.
        const PLACES: [u64; 8] =
            [TEXT, 0x8000_0000, 0xC001_2000, 0xC001_4FFF, 0xD000_0000, 1 << 63, 0xC << 60, u64::MAX];
        match input.u8() {
            0xFF => input.number(),
            0xFE => input.pick(&PLACES),
            which => {
                let known = self.addresses.get(usize::from(which >> 2) % self.addresses.len().max(1));
                known.map_or(0x1_0000_0000, |address| address + u64::from(which & 3) * 64)
            }
        }
    }

    pub(super) fn memory(&self, input: &mut Input<'_>) -> flexio_qmem {
        let mut memory = flexio_qmem { memtype: (input.u8() & 3).into(), ..Default::default() };
        match memory.memtype {
            FLEXIO_MEMTYPE_HOST => {
                memory.umem_id = self.handles.number(Kind::Umem, input);
                memory.__bindgen_anon_1.humem_offset = input.u16().into();
            }
            _ => memory.__bindgen_anon_1.daddr = self.daddr(input),
        }
        memory
    }

    pub(super) fn name(&mut self, input: &mut Input<'_>) -> *const c_char {
        match input.u8() {
            0xFF => null(),
            0xFE => self.program.bytes(b"\xFF\0").cast(),
            0xFD => self.program.bytes(&[&[b'x'; 300][..], &[0]].concat()).cast(),
            which => FUNCTIONS[usize::from(which) % FUNCTIONS.len()].as_ptr(),
        }
    }

    pub(super) fn app_create(&mut self, input: &mut Input<'_>) {
        let mut elf = image();
        for _ in 0..input.u8() % 4 {
            let at = usize::from(input.u16()) % elf.len();
            elf[at] = input.u8();
        }
        if input.u8() == 0xFF {
            elf.truncate(input.u16().into());
        }
        if !self.handles.enough(Kind::App) && !elf.is_empty() {
            self.create_application(&elf);
        }
    }

    pub(super) fn app_destroy(&mut self, input: &mut Input<'_>) {
        self.destroy_picked(Kind::App, input);
    }

    pub(super) fn app_query(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let app = self.handles.pick(Kind::App, input, self.program);
        let (mut list, mut count) = (null_mut(), 0);
        assert_eq!(call!(flexio, others flexio_app_get_list(&raw mut list, &raw mut count)), OK);
        assert_eq!(call!(flexio, others flexio_app_list_free(list)), OK);
        call!(flexio, others flexio_app_get_name(app));
        let bytes = call!(flexio, others flexio_app_get_elf_size(app));
        let room = (usize::from(input.u16()) % ARGUMENT_BYTES).next_multiple_of(8);
        let copy = self.program.bytes(&vec![0; room]);
        let copied = call!(flexio, others flexio_app_get_elf(app, copy.cast(), room));
        assert_eq!(copied == OK, bytes > 0 && room >= bytes);
    }

    pub(super) fn func_register(&mut self, input: &mut Input<'_>) {
        let app = self.handles.pick(Kind::App, input, self.program);
        let name = self.name(input);
        let mut key = None;
        let to = if input.u8() == 0xFF { null_mut() } else { &raw mut key };
        if call!(self.program.flexio, flexio_func_register(app, name, to)) == OK && self.keys.len() < 32 {
            self.keys.push(key);
        }
    }

    pub(super) fn pup_register(&mut self, input: &mut Input<'_>) {
        let app = self.handles.pick(Kind::App, input, self.program);
        let (name, unpack) = (self.name(input), self.name(input));
        let key = match input.u8() {
            0xFF => None,
            which => stub_key(NonNull::from(&KEYS[usize::from(which) % KEYS.len()]).cast()),
        };
        // The pack function writes eight bytes.
        let bytes = usize::from(input.u16()).max(8) * if input.u8() == 0xFF { 1 << 16 } else { 1 };
        let pack = if input.u8() == 0xFF { None } else { Some(pack_u64()) };
        let status = call!(self.program.flexio, flexio_func_pup_register(app, name, unpack, key, bytes, pack));
        if status == OK && self.keys.len() < 32 {
            self.keys.push(key);
        }
    }

    pub(super) fn register_info(&mut self, input: &mut Input<'_>) {
        let app = self.handles.pick(Kind::App, input, self.program);
        let key = self.key(input);
        let room = usize::from(input.u8());
        let name = self.program.bytes(&vec![0xEE; room]).cast::<c_char>();
        let unpack_name = self.program.bytes(&vec![0xEE; room]).cast::<c_char>();
        let (mut pup, mut bytes, mut pack, mut addr, mut unpack) = (0, 0, None, 0, 0);
        let absent = input.u8() == 0xFF;
        call!(
            self.program.flexio,
            others flexio_func_get_register_info(
                app,
                key,
                &raw mut pup,
                if absent { null_mut() } else { name },
                unpack_name,
                room,
                &raw mut bytes,
                &raw mut pack,
                if absent { null_mut() } else { &raw mut addr },
                &raw mut unpack,
            )
        );
    }

    pub(super) fn process_create(&mut self, input: &mut Input<'_>) {
        let context = self.handles.pick(Kind::Context, input, self.program);
        let app = self.handles.pick(Kind::App, input, self.program);
        let pd = if input.u8() & 1 == 0 { null_mut() } else { self.handles.pick(Kind::Pd, input, self.program) };
        if !self.handles.enough(Kind::Process) {
            self.create_process(context, app, pd);
        }
    }

    pub(super) fn process_destroy(&mut self, input: &mut Input<'_>) {
        let process: *mut flexio_process = self.handles.pick(Kind::Process, input, self.program);
        if !self.handles.is_live(Kind::Process, process as usize) {
            assert_ne!(call!(self.program.flexio, flexio_process_destroy(process)), OK);
            return;
        }
        let uar = call!(self.program.flexio, flexio_process_get_uar(process));
        if call!(self.program.flexio, flexio_process_destroy(process)) == OK {
            self.handles.retire(Kind::Process, process as usize);
            self.handles.retire(Kind::FlexioUar, uar as usize);
        }
    }

    pub(super) fn process_call(&mut self, input: &mut Input<'_>) {
        let process = self.handles.pick(Kind::Process, input, self.program);
        let (key, argument) = (self.key(input), input.number());
        let mut answer = 0;
        let to = if input.u8() == 0xFF { null_mut() } else { &raw mut answer };
        let function = self.program.flexio.flexio_process_call;
        #[allow(unsafe_code, reason = "a variadic function")]
        // SAFETY: as `call!`; every RPC is registered with the pack function of one 64-bit argument.
        unsafe {
            function(process, key, to, argument);
        }
    }

    pub(super) fn process_query(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let process = self.handles.pick(Kind::Process, input, self.program);
        let info = self.program.put(flexio_heap_mem_info::default());
        match input.u8() % 8 {
            0 => drop(call!(flexio, flexio_process_mem_info_get(process, info))),
            1 => drop(call!(flexio, flexio_process_mem_info_get(process, null_mut()))),
            2 => drop(call!(flexio, others flexio_process_error_handler_set(process, self.key(input)))),
            3 => drop(call!(flexio, others flexio_process_udbg_token_get(process))),
            4 => drop(call!(flexio, others flexio_err_handler_fd(process))),
            5 => drop(call!(flexio, others flexio_coredump_create(process, NO_FILE.as_ptr()))),
            6 => drop(call!(flexio, others flexio_crash_data(process, NO_FILE.as_ptr()))),
            _ => drop(call!(flexio, others flexio_log_lvl_set(input.u8().into()))),
        }
        call!(flexio, flexio_err_status_get(process));
    }

    fn remember(&mut self, address: u64) {
        if self.addresses.len() < 64 {
            self.addresses.push(address);
        }
    }

    pub(super) fn buf_alloc(&mut self, input: &mut Input<'_>) {
        let process = self.handles.pick(Kind::Process, input, self.program);
        let bytes = input.number() as usize;
        let mut daddr = 0;
        let to = if input.u8() == 0xFF { null_mut() } else { &raw mut daddr };
        if call!(self.program.flexio, flexio_buf_dev_alloc(process, bytes, to)) == OK {
            assert!(daddr != 0 && daddr % 64 == 0);
            self.remember(daddr);
        }
    }

    pub(super) fn buf_free(&mut self, input: &mut Input<'_>) {
        let process = self.handles.pick(Kind::Process, input, self.program);
        call!(self.program.flexio, flexio_buf_dev_free(process, self.daddr(input)));
    }

    pub(super) fn copy(&mut self, input: &mut Input<'_>) {
        let flexio = self.program.flexio;
        let process = self.handles.pick(Kind::Process, input, self.program);
        let bytes = usize::from(input.u16()) % ARGUMENT_BYTES;
        let source = self.program.bytes(&vec![0x5A; bytes]).cast::<c_void>();
        let source = if input.u8() == 0xFF { null_mut() } else { source };
        if input.u8() & 1 == 0 {
            call!(flexio, flexio_host2dev_memcpy(process, source, bytes, self.daddr(input)));
            return;
        }
        let mut daddr = 0;
        if call!(flexio, others flexio_copy_from_host(process, source, bytes, &raw mut daddr)) == OK {
            self.remember(daddr);
        }
    }

    pub(super) fn fill(&mut self, input: &mut Input<'_>) {
        let process = self.handles.pick(Kind::Process, input, self.program);
        let (value, bytes, daddr) = (input.u8().into(), input.number() as usize, self.daddr(input));
        call!(self.program.flexio, flexio_buf_dev_memset(process, value, bytes, daddr));
    }
}

//! A device with a process of a tiny image, driven through the function tables alone.
#![allow(dead_code, unreachable_pub, unsafe_code)] // each program uses a part
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)] // every call is on objects made here

use core::ffi::{CStr, c_char, c_void};
use core::ptr::{NonNull, null, null_mut};

use emu_machine::Config;
use flexcast_image::testing::{TestElf, section};
use flexio_sys::*;
use verbs_sys::{VerbsApi, ibv_context, ibv_pd};

pub const RA: u32 = 1;
pub const TP: u32 = 4;
pub const T0: u32 = 5;
pub const A0: u32 = 10;
pub const A1: u32 = 11;
pub const A2: u32 = 12;
pub const A3: u32 = 13;
pub const A7: u32 = 17;

pub const ECALL: u32 = 0x73;
pub const RET: u32 = 0x8067;
/// A jump to itself.
pub const SPIN: u32 = 0x6f;
pub const ILLEGAL: u32 = 0xFFFF_FFFF;

/// RTOS calls.
pub const RESCHEDULE: i32 = 1;
pub const MSG: i32 = 9;
pub const ERROR: i32 = 10;
pub const ACTIVATE: i32 = 11;

/// Writable data of the image.
pub const DATA: u64 = 0x8000_0000;

pub fn addi(rd: u32, rs: u32, value: i32) -> u32 {
    (value as u32) << 20 | rs << 15 | rd << 7 | 0x13
}
pub fn slli(rd: u32, rs: u32, by: u32) -> u32 {
    by << 20 | rs << 15 | 1 << 12 | rd << 7 | 0x13
}
pub fn lui(rd: u32, page: u32) -> u32 {
    page << 12 | rd << 7 | 0x37
}
pub fn ld(rd: u32, rs: u32, offset: i32) -> u32 {
    (offset as u32) << 20 | rs << 15 | 3 << 12 | rd << 7 | 0x03
}
pub fn sd(value: u32, rs: u32, offset: i32) -> u32 {
    let o = offset as u32 & 0xFFF;
    o >> 5 << 25 | value << 20 | rs << 15 | 3 << 12 | (o & 31) << 7 | 0x23
}

/// An image whose functions `handler`, `ping` and `ping__unpack` are the given instructions, with a page of data at
/// [`DATA`] that begins with `data`.
pub fn image(handler: &[u32], ping: &[u32], data: &[u8]) -> Vec<u8> {
    // `ping__unpack(argbuf, function)` jumps to `function` with the first word of `argbuf`.
    let unpack = [addi(T0, A1, 0), ld(A0, A0, 0), 0x0002_8067];
    let mut elf = TestElf::image(&[("handler", handler), ("ping", ping), ("ping__unpack", &unpack)]);
    let mut page = data.to_vec();
    page.resize(4096, 0);
    elf.sections.push(section(".data", 1, 3, DATA, page));
    elf.segments.push((DATA, 4096, 6, elf.sections.len() - 1));
    elf.bytes()
}

/// `ping(x)` is `x + 5`; `handler` reschedules.
pub fn plain_image() -> Vec<u8> {
    image(&[addi(A7, 0, RESCHEDULE), ECALL], &[addi(A0, A0, 5), RET], &[])
}

/// An open device, and an application with its functions registered.
pub struct Host {
    pub api: FlexioApi,
    pub verbs: VerbsApi,
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub app: *mut flexio_app,
    pub ping: flexio_func_t,
    pub handler: flexio_func_t,
}

/// The key of `ping`: only its address counts.
static PING_KEY: u8 = 0;

pub fn ping_key() -> flexio_func_t {
    stub_key(NonNull::from(&PING_KEY).cast())
}

pub fn create_app(api: &FlexioApi, name: &CStr, elf: &[u8]) -> (flexio_status, *mut flexio_app) {
    let mut attr = flexio_app_attr {
        app_name: name.as_ptr(),
        app_ptr: elf.as_ptr().cast_mut().cast(),
        app_bsize: elf.len(),
        app_sig_sec_name: null_mut(),
    };
    let mut app = null_mut();
    (unsafe { (api.flexio_app_create)(&mut attr, &mut app) }, app)
}

impl Host {
    /// One card of a machine of the calling thread's own.
    pub fn new(config: Config, elf: &[u8]) -> Host {
        emu_machine::configure(Config { cards: 1, ..config }).unwrap();
        let (api, verbs) = (emu_libflexio::api(), emu_libibverbs::api());
        unsafe {
            let mut count = 0;
            let list = (verbs.ibv_get_device_list)(&mut count);
            assert!(count >= 1);
            let context = (verbs.ibv_open_device)(*list);
            (verbs.ibv_free_device_list)(list);
            let pd = (verbs.ibv_alloc_pd)(context);
            assert!(!context.is_null() && !pd.is_null());
            let (status, app) = create_app(&api, c"tiny", elf);
            assert_eq!(status, FLEXIO_STATUS_SUCCESS);
            let mut handler = None;
            let registered = (api.flexio_func_register)(app, c"handler".as_ptr(), &mut handler);
            assert_eq!(registered, FLEXIO_STATUS_SUCCESS);
            let ping = ping_key();
            let (name, unpack) = (c"ping".as_ptr(), c"ping__unpack".as_ptr());
            let registered = (api.flexio_func_pup_register)(app, name, unpack, ping, 8, Some(pack_u64()));
            assert_eq!(registered, FLEXIO_STATUS_SUCCESS);
            Host { api, verbs, context, pd, app, ping, handler }
        }
    }

    pub fn small(elf: &[u8]) -> Host {
        Host::new(Config { heap_bytes: 1 << 16, ..Config::default() }, elf)
    }

    /// A process with a domain of its own.
    pub fn process(&self) -> *mut flexio_process {
        let mut process = null_mut();
        let status = unsafe { (self.api.flexio_process_create)(self.context, self.app, null(), &mut process) };
        assert_eq!(status, FLEXIO_STATUS_SUCCESS);
        process
    }

    pub fn call(&self, process: *mut flexio_process, argument: u64) -> (flexio_status, u64) {
        let mut answer = 0;
        (unsafe { (self.api.flexio_process_call)(process, self.ping, &mut answer, argument) }, answer)
    }

    pub fn event_handler(&self, process: *mut flexio_process) -> *mut flexio_event_handler {
        let mut attr = flexio_event_handler_attr { host_stub_func: self.handler, ..Default::default() };
        let mut handler = null_mut();
        let status = unsafe { (self.api.flexio_event_handler_create)(process, &mut attr, &mut handler) };
        assert_eq!(status, FLEXIO_STATUS_SUCCESS);
        handler
    }

    /// A ring of device memory and its doorbell record.
    pub fn queue(&self, process: *mut flexio_process, bytes: usize) -> (u64, u64) {
        let (mut ring, mut dbr) = (0, 0);
        unsafe {
            assert_eq!((self.api.flexio_buf_dev_alloc)(process, bytes, &mut ring), FLEXIO_STATUS_SUCCESS);
            assert_eq!((self.api.flexio_buf_dev_memset)(process, 0xFF, bytes, ring), FLEXIO_STATUS_SUCCESS);
            let zero = [0_u8; 8];
            let source = zero.as_ptr().cast_mut().cast::<c_void>();
            assert_eq!(
                (self.api.flexio_copy_from_host.expect("emulated"))(process, source, 8, &mut dbr),
                FLEXIO_STATUS_SUCCESS
            );
        }
        (ring, dbr)
    }

    pub fn cq_attr(&self, process: *mut flexio_process) -> flexio_cq_attr {
        let (ring, dbr) = self.queue(process, 64 << 3);
        flexio_cq_attr {
            log_cq_depth: 3,
            element_type: FLEXIO_CQ_ELEMENT_TYPE_NON_DPA_CQ as u8,
            cq_ring_qmem: device_memory(ring),
            cq_dbr_daddr: dbr,
            ..Default::default()
        }
    }

    pub fn cq(&self, process: *mut flexio_process, attr: &flexio_cq_attr) -> *mut flexio_cq {
        let mut cq = null_mut();
        let status = unsafe { (self.api.flexio_cq_create)(process, self.context, attr, &mut cq) };
        assert_eq!(status, FLEXIO_STATUS_SUCCESS);
        cq
    }

    pub fn heap(&self, process: *mut flexio_process) -> flexio_heap_mem_info {
        let mut info = flexio_heap_mem_info::default();
        assert_eq!(unsafe { (self.api.flexio_process_mem_info_get)(process, &mut info) }, FLEXIO_STATUS_SUCCESS);
        info
    }

    /// Lets the machine run until nothing is due, within a bound.
    pub fn settle(&self) {
        assert!((0..100_000).any(|_| !emu_libibverbs::relax()), "the machine does not come to rest");
    }
}

pub fn device_memory(daddr: u64) -> flexio_qmem {
    let mut memory = flexio_qmem { memtype: FLEXIO_MEMTYPE_DPA, ..Default::default() };
    memory.__bindgen_anon_1.daddr = daddr;
    memory
}

/// A C file that is gone with the program, and what was written to it.
pub struct CFile(pub *mut libc::FILE);

impl CFile {
    pub fn new() -> CFile {
        let file = unsafe { libc::tmpfile() };
        assert!(!file.is_null());
        CFile(file)
    }

    pub fn text(&self) -> String {
        let mut bytes = vec![0_u8; 1 << 16];
        let got = unsafe {
            libc::fflush(self.0);
            libc::rewind(self.0);
            libc::fread(bytes.as_mut_ptr().cast(), 1, bytes.len(), self.0)
        };
        bytes.truncate(got);
        String::from_utf8(bytes).unwrap()
    }
}

impl Drop for CFile {
    fn drop(&mut self) {
        unsafe { libc::fclose(self.0) };
    }
}

pub fn stream_attr(level: u32) -> flexio_msg_stream_attr_t {
    const NAME: &CStr = c"log";
    flexio_msg_stream_attr_t {
        data_bsize: 2048,
        sync_mode: FLEXIO_LOG_DEV_SYNC_MODE_SYNC,
        stream_name: NAME.as_ptr().cast_mut().cast::<c_char>(),
        level: level as u8,
        ..Default::default()
    }
}

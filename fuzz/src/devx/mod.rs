//! Arbitrary DevX commands through the C functions `mlx5dv_devx_*`.
//!
//! Commands are made from the layouts of the mlx5 PRM with true object numbers, then patched, cut and lengthened. Both
//! mailboxes end at an unmapped page. Checked: a refused command says why in its answer, an accepted one does not; what
//! was made can be queried and destroyed, in the order that the interface asks for; nothing is written behind an
//! answer; and the cards work afterwards.

mod commands;
mod seeds;

use core::ffi::c_void;
use core::ptr::{null, null_mut};

use emu_machine::{address, with_world};
use flexio_sys::*;
use verbs_sys::*;

use crate::abi::{ARGUMENT_BYTES, MEMORY_BYTES, Program, image, step, with_program};
use crate::call;
use crate::input::Input;
use commands::Mailbox;

pub use seeds::seeds;

/// Operations: their operands follow.
pub mod op {
    /// A command that makes an object: card, kind (see the source), its fields, then `super::mailbox`'s operands.
    pub const CREATE: u8 = 0;
    /// A transition: object, which, then the operands of a mailbox.
    pub const MODIFY: u8 = 1;
    /// A query: object, then the operands of a mailbox.
    pub const QUERY: u8 = 2;
    /// Destruction: object.
    pub const DESTROY: u8 = 3;
    /// A command without object: card, which (1 = capabilities, and whose; 2 = sharing of a key, and the access key;
    /// else an opcode in two bytes), then the operands of a mailbox.
    pub const GENERAL: u8 = 4;
    /// Doorbell: object, producer in two bytes.
    pub const RING: u8 = 5;
    /// So many things happen.
    pub const STEP: u8 = 6;
    /// Memory for queues: card, offset and length in units of 64 bytes.
    pub const UMEM: u8 = 7;
    /// It goes: which.
    pub const UMEM_GONE: u8 = 8;
    /// The program writes its memory: offset in units of 16 bytes, count, bytes.
    pub const WRITE: u8 = 9;
    /// A UAR page is made or freed.
    pub const UAR: u8 = 10;
    /// How many there are.
    pub const COUNT: u8 = 11;
}

/// What can be made.
pub mod kind {
    /// Completion queue: umem, ring and doorbell record in units of 64 bytes, log2 of the size, 1 for the thread's.
    pub const CQ: u8 = 0;
    /// Queue pair: service, umem, ring and doorbell record in units of 64 bytes, send queue, receive queue, log2 of the
    /// sizes.
    pub const QP: u8 = 1;
    /// Memory key: umem, offset and length in units of 64 bytes, tag.
    pub const MKEY: u8 = 2;
    /// UMR key: entries, tag.
    pub const UMR_KEY: u8 = 3;
    /// Membership of a group: queue pair, last byte of the group.
    pub const GROUP: u8 = 4;
    /// Protection domain.
    pub const PD: u8 = 5;
    /// Alias of a memory key of card 0 for another virtual HCA: key, access key.
    pub const ALIAS: u8 = 6;
    /// Whatever the patches say.
    pub const ANY: u8 = 7;
    /// How many there are.
    pub const COUNT: u8 = 8;
}

const MAX_OPS: usize = 100;
/// Steps before destruction. A peer may be asked for ever, so that rest is not promised.
const MAX_STEPS: usize = 20_000;

#[derive(Clone, Copy, Debug)]
struct Object {
    handle: *mut mlx5dv_devx_obj,
    card: usize,
    kind: u8,
    number: u32,
    service: u32,
}

struct Devx<'p> {
    program: &'p mut Program,
    contexts: [*mut ibv_context; 2],
    pds: [*mut ibv_pd; 2],
    pd_numbers: [u32; 2],
    app: *mut flexio_app,
    /// On card 0, for memory of the DPA and a thread.
    process: *mut flexio_process,
    handler: *mut flexio_event_handler,
    thread: u32,
    /// Virtual HCA of the host's function of card 0.
    vhca: u32,
    /// The function of card 0's Arm cores, a domain there, and its number.
    arm: (*mut ibv_context, *mut ibv_pd, u32),
    /// Card, address of a [`mlx5dv_devx_umem`] (null for that of the process), its number, its first byte.
    umems: Vec<(usize, *mut mlx5dv_devx_umem, u32, u64)>,
    uars: Vec<*mut mlx5dv_devx_uar>,
    objects: Vec<Object>,
}

/// Handles one input.
pub fn run(data: &[u8]) {
    with_program(|program| {
        let mut devx = Devx::open(program);
        let mut input = Input::new(data);
        for _ in 0..MAX_OPS {
            if input.is_empty() {
                break;
            }
            devx.program.begin_call();
            devx.operation(&mut input);
        }
        step(MAX_STEPS);
        devx.close();
    });
}

impl<'p> Devx<'p> {
    fn open(program: &'p mut Program) -> Self {
        let verbs = program.verbs;
        let list = call!(verbs, ibv_get_device_list(null_mut()));
        // The list is the program's to read until it is freed.
        // The host's functions of both cards, then those of the Arm cores.
        let devices = [0, 1, 2].map(|index| entry(list, index));
        let [first, second, arm] = devices.map(|device| call!(verbs, ibv_open_device(device)));
        call!(verbs, ibv_free_device_list(list));
        let contexts = [first, second];
        let pds = contexts.map(|context| call!(verbs, ibv_alloc_pd(context)));
        let arm_pd = call!(verbs, ibv_alloc_pd(arm));
        let pd_number = |pd| {
            let mut out = mlx5dv_pd::default();
            let mut object = mlx5dv_obj::default();
            (object.pd.in_, object.pd.out) = (pd, &raw mut out);
            assert_eq!(call!(verbs, mlx5dv_init_obj(&raw mut object, u64::from(MLX5DV_OBJ_PD))), 0);
            out.pdn
        };
        let (pd_numbers, arm) = (pds.map(pd_number), (arm, arm_pd, pd_number(arm_pd)));
        let flexio = program.flexio;
        let elf = image();
        let attr = program.bytes(&elf);
        let attr = program.put(flexio_app_attr {
            app_name: c"fuzz".as_ptr(),
            app_ptr: attr.cast(),
            app_bsize: elf.len(),
            app_sig_sec_name: null_mut(),
        });
        let (mut app, mut process, mut key, mut handler) = (null_mut(), null_mut(), None, null_mut());
        assert_eq!(call!(flexio, flexio_app_create(attr, &raw mut app)), FLEXIO_STATUS_SUCCESS);
        let registered = call!(flexio, flexio_func_register(app, c"handler".as_ptr(), &raw mut key));
        assert_eq!(registered, FLEXIO_STATUS_SUCCESS);
        let created = call!(flexio, flexio_process_create(contexts[0], app, null(), &raw mut process));
        assert_eq!(created, FLEXIO_STATUS_SUCCESS);
        let mut attr = flexio_event_handler_attr { host_stub_func: key, ..Default::default() };
        let created = call!(flexio, flexio_event_handler_create(process, &raw mut attr, &raw mut handler));
        assert_eq!(created, FLEXIO_STATUS_SUCCESS);
        let thread = call!(flexio, others flexio_event_handler_get_obj_id(handler));
        assert_eq!(call!(flexio, flexio_event_handler_run(handler, 0)), FLEXIO_STATUS_SUCCESS);
        let mut heap = flexio_heap_mem_info::default();
        assert_eq!(call!(flexio, flexio_process_mem_info_get(process, &raw mut heap)), FLEXIO_STATUS_SUCCESS);
        let dumem = call!(flexio, flexio_process_get_dumem_id(process));
        let vhca = with_world(|world| u32::from(world.card(0).expect("a card").nic.vhca_id())).expect("a machine");
        let mut devx = Devx {
            vhca,
            arm,
            program,
            contexts,
            pds,
            pd_numbers,
            app,
            process,
            handler,
            thread,
            umems: vec![(0, null_mut(), dumem, heap.base_addr)],
            uars: Vec::new(),
            objects: Vec::new(),
        };
        for card in 0..2 {
            devx.register(card, card * MEMORY_BYTES / 2, MEMORY_BYTES / 2);
        }
        devx
    }

    fn register(&mut self, card: usize, offset: usize, bytes: usize) {
        let addr = self.program.at(offset);
        let room = MEMORY_BYTES - offset % MEMORY_BYTES;
        let umem = call!(
            self.program.verbs,
            mlx5dv_devx_umem_reg(self.contexts[card], addr.cast(), bytes.min(room), IBV_ACCESS_LOCAL_WRITE)
        );
        assert_eq!(umem.is_null(), bytes == 0, "memory of the program can be registered");
        if !umem.is_null() {
            self.umems.push((card, umem, umem_id(umem), addr as u64));
        }
    }

    fn operation(&mut self, input: &mut Input<'_>) {
        match input.u8() % op::COUNT {
            op::CREATE => self.create(input),
            op::MODIFY => self.modify(input),
            op::QUERY => {
                let Some(object) = self.object(input) else { return };
                let opcode = match object.kind {
                    kind::CQ => 0x402,
                    kind::MKEY => 0x201,
                    kind::ALIAS => 0xA02,
                    _ => 0x50B,
                };
                let mut mailbox = Mailbox::new(opcode, 16);
                mailbox.set(8, 8, 24, object.number);
                if object.kind == kind::ALIAS {
                    mailbox.set(4, 16, 16, 0xFF01);
                }
                self.command(input, &mailbox, 272, |verbs, i, il, o, ol| {
                    call!(verbs, mlx5dv_devx_obj_query(object.handle, i, il, o, ol))
                });
            }
            op::DESTROY => {
                let Some(object) = self.object(input) else { return };
                if call!(self.program.verbs, mlx5dv_devx_obj_destroy(object.handle)) == 0 {
                    self.objects.retain(|other| other.handle != object.handle);
                    let again = call!(self.program.verbs, mlx5dv_devx_obj_destroy(object.handle));
                    assert_eq!(again, libc::EINVAL, "it is gone");
                }
            }
            op::GENERAL => {
                let context = self.contexts[usize::from(input.u8() % 2)];
                let mut out_bytes = 64;
                let mailbox = match input.u8() {
                    1 => {
                        let mut m = Mailbox::new(0x100, 16);
                        m.set(4, 16, 16, input.u8().into());
                        out_bytes = 0x1010;
                        m
                    }
                    2 => {
                        let mut m = Mailbox::new(0xB16, 0x40);
                        m.set(0x10, 16, 16, 0xFF01);
                        m.set(0x14, 0, 32, self.number(input, 0, kind::MKEY));
                        m.0[0x20..].fill(input.u8());
                        m
                    }
                    _ => Mailbox::new(input.u16().into(), 64),
                };
                self.command(input, &mailbox, out_bytes, |verbs, i, il, o, ol| {
                    call!(verbs, mlx5dv_devx_general_cmd(context, i, il, o, ol))
                });
            }
            op::RING => {
                let Some(Object { card, number, .. }) = self.object(input) else { return };
                let producer = input.u16();
                let _ = with_world(|world| world.ring_sq(card, number, producer));
            }
            op::STEP => step(input.u8().into()),
            op::UMEM => {
                let (card, offset, len) = (usize::from(input.u8() % 2), input.u8(), input.u8());
                if self.umems.len() < 16 {
                    self.register(card, usize::from(offset) * 64, usize::from(len) * 64);
                }
            }
            op::UMEM_GONE => {
                let which = usize::from(input.u8()) % self.umems.len();
                let (_, umem, ..) = self.umems[which];
                if !umem.is_null() {
                    assert_eq!(call!(self.program.verbs, mlx5dv_devx_umem_dereg(umem)), 0);
                    // Its number stays for later commands; queues made from it find no memory there.
                    self.umems[which].1 = null_mut();
                }
            }
            op::WRITE => {
                let offset = usize::from(input.u16()) * 16 % (MEMORY_BYTES - 256);
                let count = input.u8().into();
                self.program.memory.write(offset, input.bytes(count));
            }
            _ => {
                if self.uars.len() < 4 {
                    let uar = call!(self.program.verbs, mlx5dv_devx_alloc_uar(self.contexts[0], input.u8().into()));
                    self.uars.extend((!uar.is_null()).then_some(uar));
                } else if let Some(uar) = self.uars.pop() {
                    call!(self.program.verbs, mlx5dv_devx_free_uar(uar));
                }
            }
        }
    }

    fn object(&self, input: &mut Input<'_>) -> Option<Object> {
        let which = usize::from(input.u8());
        self.objects.get(which % self.objects.len().max(1)).copied()
    }

    /// The number of an object of a kind on a card; otherwise one that no object has.
    fn number(&self, input: &mut Input<'_>, card: usize, kind: u8) -> u32 {
        let which = usize::from(input.u8());
        let known: Vec<u32> =
            self.objects.iter().filter(|o| (o.card, o.kind) == (card, kind)).map(|o| o.number).collect();
        if known.is_empty() { which as u32 } else { known[which % known.len()] }
    }

    fn modify(&mut self, input: &mut Input<'_>) {
        let Some(object) = self.object(input) else { return };
        const OPCODES: [u32; 6] = [0x502, 0x503, 0x504, 0x507, 0x50A, 0x505];
        let opcode = input.pick(&OPCODES);
        let mut m = Mailbox::new(opcode, commands::BYTES);
        m.set(8, 8, 24, object.number);
        const CONTEXT: usize = 0x18;
        const PATH: usize = CONTEXT + 0x18;
        m.set(CONTEXT, 8, 8, object.service);
        m.set(CONTEXT, 19, 2, 3);
        m.set(CONTEXT + 0x90, 16, 3, 7);
        m.set(CONTEXT + 0xA8, 0, 32, 0x1111);
        m.set(PATH + 0x24, 8, 8, 1);
        m.set(CONTEXT + 8, 0, 3, 1);
        let peer = self.number(input, 1 - object.card, kind::QP);
        m.set(CONTEXT + 0x14, 8, 24, peer);
        let other = address(1 - object.card);
        m.0[PATH + 0x10..PATH + 0x20].copy_from_slice(&other.gid.0);
        m.0[PATH + 0x26..PATH + 0x2C].copy_from_slice(&other.mac);
        m.set(PATH + 8, 0, 5, 1);
        m.set(CONTEXT + 0x70, 13, 3, 2);
        self.command(input, &m, 16, |verbs, i, il, o, ol| {
            call!(verbs, mlx5dv_devx_obj_modify(object.handle, i, il, o, ol))
        });
    }

    /// Patches a command, chooses the lengths, has it carried out, and checks the answer; gives that, at least 16
    /// bytes.
    ///
    /// Operands: patches (count; each an offset in two bytes and a byte), then what the lengths are (0 = as they should
    /// be).
    fn command(
        &mut self,
        input: &mut Input<'_>,
        mailbox: &Mailbox,
        out_bytes: usize,
        execute: impl FnOnce(&VerbsApi, *const c_void, usize, *mut c_void, usize) -> i32,
    ) -> Vec<u8> {
        let mut bytes = mailbox.0.clone();
        for _ in 0..input.u8() % 8 {
            let at = usize::from(input.u16()) % bytes.len();
            bytes[at] = input.u8();
        }
        let in_bytes = length(input, bytes.len());
        bytes.resize(in_bytes, 0);
        let out_bytes = length(input, out_bytes);
        let i = self.program.bytes(&bytes);
        let o = self.program.bytes(&vec![0xEE; out_bytes]);
        let (i, o) = match input.u8() {
            0xFF => (null_mut(), o),
            0xFE => (i, null_mut()),
            _ => (i, o),
        };
        let verbs = self.program.verbs;
        let result = execute(&verbs, i.cast(), in_bytes, o.cast(), out_bytes);
        let mut answer = self.program.contents(0);
        if i.is_null() || o.is_null() || out_bytes < 16 {
            assert_eq!(result, libc::EINVAL);
            assert!(answer.iter().all(|&byte| byte == 0xEE), "the answer is as it was");
            answer.resize(16.max(answer.len()), 0);
            return answer;
        }
        let status = answer[0];
        match result {
            0 => assert_eq!(answer[..8], [0; 8], "an accepted command has no status"),
            libc::EREMOTEIO => assert!(status != 0 && answer[4..8] != [0; 4], "a refused command says why"),
            other => assert!(other > 0, "an errno value"),
        }
        answer
    }

    /// Destroys everything, newest first, until nothing is left.
    fn close(self) {
        let Devx { program, mut objects, .. } = self;
        let verbs = program.verbs;
        while !objects.is_empty() {
            let before = objects.len();
            objects.retain(|object| call!(verbs, mlx5dv_devx_obj_destroy(object.handle)) != 0);
            assert!(objects.len() < before, "cannot be destroyed in any order (errno {}): {objects:x?}", errno());
        }
        for (_, umem, ..) in self.umems {
            if !umem.is_null() {
                assert_eq!(call!(verbs, mlx5dv_devx_umem_dereg(umem)), 0);
            }
        }
        for uar in self.uars {
            call!(verbs, mlx5dv_devx_free_uar(uar));
        }
        let flexio = program.flexio;
        assert_eq!(call!(flexio, flexio_event_handler_destroy(self.handler)), FLEXIO_STATUS_SUCCESS);
        assert_eq!(call!(flexio, flexio_process_destroy(self.process)), FLEXIO_STATUS_SUCCESS);
        assert_eq!(call!(flexio, flexio_app_destroy(self.app)), FLEXIO_STATUS_SUCCESS);
        let [first, second] = [0, 1].map(|card| (self.contexts[card], self.pds[card]));
        for (context, pd) in [first, second, (self.arm.0, self.arm.1)] {
            assert_eq!(call!(verbs, ibv_dealloc_pd(pd)), 0);
            assert_eq!(call!(verbs, ibv_close_device(context)), 0);
        }
    }
}

/// 0 = as it should be; otherwise an edge, or any number up to what an argument may have.
fn length(input: &mut Input<'_>, right: usize) -> usize {
    match input.u8() {
        0 => right,
        1 => 0,
        2 => 15,
        3 => 16,
        4 => right - 1,
        5 => right + 1,
        6 => ARGUMENT_BYTES,
        7 => 272,
        other => usize::from(other),
    }
}

fn mailbox_opcode(bytes: &[u8]) -> u32 {
    u32::from(bytes[0]) << 8 | u32::from(bytes[1])
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A device of a list.
fn entry(list: *mut *mut ibv_device, index: usize) -> *mut ibv_device {
    #[allow(unsafe_code, reason = "a C array")]
    // SAFETY: a list from `ibv_get_device_list` on a machine of two cards, before it is freed.
    unsafe {
        *list.add(index)
    }
}

fn umem_id(umem: *mut mlx5dv_devx_umem) -> u32 {
    #[allow(unsafe_code, reason = "a C structure")]
    // SAFETY: live user memory; its number is public.
    unsafe {
        (*umem).umem_id
    }
}

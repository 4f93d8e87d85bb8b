//! A C program that drives the emulator: memory for its arguments, and the calls.

use std::cell::RefCell;

use emu_libflexio::api as flexio_api;
use emu_libibverbs::api as verbs_api;
use emu_machine::{Config, with_world};
use flexcast_image::testing::{TestElf, section};
use flexio_sys::FlexioApi;
use verbs_sys::VerbsApi;

use crate::fixture::Fixture;
use crate::guard::{Guarded, Pages};
use crate::machine::RET;

/// Bytes that the program registers.
pub const MEMORY_BYTES: usize = 64 << 10;
/// Longest argument of a call.
pub const ARGUMENT_BYTES: usize = 8192;
/// Arguments of one call that are in guarded memory.
const ARGUMENTS: usize = 12;
/// Virtual time of an activation or a call: short, so that endless firmware ends soon.
const WATCHDOG_PS: u64 = 20_000_000;

/// Calls a function of a table. Every pointer among the arguments is null, points at memory of the program that is as
/// long and as initialised as the interface asks, or is a handle, live or not, which the emulator resolves before it
/// follows it.
#[macro_export]
macro_rules! call {
    // Of the functions that a library of another release may lack.
    ($table:expr, others $name:ident($($argument:expr),* $(,)?)) => {{
        struct Table<F> {
            $name: F,
        }
        let table = Table { $name: $table.$name.expect("the emulator has all functions") };
        $crate::call!(table, $name($($argument),*))
    }};
    ($table:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let function = $table.$name;
        #[allow(unsafe_code, clippy::macro_metavars_in_unsafe, reason = "the interfaces are C's; arguments are plain \
            values")]
        // SAFETY: as this macro's description; the caller of the macro keeps to it.
        let answer = unsafe { function($($argument),*) };
        answer
    }};
}

/// The program.
pub struct Program {
    /// libibverbs and libmlx5.
    pub verbs: VerbsApi,
    /// libflexio.
    pub flexio: FlexioApi,
    /// What the program registers with cards.
    pub memory: Pages,
    arguments: Vec<Guarded>,
    next: usize,
}

thread_local! {
    static PROGRAM: RefCell<Program> = RefCell::new(Program {
        verbs: verbs_api(),
        flexio: flexio_api(),
        memory: Pages::new(MEMORY_BYTES),
        arguments: (0..ARGUMENTS).map(|_| Guarded::new(ARGUMENT_BYTES)).collect(),
        next: 0,
    });
}

/// Runs a program on a new machine of two cards. Whatever it did, it must have destroyed what it made; the cards must
/// be well afterwards.
pub fn with_program(run: impl FnOnce(&mut Program)) {
    PROGRAM.with_borrow_mut(|program| {
        let config = Config {
            arm_functions: true,
            heap_bytes: 64 << 10,
            handler_watchdog_ps: WATCHDOG_PS,
            rpc_watchdog_ps: WATCHDOG_PS,
            // Waits are bounded in virtual time; what idles is to be there soon.
            host_idle_ps: 1_000_000_000,
            ..Config::default()
        };
        emu_machine::configure(config).expect("two cards");
        program.memory.fill(0);
        run(program);
        program.begin_call();
        with_world(|world| Fixture::new(world).assert_well(emu_machine::nic::Transport::Rc)).expect("a machine");
    });
}

impl Program {
    /// The arguments of the last call are not needed any more.
    pub fn begin_call(&mut self) {
        for argument in &self.arguments {
            argument.check();
        }
        self.next = 0;
    }

    fn room(&mut self) -> &mut Guarded {
        self.next += 1;
        &mut self.arguments[self.next - 1]
    }

    /// A structure for the next call.
    pub fn put<T>(&mut self, value: T) -> *mut T {
        self.room().put(value)
    }

    /// Bytes for the next call.
    pub fn bytes(&mut self, bytes: &[u8]) -> *mut u8 {
        self.room().bytes(bytes)
    }

    /// What the call has left of the argument that was put `back` arguments before the last one.
    #[must_use]
    pub fn contents(&self, back: usize) -> Vec<u8> {
        self.arguments[self.next - 1 - back].contents()
    }

    /// An address in the registered memory.
    #[must_use]
    pub fn at(&self, offset: usize) -> *mut u8 {
        self.memory.addr().wrapping_add((offset % MEMORY_BYTES) as u64) as *mut u8
    }
}

/// Lets so many things happen.
pub fn step(count: usize) {
    let _ = with_world(|world| (0..count).all(|_| world.step()));
}

/// A small image: `ping(x)` = x + 5; `handler` ends in order, `spin` never, `crash` at once, `say` and `say_handler`
/// send a message.
#[must_use]
pub fn image() -> Vec<u8> {
    const ECALL: u32 = 0x73;
    const LI_A7: u32 = 0x0000_0893;
    let li_a7 = |number: u32| number << 20 | LI_A7;
    // mv t0, a1; ld a0, 0(a0); jr t0
    let unpack = [0x0005_8293, 0x0005_3503, 0x0002_8067];
    // li a0, 0; li a1, 1; lui a2, 0x80000; slli and srli make it unsigned; li a3, 8
    let say = [0x0000_0513, 0x0010_0593, 0x8000_0637, 0x0206_1613, 0x0206_5613, 0x0080_0693, li_a7(9), ECALL];
    let reschedule = [li_a7(1), ECALL];
    let mut elf = TestElf::image(&[
        ("handler", &reschedule),
        ("ping", &[0x0055_0513, RET]),
        ("ping__unpack", &unpack),
        ("spin", &[0x6F]),
        ("crash", &[0xFFFF_FFFF]),
        ("say", &[&say[..], &[RET]].concat()),
        ("say_handler", &[&say[..], &reschedule].concat()),
    ]);
    elf.sections.push(section(".data", 1, 3, 0x8000_0000, b"message\0".to_vec()));
    elf.segments.push((0x8000_0000, 4096, 6, elf.sections.len() - 1));
    elf.bytes()
}

/// Functions of [`image`], and some that are not there.
///
/// None triggers itself for ever: a call that waits for an event would wait as long, as it should.
pub const FUNCTIONS: [&core::ffi::CStr; 8] =
    [c"handler", c"ping", c"ping__unpack", c"spin", c"crash", c"say", c"say_handler", c"absent"];

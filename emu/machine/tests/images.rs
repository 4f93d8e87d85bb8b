//! Images of unusual shape: found by the fuzz target `elf`.

use emu_machine::{Config, MachineError, World};
use flexcast_image::testing::{TestElf, attributes, section};

const RET: u32 = 0x0000_8067;

fn world() -> World {
    World::new(Config { cards: 1, heap_bytes: 4096, ..Config::default() }).unwrap()
}

/// An image with further segments: address, bytes in memory, `p_flags`.
fn image(segments: &[(u64, u64, u32)]) -> Vec<u8> {
    let mut elf = TestElf::image(&[("handler", &[RET]), ("ping", &[RET])]);
    for &(addr, mem_size, flags) in segments {
        elf.sections.push(section(".more", 1, 6, addr, RET.to_le_bytes().to_vec()));
        elf.segments.push((addr, mem_size, flags, elf.sections.len() - 1));
    }
    elf.bytes()
}

/// What lies between two pieces of code costs nothing, and both run.
#[test]
fn code_may_lie_at_distant_addresses() {
    let mut world = world();
    let process = world.create_process(0, &image(&[(0x1000_0000, 4, 5), (0xBFFF_0000, 4, 5)])).unwrap();
    for ret in [0x1000_0000, 0x4000_0000, 0xBFFF_0000] {
        assert_eq!(world.process_call(0, process, 0, ret, 7).unwrap(), 7);
    }
    let error = world.process_call(0, process, 0, 0x2000_0000, 7).unwrap_err();
    assert!(error.to_string().contains("instruction access fault"), "{error}");
}

/// Each segment is of an allowed size, all together are not.
#[test]
fn an_image_cannot_take_the_memory_of_the_computer() {
    let segments: Vec<_> = (0..16).map(|index| (0x5000_0000 + (index << 26), 1 << 26, 6)).collect();
    let error = world().create_process(0, &image(&segments)).unwrap_err();
    assert!(matches!(error, MachineError::ImageSize { bytes, .. } if bytes > 1 << 30), "{error}");
    assert!(error.to_string().contains("268435456"), "{error}");
    world().create_process(0, &image(&segments[..2])).unwrap();
}

/// Found by its ISA attribute, before anything of it is executed.
#[test]
fn an_image_of_another_generation_is_refused_with_both_names() {
    let mut elf = TestElf::image(&[("handler", &[RET]), ("ping", &[RET])]);
    elf.section_mut(".riscv.attributes").bytes = attributes("rv64i2p0_m2p0_a2p0_c2p0_zba1p0_xcas1p0");
    let MachineError::Image(error) = world().create_process(0, &elf.bytes()).unwrap_err() else { panic!("the image") };
    for part in ["is for ConnectX-8 or later", "the emulated card is rv64imac", "lacks zba, xcas;"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

/// No range is so long that it wraps round.
#[test]
fn ranges_beyond_the_address_space_are_refused() {
    let mut world = world();
    let elf = image(&[(0x8000_0000, 64, 6)]);
    let process = world.create_process(0, &elf).unwrap();
    world.create_thread(0, process, 0x4000_0000, 0, 0, None).unwrap();
    // A segment, the stack of the first unit, the heap.
    for addr in [0x8000_0020, 0xC001_2000, 0x1_0000_0040] {
        world.fill_memory(0, process, addr, 8, 1).unwrap();
        for bytes in [u64::MAX, u64::MAX - 0x20, 1 << 63] {
            let error = world.fill_memory(0, process, addr, bytes, 1).unwrap_err();
            assert!(matches!(error, MachineError::BadDeviceRange { .. }), "{error}");
        }
    }
}

/// What start-up code or a dynamic linker would have to do, nothing does: no process begins with wrong values.
#[test]
fn an_image_that_needs_start_up_code_is_refused() {
    for (name, kind, flags, word) in [
        (".tdata", 1, 0x403, "thread-local"),
        (".init_array", 14, 3, "constructors in .init_array (handler)"),
        (".fini_array", 15, 3, "destructors in .fini_array (handler)"),
        (".rela.dyn", 4, 2, "24 bytes of relocations in .rela.dyn"),
    ] {
        let mut elf = TestElf::image(&[("handler", &[RET]), ("ping", &[RET])]);
        let mut bytes = 0x4000_0000_u64.to_le_bytes().to_vec();
        bytes.resize(24, 0);
        elf.sections.push(section(name, kind, flags, 0x8000_0000, bytes));
        elf.sections.last_mut().unwrap().entry_size = 24;
        let error = world().create_process(0, &elf.bytes()).unwrap_err();
        let MachineError::Image(error) = error else { panic!("{error}") };
        assert!(error.to_string().contains(word), "{name}: {error}");
    }
}

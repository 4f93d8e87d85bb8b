//! Device commands: objects made, asked about and changed; keys shared between virtual HCAs; and what is not emulated
//! is refused with a status and a syndrome.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

use crate::support::*;
use emu_machine::nic::Access;
use emu_machine::with_world;
use verbs_sys::*;

/// A command of 272 bytes with this opcode.
fn command(opcode: u16) -> [u8; 272] {
    let mut command = [0; 272];
    command[..2].copy_from_slice(&opcode.to_be_bytes());
    command
}

/// errno, status and syndrome of a command that makes an object, and must not.
fn refused(host: &Host, command: &[u8]) -> (i32, u8, u32) {
    let mut answer = [0_u8; 16];
    let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
    let object = unsafe { (host.api.mlx5dv_devx_obj_create)(host.context, input, command.len(), out, 16) };
    assert!(object.is_null(), "{:x?} made an object", &command[..2]);
    (errno(), answer[0], u32::from_be_bytes(answer[4..8].try_into().unwrap()))
}

const BAD_OPERATION: u8 = 0x2;
const BAD_PARAMETER: u8 = 0x3;
const BAD_RESOURCE: u8 = 0x5;
const BAD_STATE: u8 = 0x9;
const BAD_LENGTH: u8 = 0x50;
const BAD_ANSWER_LENGTH: u8 = 0x51;
const UNSUPPORTED_COMMAND: u32 = 0xF1EC_0001;
const UNSUPPORTED_FIELD: u32 = 0xF1EC_0012;

#[test]
fn commands_that_are_not_emulated_are_refused() {
    let [host, _] = two_cards();
    // CREATE_TIR, CREATE_SQ, CREATE_RQ, CREATE_UMEM, CREATE_SRQ, CREATE_EQ, MODIFY_CQ, and one that is none.
    for opcode in [0x900, 0x904, 0x908, 0xA08, 0x700, 0x301, 0x403, 0x9999] {
        let expected = (libc::EREMOTEIO, BAD_OPERATION, UNSUPPORTED_COMMAND);
        assert_eq!(refused(&host, &command(opcode)), expected, "{opcode:#x}");
        let mut answer = [0_u8; 16];
        let command = command(opcode);
        let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
        let result = unsafe { (host.api.mlx5dv_devx_general_cmd)(host.context, input, command.len(), out, 16) };
        assert_eq!((result, answer[0]), (libc::EREMOTEIO, BAD_OPERATION), "{opcode:#x}");
    }
}

#[test]
fn fields_that_are_not_emulated_are_refused_by_name() {
    let [host, _] = two_cards();
    let expected = (libc::EREMOTEIO, BAD_PARAMETER, UNSUPPORTED_FIELD);
    // Byte and bits of CREATE_CQ.
    for (name, byte, bits) in [
        ("CQE size", 0x11, 0x20),
        ("collapsing", 0x11, 0x10),
        ("compression", 0x12, 0x40),
        ("moderation by time", 0x21, 1),
        ("moderation by count", 0x23, 2),
    ] {
        let mut command = command(0x400);
        command[byte] = bits;
        assert_eq!(refused(&host, &command), expected, "{name}");
    }
    let mut queue = command(0x400);
    queue[0x10] = 1; // ext_element
    for element in 1..8 {
        queue[0x13] = element << 4;
        assert_eq!(refused(&host, &queue), expected, "element type {element}");
    }
    let mut queue_pair = command(0x500);
    queue_pair[0x18 + 0xAC] = 1; // rq_type: shared
    assert_eq!(refused(&host, &queue_pair), expected, "a shared receive queue");
    let mut queue_pair = command(0x500);
    for service in [3, 4, 5, 7, 8, 9, 0xC, 0x10, 0xFF] {
        queue_pair[0x19] = service;
        assert_eq!(refused(&host, &queue_pair), (libc::EREMOTEIO, BAD_PARAMETER, 0xF1EC_0014), "service {service}");
    }
}

/// Sets `width` bits from bit `bit` (0 = most significant) of the dword at byte `at`, as the PRM counts.
fn set(bytes: &mut [u8], at: usize, bit: u32, width: u32, value: u32) {
    let dword: &mut [u8; 4] = (&mut bytes[at..at + 4]).try_into().unwrap();
    let old = u32::from_be_bytes(*dword);
    let shift = 32 - bit - width;
    let mask = (u64::from(u32::MAX) >> (32 - width)) as u32;
    *dword = (old & !(mask << shift) | (value & mask) << shift).to_be_bytes();
}

fn get(bytes: &[u8], at: usize, bit: u32, width: u32) -> u32 {
    let value = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) >> (32 - bit - width);
    value & (u64::from(u32::MAX) >> (32 - width)) as u32
}

/// An object made by command, and its number.
fn made(host: &Host, command: &[u8]) -> (*mut mlx5dv_devx_obj, u32) {
    let mut answer = [0_u8; 16];
    let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
    let object = unsafe { (host.api.mlx5dv_devx_obj_create)(host.context, input, command.len(), out, 16) };
    assert!(!object.is_null(), "{:x?}: {answer:x?}", &command[..2]);
    (object, get(&answer, 8, 0, 32))
}

/// A command without an object; its status and answer of `len` bytes.
fn general(host: &Host, command: &[u8], len: usize) -> (i32, Vec<u8>) {
    let mut answer = vec![0_u8; len];
    let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
    let result = unsafe { (host.api.mlx5dv_devx_general_cmd)(host.context, input, command.len(), out, len) };
    (result, answer)
}

/// A query of an object; its status and answer.
fn query(host: &Host, object: *mut mlx5dv_devx_obj, opcode: u16) -> (i32, Vec<u8>) {
    query_into(host, object, opcode, 272)
}

/// The same with room for `len` bytes.
fn query_into(host: &Host, object: *mut mlx5dv_devx_obj, opcode: u16, len: usize) -> (i32, Vec<u8>) {
    let mut answer = vec![0_u8; len];
    let mut command = [0_u8; 16];
    command[..2].copy_from_slice(&opcode.to_be_bytes());
    let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
    let result = unsafe { (host.api.mlx5dv_devx_obj_query)(object, input, 16, out, answer.len()) };
    (result, answer)
}

fn modify(host: &Host, object: *mut mlx5dv_devx_obj, command: &[u8]) -> (i32, u8) {
    let mut answer = [0_u8; 16];
    let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
    let result = unsafe { (host.api.mlx5dv_devx_obj_modify)(object, input, command.len(), out, 16) };
    (result, answer[0])
}

fn destroy(host: &Host, object: *mut mlx5dv_devx_obj) -> i32 {
    unsafe { (host.api.mlx5dv_devx_obj_destroy)(object) }
}

/// Number of the host's protection domain.
fn pd_number(host: &Host) -> u32 {
    let mut object = mlx5dv_obj::default();
    let mut pd = mlx5dv_pd::default();
    (object.pd.in_, object.pd.out) = (host.pd, &mut pd);
    assert_eq!(unsafe { (host.api.mlx5dv_init_obj)(&mut object, u64::from(MLX5DV_OBJ_PD)) }, 0);
    pd.pdn
}

/// QUERY_HCA_CAP of this kind.
fn capabilities(host: &Host, kind: u32, len: usize) -> (i32, Vec<u8>) {
    let mut command = [0_u8; 16];
    command[..2].copy_from_slice(&0x100_u16.to_be_bytes());
    set(&mut command, 4, 16, 16, kind << 1 | 1);
    general(host, &command, len)
}

#[test]
fn capabilities_are_reported() {
    let [host, other] = two_cards();
    let (result, answer) = capabilities(&host, 0, 0x1010);
    assert_eq!((result, answer[0]), (0, 0));
    let vhca = with_world(|world| world.card(0).unwrap().nic.vhca_id()).unwrap();
    assert_eq!(get(&answer, 0x14, 16, 16), u32::from(vhca));
    assert_eq!((get(&answer, 0x20, 8, 8), get(&answer, 0x28, 8, 8)), (15, 22), "deepest send and completion rings");
    let (_, elsewhere) = capabilities(&other, 0, 0x1010);
    assert_ne!(get(&elsewhere, 0x14, 16, 16), u32::from(vhca), "each card has its own");
    let (result, answer) = capabilities(&host, 0x20, 0x1010);
    assert_eq!((result, get(&answer, 0x2C, 0, 32)), (0, 0x100), "keys of other virtual HCAs");
    let (result, answer) = capabilities(&host, 0x24, 0x1010);
    assert_eq!(result, 0);
    assert_eq!((get(&answer, 0x10, 0, 1), get(&answer, 0x10, 1, 1)), (1, 0), "units one by one, not by groups");
    assert_eq!(get(&answer, 0x10, 11, 5), 20, "1 MiB of heap");
    assert_eq!((get(&answer, 0x14, 0, 32), get(&answer, 0x10, 3, 5)), (4096, 8));
    assert_eq!((get(&answer, 0x18, 3, 5), get(&answer, 0x18, 11, 5), get(&answer, 0x1C, 3, 5)), (8, 8, 8));
    let (result, answer) = capabilities(&host, 0x11, 0x1010);
    assert_eq!((result, answer[0]), (libc::EREMOTEIO, BAD_PARAMETER), "a kind that is not there");
}

/// Programs make room for a structure of 2,048 bytes, or of twice as many with what is reserved.
#[test]
fn capabilities_are_reported_as_far_as_there_is_room() {
    let [host, _] = two_cards();
    for kind in [0, 0x20, 0x24] {
        let (_, whole) = capabilities(&host, kind, 0x1010);
        for len in [16 + 2048, 16 + 2049, 0x100F] {
            let (result, answer) = capabilities(&host, kind, len);
            assert_eq!((result, answer[0], answer.len()), (0, 0, len), "kind {kind:#x}");
            assert!(answer[..] == whole[..len], "kind {kind:#x}, {len} bytes");
        }
        for len in [16, 17, 16 + 2047] {
            let (result, answer) = capabilities(&host, kind, len);
            assert_eq!((result, answer[0]), (libc::EREMOTEIO, BAD_ANSWER_LENGTH), "kind {kind:#x}, {len} bytes");
            assert_ne!(answer[4..8], [0; 4]);
            assert!(answer[8..].iter().all(|byte| *byte == 0));
        }
    }
    // Greatest values are those that hold.
    for kind in [0_u32, 0x20, 0x24] {
        let mut command = [0_u8; 16];
        command[..2].copy_from_slice(&0x100_u16.to_be_bytes());
        set(&mut command, 4, 16, 16, kind << 1);
        assert!(general(&host, &command, 0x1010) == capabilities(&host, kind, 0x1010), "kind {kind:#x}");
    }
}

/// What a device reports by command is what it reports by `ibv_query_device` and `ibv_query_port`.
#[test]
fn capabilities_agree_with_the_attributes_of_device_and_port() {
    let [host, _] = two_cards();
    let (_, answer) = capabilities(&host, 0, 0x810);
    let (mut device, mut port) = (ibv_device_attr::default(), ibv_port_attr::default());
    assert_eq!(unsafe { (host.api.ibv_query_device)(host.context, &mut device) }, 0);
    assert_eq!(unsafe { inline::query_port(&host.api, host.context, 1, &mut port) }, 0);
    let field = |at, bit, width| get(&answer[0x10..], at, bit, width);
    assert_eq!(u32::from(port.link_layer), IBV_LINK_LAYER_ETHERNET);
    assert_eq!(field(0x34, 22, 2), 1, "port_type: Ethernet");
    assert_eq!(field(0x34, 24, 8), u32::from(device.phys_port_cnt), "num_ports");
    assert_eq!(1 << field(0x28, 10, 6), device.max_qp_init_rd_atom, "log_max_ra_req_qp");
    assert_eq!(1 << field(0x28, 26, 6), device.max_qp_rd_atom, "log_max_ra_res_qp");
    assert_eq!(field(0x34, 11, 5), u32::from(device.local_ca_ack_delay), "local_ca_ack_delay");
    assert_eq!(1 << field(0x38, 3, 5), port.max_msg_sz, "log_max_msg");
    assert_eq!(field(0x3C, 28, 4), 1, "cqe_version");
    assert_eq!((field(0x44, 0, 1), field(0x44, 8, 1)), (1, 1), "cq_oi, block_lb_mc");
    assert_eq!((field(0x44, 28, 1), field(0x44, 29, 3)), (0, 0b111), "UD, UC and RC, no XRC");
}

/// The two functions of a card are two devices, with one system image; each has its own addresses, virtual HCA and
/// objects.
#[test]
fn functions_of_a_card_are_devices_of_their_own() {
    let [host, other, arm, other_arm] = four_functions();
    let name = |host: &Host| unsafe {
        std::ffi::CStr::from_ptr((host.api.ibv_get_device_name)((*host.context).device)).to_str().unwrap().to_owned()
    };
    assert_eq!([&host, &other, &arm, &other_arm].map(name), ["mlx5_0", "mlx5_1", "mlx5_0_arm", "mlx5_1_arm"]);
    let attr = |host: &Host| {
        let mut attr = ibv_device_attr::default();
        assert_eq!(unsafe { (host.api.ibv_query_device)(host.context, &mut attr) }, 0);
        attr
    };
    assert_eq!(attr(&host).sys_image_guid, attr(&arm).sys_image_guid);
    assert_ne!(attr(&host).sys_image_guid, attr(&other).sys_image_guid);
    assert_ne!(attr(&host).node_guid, attr(&arm).node_guid);
    // The link-local address, then that of IPv4, each by both versions of RoCE.
    for (index, ends) in [
        (0, [[254, 0, 0, 1], [254, 0, 0, 2], [254, 1, 0, 1], [254, 1, 0, 2]]),
        (1, [[254, 0, 0, 1], [254, 0, 0, 2], [254, 1, 0, 1], [254, 1, 0, 2]]),
        (2, [[198, 18, 0, 1], [198, 18, 0, 2], [198, 19, 0, 1], [198, 19, 0, 2]]),
        (3, [[198, 18, 0, 1], [198, 18, 0, 2], [198, 19, 0, 1], [198, 19, 0, 2]]),
    ] {
        let gids = [&host, &other, &arm, &other_arm].map(|host| unsafe { host.gid_at(index).raw[12..].to_vec() });
        assert_eq!(gids, ends, "index {index}");
    }
    let vhca = |host: &Host| get(&capabilities(host, 0, 0x1010).1, 0x14, 16, 16);
    assert_ne!(vhca(&host), vhca(&arm));
    // Neither takes the other's objects: domains by command, completion queues by call.
    let mut key = command(0x200);
    set(&mut key, 0x10, 1, 1, 1);
    set(&mut key, 0x10, 16, 1, 1);
    set(&mut key, 0x10, 22, 2, 2);
    set(&mut key, 0x14, 0, 24, 0xFF_FFFF);
    set(&mut key, 0x44, 0, 32, 4);
    set(&mut key, 0x1C, 8, 24, pd_number(&host));
    assert_eq!(refused(&arm, &key).1, BAD_RESOURCE);
    assert_eq!(destroy(&host, made(&host, &key).0), 0);
    let cq = host.cq(4);
    let mut init = init_attr(IBV_QPT_RC, cq);
    assert!(unsafe { (arm.api.ibv_create_qp)(arm.pd, &mut init) }.is_null());
    assert_eq!(errno(), libc::EINVAL);
}

/// ALLOW_OTHER_VHCA_ACCESS of the key of this index.
fn allow(index: u32, access_key: u8) -> [u8; 64] {
    let mut command = [0_u8; 64];
    command[..2].copy_from_slice(&0xB16_u16.to_be_bytes());
    set(&mut command, 0x10, 16, 16, 0xFF01);
    set(&mut command, 0x14, 0, 32, index);
    command[0x20..].fill(access_key);
    command
}

/// CREATE_GENERAL_OBJECT of an alias.
fn alias(vhca: u32, index: u32, access_key: u8, pd: u32) -> [u8; 80] {
    let mut command = [0_u8; 80];
    command[..2].copy_from_slice(&0xA00_u16.to_be_bytes());
    set(&mut command, 0x4, 16, 16, 0xFF01);
    set(&mut command, 0xC, 0, 1, 1);
    set(&mut command, 0x10, 0, 16, vhca);
    set(&mut command, 0x14, 0, 32, index);
    command[0x20..0x40].fill(access_key);
    set(&mut command, 0x40, 0, 32, pd);
    command
}

#[test]
fn a_key_is_shared_and_used_through_an_alias() {
    let [host, _, arm, other_arm] = four_functions();
    let mut bytes = vec![7; 4096];
    let key = unsafe { (*host.mr(&mut bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ)).lkey };
    let (_, general_caps) = capabilities(&host, 0, 0x1010);
    let vhca = get(&general_caps, 0x14, 16, 16);
    let arm_pd = pd_number(&arm);
    let reach = |key: u32, access: Access| {
        let (start, len) = (bytes.as_ptr() as u64, 4096);
        with_world(|world| world.card(0).unwrap().nic.check_access(key, arm_pd, start, len, access).is_ok()).unwrap()
    };
    let index = key >> 8;
    let unshared = refused(&arm, &alias(vhca, index, 1, arm_pd));
    assert_eq!((unshared.0, unshared.1), (libc::EREMOTEIO, BAD_PARAMETER), "not shared yet");
    assert_eq!(general(&host, &allow(index, 1), 16).0, 0);
    for (name, command, status) in [
        ("another access key", alias(vhca, index, 2, arm_pd), BAD_PARAMETER),
        ("another virtual HCA", alias(vhca ^ 0x8000, index, 1, arm_pd), BAD_PARAMETER),
        ("a key that is not", alias(vhca, index + 1000, 1, arm_pd), BAD_RESOURCE),
        ("no such domain", alias(vhca, index, 1, 0xFF_FFFF), BAD_RESOURCE),
        ("a domain of the host's", alias(vhca, index, 1, pd_number(&host)), BAD_RESOURCE),
    ] {
        let answer = refused(&arm, &command);
        assert_eq!((answer.0, answer.1), (libc::EREMOTEIO, status), "{name}");
    }
    // The host itself needs no alias, and a function of another card does not reach it.
    let own = refused(&host, &alias(vhca, index, 1, pd_number(&host)));
    assert_eq!((own.0, own.1), (libc::EREMOTEIO, BAD_PARAMETER), "one's own key");
    let elsewhere = refused(&other_arm, &alias(vhca, index, 1, pd_number(&other_arm)));
    assert_eq!((elsewhere.0, elsewhere.1), (libc::EREMOTEIO, BAD_PARAMETER), "another card");
    // Nor may another function share it.
    let (result, answer) = general(&arm, &allow(index, 4), 16);
    assert_eq!((result, answer[0]), (libc::EREMOTEIO, BAD_RESOURCE), "not the owner");
    let (object, number) = made(&arm, &alias(vhca, index, 1, arm_pd));
    // As programs make it: the number is the index, and the tag is 0.
    let through = number << 8;
    assert!(reach(through, Access::LOCAL_WRITE) && reach(through, Access::REMOTE_READ));
    assert!(!reach(through, Access::REMOTE_WRITE), "rights are those of the target");
    assert!(!reach(key, Access::empty()), "the target itself is not theirs");
    let (result, answer) = query(&arm, object, 0xA02);
    assert_eq!((result, get(&answer, 0x10, 0, 16), get(&answer, 0x14, 0, 32)), (0, vhca, index));
    assert_eq!(query(&arm, object, 0x201).1[0], BAD_RESOURCE, "an alias is not an ordinary key");
    assert_eq!((query_into(&arm, object, 0xA02, 0x50).0, query_into(&arm, object, 0xA02, 0x4F).1[0]), (0, 0x51));
    // Sharing anew kills the aliases of before.
    assert_eq!(general(&host, &allow(index, 3), 16).0, 0);
    assert!(!reach(through, Access::LOCAL_WRITE));
    let (second, number) = made(&arm, &alias(vhca, index, 3, arm_pd));
    assert!(reach(number << 8, Access::LOCAL_WRITE));
    assert_eq!((destroy(&arm, object), destroy(&arm, second)), (0, 0));
    assert!(!reach(number << 8, Access::LOCAL_WRITE));
    assert_eq!(destroy(&arm, second), libc::EINVAL);
}

#[test]
fn sharing_and_general_objects_have_rules() {
    let [host, _] = two_cards();
    let mut other_type = allow(0, 1);
    set(&mut other_type, 0x10, 16, 16, 0xFF02);
    for (name, command, status) in [
        ("a key that is not", allow(0xFF_FFFF, 1).to_vec(), BAD_RESOURCE),
        ("an index of more than 24 bits", allow(u32::MAX, 1).to_vec(), BAD_RESOURCE),
        ("queue pairs", other_type.to_vec(), BAD_PARAMETER),
        ("too short", allow(0, 1)[..63].to_vec(), BAD_LENGTH),
    ] {
        let (result, answer) = general(&host, &command, 16);
        assert_eq!((result, answer[0]), (libc::EREMOTEIO, status), "{name}");
    }
    let with = |change: &dyn Fn(&mut [u8])| {
        let mut command = alias(1, 1, 1, 1).to_vec();
        change(&mut command);
        refused(&host, &command).1
    };
    assert_eq!(with(&|command| set(command, 0xC, 0, 1, 0)), BAD_PARAMETER, "no alias");
    assert_eq!(refused(&host, &alias(1, 1, 1, 1)[..79]).1, BAD_LENGTH);
    // DPA processes, threads, outboxes, windows, UARs and so on come from FlexIO.
    for kind in [0x28, 0x2A, 0x2B, 0x2D, 0x32, 0x33, 0x39, 0x49, 0x4A, 0xFF11, 0xFF12, 0xFF13, 0xFF14, 0xFF15] {
        assert_eq!(with(&|command| set(command, 0x4, 16, 16, kind)), BAD_PARAMETER, "{kind:#x}");
    }
}

#[repr(align(4096))]
struct Pages([u8; 0x4000]);

/// Registered memory and where queues lie in it.
struct Queues {
    memory: Box<Pages>,
    umem: u32,
}

const RING: u32 = 0x1000;
const RECORDS: u32 = 0x3000;

impl Queues {
    fn new(host: &Host) -> Self {
        // Owner bits of a completion ring begin as 1.
        let mut memory = Box::new(Pages([0xFF; 0x4000]));
        let start = memory.0.as_mut_ptr().cast();
        let umem = unsafe { (host.api.mlx5dv_devx_umem_reg)(host.context, start, 0x4000, IBV_ACCESS_LOCAL_WRITE) };
        assert!(!umem.is_null());
        Queues { memory, umem: unsafe { (*umem).umem_id } }
    }

    /// CREATE_CQ of 16 entries at the start of the memory.
    fn completion_queue(&self) -> [u8; 272] {
        let mut command = command(0x400);
        set(&mut command, 0x10, 6, 1, 1); // dbr_umem_valid
        set(&mut command, 0x10, 14, 1, 1); // oi
        set(&mut command, 0x14, 0, 32, self.umem); // dbr_umem_id
        set(&mut command, 0x1C, 3, 5, 4); // log_cq_size
        set(&mut command, 0x1C, 8, 24, 0x77); // uar_page
        set(&mut command, 0x4C, 0, 32, RECORDS); // dbr_addr, low half
        set(&mut command, 0x58, 0, 32, self.umem);
        set(&mut command, 0x5C, 0, 1, 1);
        command
    }

    /// CREATE_QP, RC: 8 receives of 16 bytes, 4 blocks of 64.
    fn queue_pair(&self, pd: u32, cqn: u32) -> [u8; 272] {
        let mut command = command(0x500);
        let qpc = 0x18;
        set(&mut command, qpc, 19, 2, 3); // pm_state
        set(&mut command, qpc + 0x4, 8, 24, pd);
        set(&mut command, qpc + 0x8, 9, 4, 3); // log_rq_size
        set(&mut command, qpc + 0x8, 17, 4, 2); // log_sq_size
        set(&mut command, qpc + 0xC, 8, 24, 0x78); // uar_page
        set(&mut command, qpc + 0x10, 8, 24, 0x1234); // user_index
        set(&mut command, qpc + 0x7C, 8, 24, cqn);
        set(&mut command, qpc + 0x9C, 8, 24, cqn);
        set(&mut command, qpc + 0xA4, 0, 32, RECORDS + 0x40); // dbr_addr, low half
        set(&mut command, qpc + 0xD0, 3, 1, 1); // dbr_umem_valid
        set(&mut command, qpc + 0xE4, 0, 32, self.umem);
        set(&mut command, 0x104, 0, 32, RING);
        set(&mut command, 0x108, 0, 32, self.umem);
        set(&mut command, 0x10C, 0, 1, 1);
        command
    }
}

/// A transition of queue pair `qpn`.
fn transition(opcode: u16, qpn: u32) -> [u8; 272] {
    let mut command = command(opcode);
    set(&mut command, 0x8, 8, 24, qpn);
    set(&mut command, 0x18, 19, 2, 3); // pm_state
    command
}

#[test]
fn objects_made_by_command_are_asked_about_and_changed() {
    let [host, other] = two_cards();
    let queues = Queues::new(&host);
    let (cq, cqn) = made(&host, &queues.completion_queue());
    let (result, answer) = query(&host, cq, 0x402);
    assert_eq!((result, get(&answer, 0x10, 0, 4)), (0, 0), "it has not failed");
    assert_eq!((get(&answer, 0x10, 14, 1), get(&answer, 0x1C, 3, 5), get(&answer, 0x1C, 8, 24)), (1, 4, 0x77));
    let (qp, qpn) = made(&host, &queues.queue_pair(pd_number(&host), cqn));
    assert_eq!(destroy(&host, cq), libc::EBUSY, "the queue pair completes there");

    let qpc = 0x18;
    let path = qpc + 0x18;
    let mut to_init = transition(0x502, qpn);
    set(&mut to_init, qpc + 0x90, 17, 1, 1); // rwe
    set(&mut to_init, path + 0x24, 8, 8, 1); // port
    assert_eq!(modify(&host, qp, &to_init), (0, 0));
    let early = transition(0x505, qpn);
    assert_eq!(modify(&host, qp, &early), (libc::EREMOTEIO, BAD_STATE), "RTS2RTS in INIT");
    let mut to_nowhere = transition(0x502, qpn);
    for port in [0, 2, 0xFF] {
        set(&mut to_nowhere, path + 0x24, 8, 8, port);
        assert_eq!(modify(&host, qp, &to_nowhere), (libc::EREMOTEIO, BAD_PARAMETER), "port {port}");
    }
    let mut to_rtr = transition(0x503, qpn);
    set(&mut to_rtr, qpc + 0x8, 0, 3, 3); // MTU 1024
    set(&mut to_rtr, qpc + 0x14, 8, 24, 0x4321); // remote_qpn
    set(&mut to_rtr, qpc + 0x90, 16, 2, 3); // rre, rwe
    set(&mut to_rtr, qpc + 0x94, 3, 5, 12); // min_rnr_nak
    set(&mut to_rtr, qpc + 0x94, 8, 24, 99); // next_rcv_psn
    to_rtr[path + 0x10..path + 0x20].copy_from_slice(&unsafe { other.gid().raw });
    to_rtr[path + 0x26..path + 0x2C].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    set(&mut to_rtr, path + 0x8, 24, 8, 7); // hop limit
    set(&mut to_rtr, path + 0xC, 4, 8, 0x20); // traffic class
    set(&mut to_rtr, path + 0xC, 12, 20, 0x12345); // flow label
    set(&mut to_rtr, path + 0x20, 16, 16, 0xC123); // UDP source port
    for log in 5..8 {
        set(&mut to_rtr, qpc + 0x90, 8, 3, log); // log_rra_max
        assert_eq!(modify(&host, qp, &to_rtr), (libc::EREMOTEIO, BAD_PARAMETER), "{} Reads of the peer", 1 << log);
    }
    set(&mut to_rtr, qpc + 0x90, 8, 3, 4);
    assert_eq!(modify(&host, qp, &to_rtr), (0, 0));
    let mut to_rts = transition(0x504, qpn);
    for log in 5..8 {
        set(&mut to_rts, qpc + 0x70, 8, 3, log); // log_sra_max
        assert_eq!(modify(&host, qp, &to_rts), (libc::EREMOTEIO, BAD_PARAMETER), "{} Reads", 1 << log);
    }
    set(&mut to_rts, qpc + 0x70, 8, 3, 2);
    set(&mut to_rts, qpc + 0x70, 13, 3, 5); // retry_count
    set(&mut to_rts, qpc + 0x70, 16, 3, 6); // rnr_retry
    set(&mut to_rts, qpc + 0x78, 8, 24, 77); // next_send_psn
    set(&mut to_rts, path + 0x8, 0, 5, 14); // ack_timeout
    assert_eq!(modify(&host, qp, &to_rts), (0, 0));

    let (result, answer) = query(&host, qp, 0x50B);
    assert_eq!((result, get(&answer, qpc, 0, 4), get(&answer, qpc, 8, 8)), (0, 3, 0), "RTS, RC");
    for (name, at, bit, width, value) in [
        ("pd", 0x4, 8, 24, pd_number(&host)),
        ("mtu", 0x8, 0, 3, 3),
        ("log_rq_size", 0x8, 9, 4, 3),
        ("log_rq_stride", 0x8, 13, 3, 0),
        ("no_sq", 0x8, 16, 1, 0),
        ("log_sq_size", 0x8, 17, 4, 2),
        ("uar_page", 0xC, 8, 24, 0x78),
        ("user_index", 0x10, 8, 24, 0x1234),
        ("remote_qpn", 0x14, 8, 24, 0x4321),
        ("log_sra_max", 0x70, 8, 3, 2),
        ("retry_count", 0x70, 13, 3, 5),
        ("rnr_retry", 0x70, 16, 3, 6),
        ("next_send_psn", 0x78, 8, 24, 77),
        ("cqn_snd", 0x7C, 8, 24, cqn),
        ("rre, rwe, rae", 0x90, 16, 3, 0b110),
        ("min_rnr_nak", 0x94, 3, 5, 12),
        ("next_rcv_psn", 0x94, 8, 24, 99),
        ("cqn_rcv", 0x9C, 8, 24, cqn),
        ("rq_type", 0xAC, 5, 3, 0),
        ("ack_timeout", 0x18 + 0x8, 0, 5, 14),
        ("hop_limit", 0x18 + 0x8, 24, 8, 7),
        ("tclass", 0x18 + 0xC, 4, 8, 0x20),
        ("flow_label", 0x18 + 0xC, 12, 20, 0x12345),
        ("udp_sport", 0x18 + 0x20, 16, 16, 0xC123),
        ("port", 0x18 + 0x24, 8, 8, 1),
    ] {
        assert_eq!(get(&answer, qpc + at, bit, width), value, "{name}");
    }
    assert_eq!(answer[path + 0x10..path + 0x20], unsafe { other.gid().raw });
    assert_eq!(answer[path + 0x26..path + 0x2C], [2, 0, 0, 0, 0, 2]);

    // RTS2RTS changes what its mask names, and nothing else.
    let mut change = transition(0x505, qpn);
    set(&mut change, 0x10, 0, 32, 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 12);
    set(&mut change, qpc + 0x90, 18, 1, 1); // rae alone
    set(&mut change, qpc + 0x94, 3, 5, 20);
    set(&mut change, qpc + 0x70, 13, 3, 1);
    set(&mut change, qpc + 0x70, 16, 3, 1); // not in the mask
    assert_eq!(modify(&host, qp, &change), (0, 0));
    let (_, answer) = query(&host, qp, 0x50B);
    assert_eq!((get(&answer, qpc + 0x90, 16, 3), get(&answer, qpc + 0x94, 3, 5)), (0b001, 20));
    assert_eq!((get(&answer, qpc + 0x70, 13, 3), get(&answer, qpc + 0x70, 16, 3)), (1, 6));
    for mask in [1 << 0, 1 << 1, 1 << 7, 1 << 8, 1 << 31] {
        set(&mut change, 0x10, 0, 32, mask);
        assert_eq!(modify(&host, qp, &change), (libc::EREMOTEIO, BAD_PARAMETER), "{mask:#x}");
    }
    // An answer that has no room for the context is no answer.
    for (object, opcode, needed) in [(qp, 0x50B, 0x100), (cq, 0x402, 0x50)] {
        let (result, answer) = query_into(&host, object, opcode, needed);
        assert!(result == 0 && answer[..] == query(&host, object, opcode).1[..needed], "{opcode:#x}");
        for len in [16, needed - 1] {
            let (result, answer) = query_into(&host, object, opcode, len);
            assert_eq!((result, answer[0]), (libc::EREMOTEIO, BAD_ANSWER_LENGTH), "{opcode:#x}: {len} bytes");
        }
    }
    // Queries of another kind, and of none.
    assert_eq!(query(&host, qp, 0x402).1[0], BAD_RESOURCE);
    assert_eq!(query(&host, cq, 0x50B).1[0], BAD_RESOURCE);
    assert_eq!(query(&host, cq, 0x999).1[0], BAD_OPERATION);
    assert_eq!((modify(&host, qp, &transition(0x507, qpn)).0, modify(&host, qp, &transition(0x50A, qpn)).0), (0, 0));
    assert_eq!((destroy(&host, qp), destroy(&host, cq)), (0, 0));
}

#[test]
fn keys_and_domains_made_by_command() {
    let [host, _] = two_cards();
    let queues = Queues::new(&host);
    let (domain, pd) = made(&host, &command(0x800));
    assert_ne!(pd, pd_number(&host));
    let start = queues.memory.0.as_ptr() as u64;
    let mut create = command(0x200);
    set(&mut create, 0xC, 1, 1, 1); // umem valid
    set(&mut create, 0x10, 19, 2, 3); // rr, lw
    set(&mut create, 0x14, 0, 24, 0xFF_FFFF);
    set(&mut create, 0x14, 24, 8, 0x42);
    set(&mut create, 0x1C, 8, 24, pd);
    create[0x20..0x28].copy_from_slice(&start.to_be_bytes());
    create[0x28..0x30].copy_from_slice(&0x4000_u64.to_be_bytes());
    set(&mut create, 0x64, 0, 32, queues.umem);
    let (key, _) = made(&host, &create);
    let (result, answer) = query(&host, key, 0x201);
    assert_eq!(
        (result, get(&answer, 0x10, 17, 4), get(&answer, 0x14, 24, 8), get(&answer, 0x1C, 8, 24)),
        (0, 0b0011, 0x42, pd)
    );
    assert_eq!(answer[0x20..0x28], start.to_be_bytes());
    assert_eq!(answer[0x28..0x30], 0x4000_u64.to_be_bytes());
    assert_eq!(query_into(&host, key, 0x201, 0x50).0, 0);
    assert_eq!(query_into(&host, key, 0x201, 0x4F).1[0], BAD_ANSWER_LENGTH);
    assert_eq!(destroy(&host, domain), libc::EBUSY, "the key is in it");
    assert_eq!((destroy(&host, key), destroy(&host, domain), destroy(&host, domain)), (0, 0, libc::EINVAL));
}

#[test]
fn a_queue_pair_made_by_command_blocks_loopback_of_groups() {
    let [host, _] = two_cards();
    for block in [0, 1] {
        let queues = Queues::new(&host);
        let (_, cqn) = made(&host, &queues.completion_queue());
        let mut create = queues.queue_pair(pd_number(&host), cqn);
        set(&mut create, 0x18, 8, 8, 2); // UD
        let (qp, qpn) = made(&host, &create);
        let mut to_init = transition(0x502, qpn);
        set(&mut to_init, 0x18, 8, 8, 2);
        set(&mut to_init, 0x18 + 0x4, 1, 1, block);
        set(&mut to_init, 0x18 + 0xA8, 0, 32, 0x1234); // q_key
        set(&mut to_init, 0x30 + 0x24, 8, 8, 1); // port
        assert_eq!(modify(&host, qp, &to_init), (0, 0));
        let (_, answer) = query(&host, qp, 0x50B);
        assert_eq!((get(&answer, 0x1C, 1, 1), get(&answer, 0x18 + 0xA8, 0, 32)), (block, 0x1234));
        let path = with_world(|world| world.card(0).unwrap().nic.query_qp(qpn).unwrap().path).unwrap();
        assert_eq!(path.block_multicast_loopback, block == 1);
    }
}

#[test]
fn devices_open_for_commands_and_uars_are_numbered() {
    let [host, _] = two_cards();
    let api = &host.api;
    unsafe {
        let device = (*host.context).device;
        let mut attr = mlx5dv_context_attr { flags: MLX5DV_CONTEXT_FLAGS_DEVX, ..Default::default() };
        let context = (api.mlx5dv_open_device)(device, &mut attr);
        assert!(!context.is_null());
        let uars = [(), ()].map(|()| (api.mlx5dv_devx_alloc_uar)(context, 0));
        assert!(uars.iter().all(|uar| !uar.is_null() && (**uar).page_id != 0 && !(**uar).base_addr.is_null()));
        assert_ne!((*uars[0]).page_id, (*uars[1]).page_id);
        assert!((api.mlx5dv_devx_alloc_uar)(context, 0x80).is_null(), "flags that are none");
        for uar in uars {
            (api.mlx5dv_devx_free_uar)(uar);
        }
        assert_eq!((api.ibv_close_device)(context), 0);
        assert!((api.mlx5dv_devx_alloc_uar)(context, 0).is_null());
    }
}

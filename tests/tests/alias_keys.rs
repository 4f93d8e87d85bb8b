//! Memory keys across the two functions of an emulated card: a program on the Arm cores reads and writes memory of the host.

use emu_machine::{Config, FunctionId};
use emu_provider::Emulated;
use flexio::{
    Access, AccessKey, AliasKey, Bound, CompletionQueue, Device, Error, ExportedRegion, HostBuffer, KeyExport,
    LocalSlice, MemoryRegion, ProtectionDomain, QueueDepths, QueuePair, RemoteQp, SendKind, SendRequest, Transport,
};

const ALL: Access = Access::all();
const BOUND: Bound = Bound::millis(50);
const SECRET: AccessKey = AccessKey::new([0x5A; 32]);

/// Two cards with two functions each.
fn machine() -> Emulated {
    machine_of(Config::default())
}

fn machine_of(config: Config) -> Emulated {
    Emulated::new(Config { arm_functions: true, heap_bytes: 1 << 20, ..config }).expect("a machine")
}

fn open(machine: &Emulated, name: &str) -> (Device, ProtectionDomain) {
    let device = machine.provider.open(name).expect("a device");
    let pd = ProtectionDomain::new(&device).expect("a domain");
    (device, pd)
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
}

fn region(pd: &ProtectionDomain, bytes: &[u8], access: Access) -> MemoryRegion {
    MemoryRegion::register(pd, HostBuffer::from_bytes(bytes).expect("memory"), access).expect("a region")
}

fn bytes(region: &MemoryRegion) -> Vec<u8> {
    let mut out = vec![0; region.len()];
    region.read(0, &mut out).expect("all of it");
    out
}

/// A connected pair: a queue pair of the first domain, with its completions, and one of the second.
fn connected(pds: [&ProtectionDomain; 2]) -> [(QueuePair, CompletionQueue); 2] {
    let depths = QueueDepths { send: 8, receive: 8 };
    let ends = pds.map(|pd| {
        let cq = CompletionQueue::new(pd.device(), 16).expect("a queue");
        let pair = QueuePair::new(pd, Transport::Rc, &cq, &cq, depths).expect("a queue pair");
        pair.init(ALL, 0).expect("INIT");
        (pair, cq)
    });
    for (own, peer) in [(0, 1), (1, 0)] {
        let device = pds[peer].device();
        let (gid, mac) = (device.port().gid, device.info().mac);
        let remote = RemoteQp { qpn: ends[peer].0.qpn(), gid, mac, first_psn: 0 };
        ends[own].0.connect(&remote, 0).expect("RTS");
    }
    ends
}

/// Posts a request and waits for its completion.
fn carry_out(end: &(QueuePair, CompletionQueue), kind: SendKind<'_>, local: LocalSlice) -> Result<(), Error> {
    end.0.post_send(&SendRequest { id: 1, kind, local: Some(local), immediate: None, signaled: true })?;
    end.1.wait(BOUND, "a request").map(drop)
}

/// Host and Arm cores of card 0, a remote host, and memory on both sides.
struct Fixture {
    machine: Emulated,
    host: ProtectionDomain,
    arm: ProtectionDomain,
    remote: MemoryRegion,
    /// Of the Arm cores of card 0, to the host of card 1.
    end: (QueuePair, CompletionQueue),
    _peer: (QueuePair, CompletionQueue),
}

impl Fixture {
    fn new() -> Self {
        let machine = machine();
        let [(_, host), (_, arm), (_, far)] = ["mlx5_0", "mlx5_0_arm", "mlx5_1"].map(|name| open(&machine, name));
        let remote = region(&far, &pattern(4096, 1), ALL);
        let [end, peer] = connected([&arm, &far]);
        Self { machine, host, arm, remote, end, _peer: peer }
    }

    /// The Arm cores have the card read remote memory into local memory.
    fn read(&self, local: LocalSlice) -> Result<(), Error> {
        let kind = SendKind::Read { remote_addr: self.remote.addr().get(), rkey: self.remote.rkey() };
        carry_out(&self.end, kind, local)
    }

    fn write(&self, local: LocalSlice) -> Result<(), Error> {
        let kind = SendKind::Write { remote_addr: self.remote.addr().get(), rkey: self.remote.rkey() };
        carry_out(&self.end, kind, local)
    }

    fn host_memory(&self, access: Access) -> MemoryRegion {
        region(&self.host, &[0xEE; 4096], access)
    }
}

/// The operation failed at the card's key check, with this vendor syndrome or another one.
fn is_key_check(result: Result<(), Error>) {
    const LOCAL_PROTECTION: u32 = 4;
    match result.expect_err("the card refuses") {
        Error::Completion { status, .. } => assert_eq!(status, LOCAL_PROTECTION),
        other => panic!("{other}"),
    }
}

/// The card refused a command with a status.
fn is_refused(result: Result<AliasKey, Error>, expected: &str) {
    match result.map(drop).expect_err("the card refuses") {
        error @ Error::Command { command: "CREATE_GENERAL_OBJECT", .. } => {
            assert!(error.to_string().contains("not revoked or destroyed it since"), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn memory_of_the_host_is_used_from_the_arm_cores_after_four_steps() {
    let fixture = Fixture::new();
    // 1 and 2: a key, marked accessible. 3: shipped as bytes. 4: the alias.
    let exported = ExportedRegion::new(fixture.host_memory(ALL), SECRET).expect("steps 1 and 2");
    let shipped = exported.export().encode();
    let export = KeyExport::decode(&shipped).expect("step 3");
    let alias = AliasKey::new(&fixture.arm, &export).expect("step 4");
    let device = fixture.host.device();
    assert_eq!((export.card, export.vhca), (device.system_image_guid().unwrap(), device.vhca_id().unwrap()));
    assert_ne!(export.vhca, fixture.arm.device().vhca_id().unwrap());
    // From the wire into host memory, and from host memory to the wire: no byte is of the Arm cores.
    fixture.read(alias.slice(0, 4096).unwrap()).expect("a read into host memory");
    assert_eq!(bytes(exported.region()), pattern(4096, 1));
    exported.region().write(0, &pattern(4096, 2)).unwrap();
    fixture.write(alias.slice(100, 3000).unwrap()).expect("a write from host memory");
    assert_eq!(bytes(&fixture.remote)[..3000], pattern(4096, 2)[100..3100]);
    assert_eq!(bytes(&fixture.remote)[3000..], pattern(4096, 1)[3000..]);
    // A peer of the Arm cores' queue pair reaches the memory by the alias, too.
    let [near, far] = connected([&fixture.arm, fixture.remote.pd()]);
    let kind = SendKind::Write { remote_addr: export.addr, rkey: alias.key() };
    fixture.remote.write(0, &[9; 8]).unwrap();
    carry_out(&far, kind, fixture.remote.slice(0, 8).unwrap()).expect("a write by a peer");
    assert_eq!(bytes(exported.region())[..9], [9, 9, 9, 9, 9, 9, 9, 9, pattern(4096, 2)[8]]);
    drop(near);
    // Ranges are checked before anything is posted.
    let outside = alias.slice(4000, 97).expect_err("97 bytes too far");
    assert!(matches!(outside, Error::RegionRange { offset: 4000, len: 97, region_len: 4096, .. }), "{outside}");
    // In the end the region is the host's again.
    drop(alias);
    let region = exported.into_region().expect("the card lets go");
    assert_eq!(region.into_buffer().expect("the buffer").as_slice().len(), 4096);
}

#[test]
fn each_step_is_needed() {
    let fixture = Fixture::new();
    // Without step 2.
    let mut exported = ExportedRegion::unmarked(fixture.host_memory(ALL), SECRET).expect("step 1");
    is_refused(AliasKey::new(&fixture.arm, &exported.export()), "status 0x3");
    // Without step 4: the key itself is of another function.
    exported.mark(SECRET).expect("step 2");
    let export = exported.export();
    is_key_check(fixture.read(LocalSlice { addr: exported.region().addr(), len: 64, lkey: export.key }));
    // With something else than was shipped in step 3.
    let other_secret = KeyExport { access_key: AccessKey::new([1; 32]), ..export };
    is_refused(AliasKey::new(&fixture.arm, &other_secret), "status 0x3");
    is_refused(AliasKey::new(&fixture.arm, &KeyExport { vhca: export.vhca + 0x80, ..export }), "status 0x3");
    is_refused(AliasKey::new(&fixture.arm, &KeyExport { key: export.key + (1 << 20), ..export }), "status 0x5");
    // The owner needs no alias, and one cannot be made of an alias.
    is_refused(AliasKey::new(&fixture.host, &export), "status 0x3");
    assert_eq!(bytes(exported.region()), [0xEE; 4096], "nothing was moved");
    AliasKey::new(&fixture.arm, &export).expect("with all four");
}

#[test]
fn a_key_of_another_card_has_no_alias() {
    let fixture = Fixture::new();
    let exported = ExportedRegion::new(fixture.host_memory(ALL), SECRET).expect("steps 1 and 2");
    let (_, elsewhere) = open(&fixture.machine, "mlx5_1_arm");
    let export = exported.export();
    match AliasKey::new(&elsewhere, &export).map(drop).expect_err("another card") {
        Error::OtherCard { exported, own } => {
            assert_eq!(exported, fixture.host.device().system_image_guid().unwrap());
            assert_eq!(own, elsewhere.device().system_image_guid().unwrap());
        }
        other => panic!("{other}"),
    }
    // Whoever claims that it is of this card does not get it, either.
    let claimed = KeyExport { card: elsewhere.device().system_image_guid().unwrap(), ..export };
    is_refused(AliasKey::new(&elsewhere, &claimed), "virtual HCA");
    assert_eq!(bytes(exported.region()), [0xEE; 4096]);
}

#[test]
fn rights_are_those_of_the_key() {
    let fixture = Fixture::new();
    // Local reads are always allowed: a write to the wire is, a read from it is not.
    let exported = ExportedRegion::new(fixture.host_memory(Access::empty()), SECRET).expect("steps 1 and 2");
    let alias = AliasKey::new(&fixture.arm, &exported.export()).expect("step 4");
    fixture.write(alias.slice(0, 16).unwrap()).expect("reading host memory");
    assert_eq!(bytes(&fixture.remote)[..16], [0xEE; 16]);
    is_key_check(fixture.read(alias.slice(0, 16).unwrap()));
    assert_eq!(bytes(exported.region()), [0xEE; 4096], "nothing was moved");
}

#[test]
fn an_alias_is_dead_when_its_key_is_deregistered() {
    let fixture = Fixture::new();
    let exported = ExportedRegion::new(fixture.host_memory(ALL), SECRET).expect("steps 1 and 2");
    let alias = AliasKey::new(&fixture.arm, &exported.export()).expect("step 4");
    let region = exported.into_region().expect("the card lets go");
    is_key_check(fixture.read(alias.slice(0, 16).unwrap()));
    is_refused(AliasKey::new(&fixture.arm, alias.export()), "status 0x5");
    assert_eq!(bytes(&region), [0xEE; 4096], "nothing was moved");
    // Nor does it come to life with the next key of the same index.
    let again = ExportedRegion::new(region, SECRET).expect("steps 1 and 2");
    let fresh = connected([&fixture.arm, fixture.remote.pd()]);
    let kind = SendKind::Read { remote_addr: fixture.remote.addr().get(), rkey: fixture.remote.rkey() };
    is_key_check(carry_out(&fresh[0], kind, alias.slice(0, 16).unwrap()));
    assert_eq!(bytes(again.region()), [0xEE; 4096], "nothing was moved");
}

#[test]
fn an_alias_is_dead_when_the_permission_is_revoked() {
    let fixture = Fixture::new();
    let mut exported = ExportedRegion::new(fixture.host_memory(ALL), SECRET).expect("steps 1 and 2");
    let alias = AliasKey::new(&fixture.arm, &exported.export()).expect("step 4");
    exported.revoke().expect("a command");
    is_key_check(fixture.read(alias.slice(0, 16).unwrap()));
    is_refused(AliasKey::new(&fixture.arm, &exported.export()), "status 0x3");
    assert_eq!(bytes(exported.region()), [0xEE; 4096], "nothing was moved");
    // Marked anew it can be used again, by who makes a new alias.
    exported.mark(AccessKey::new([3; 32])).expect("a command");
    let alias = AliasKey::new(&fixture.arm, &exported.export()).expect("step 4");
    let fresh = connected([&fixture.arm, fixture.remote.pd()]);
    let kind = SendKind::Read { remote_addr: fixture.remote.addr().get(), rkey: fixture.remote.rkey() };
    carry_out(&fresh[0], kind, alias.slice(0, 16).unwrap()).expect("alive");
    assert_eq!(bytes(exported.region())[..16], pattern(16, 1));
}

/// Control operations of each side for one registration by the four steps.
#[test]
fn the_four_steps_cost_control_operations_on_both_sides() {
    let fixture = Fixture::new();
    let count = |id| fixture.machine.machine.with(|world| world.command_count(id)).expect("a count");
    let counts = || [FunctionId::host(0), FunctionId::arm(0)].map(count);
    let region = fixture.host_memory(ALL);
    let before = counts();
    let exported = ExportedRegion::new(region, SECRET).expect("steps 1 and 2");
    let alias = AliasKey::new(&fixture.arm, &exported.export()).expect("step 4");
    let after = counts();
    // The host asks for its virtual HCA, registers memory, makes a key and marks it; the Arm cores make the alias.
    assert_eq!([after[0] - before[0], after[1] - before[1]], [4, 1]);
    drop((alias, exported));
    let end = counts();
    assert_eq!([end[0] - after[0], end[1] - after[1]], [3, 1], "key, memory and region; the alias");
}

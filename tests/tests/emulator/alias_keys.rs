//! Memory keys across the two functions of an emulated card: a program on the Arm cores reads and writes memory of the
//! host.

use emu_machine::{Config, FunctionId};
use emu_provider::Emulated;
use flexio::{
    Access, AccessKey, AliasKey, AliasPool, AliasQueue, BindingPool, Bound, BoundAlias, CompletionQueue, Connection,
    Device, Error, ExportedRegion, Grant, HostBuffer, KeyExport, LocalSlice, MemoryRegion, ProtectionDomain,
    QueueDepths, QueuePair, Released, RemoteQp, SendKind, SendRequest, Transport,
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
        let pair = QueuePair::builder(pd, Transport::Rc, depths).build(&cq, &cq).expect("a queue pair");
        pair.init(ALL, 0).expect("INIT");
        (pair, cq)
    });
    for (own, peer) in [(0, 1), (1, 0)] {
        let device = pds[peer].device();
        let (gid, mac) = (device.port().gid, device.info().mac);
        let remote = RemoteQp { qpn: ends[peer].0.qpn(), gid, mac, first_psn: 0 };
        ends[own].0.connect(&Connection::to(remote)).expect("RTS");
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
        Self::on(machine())
    }

    fn on(machine: Emulated) -> Self {
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
    fixture.host.device().vhca_id().expect("asked for once");
    let before = counts();
    let exported = ExportedRegion::new(region, SECRET).expect("steps 1 and 2");
    let alias = AliasKey::new(&fixture.arm, &exported.export()).expect("step 4");
    let after = counts();
    // The host registers memory for a key, makes that and marks it; the Arm cores make the alias.
    assert_eq!([after[0] - before[0], after[1] - before[1]], [3, 1]);
    drop((alias, exported));
    let end = counts();
    assert_eq!([end[0] - after[0], end[1] - after[1]], [3, 1], "key, memory and region; the alias");
}

/// A pool of keys of the host, their aliases at the Arm cores, and a queue of the Arm cores to a remote host.
struct Pools {
    fixture: Fixture,
    pool: BindingPool,
    aliases: AliasPool,
    queue: AliasQueue,
    _peer: (QueuePair, CompletionQueue),
}

impl Pools {
    fn new(keys: u16) -> Self {
        Self::of(Fixture::new(), keys)
    }

    fn of(fixture: Fixture, keys: u16) -> Self {
        let (pool, exports) = BindingPool::new(&fixture.host, keys, SECRET).expect("a pool");
        let shipped: Vec<_> =
            exports.iter().map(|export| KeyExport::decode(&export.encode()).expect("shipped")).collect();
        let aliases = AliasPool::new(&fixture.arm, &shipped).expect("aliases");
        let queue = AliasQueue::new(&fixture.arm, 8).expect("a queue pair");
        let far = fixture.remote.pd().device();
        let cq = CompletionQueue::new(far, 4).expect("a queue");
        let depths = QueueDepths { send: 1, receive: 1 };
        let peer =
            QueuePair::builder(fixture.remote.pd(), Transport::Rc, depths).build(&cq, &cq).expect("a queue pair");
        peer.init(ALL, 0).expect("INIT");
        let end = |device: &Device, qpn| RemoteQp { qpn, gid: device.port().gid, mac: device.info().mac, first_psn: 0 };
        peer.connect(&Connection::to(end(fixture.arm.device(), queue.qpn()))).expect("RTS");
        queue.connect(&Connection::to(end(far, peer.qpn())), ALL).expect("RTS");
        Self { fixture, pool, aliases, queue, _peer: (peer, cq) }
    }

    fn post(&self, id: u64, alias: &BoundAlias, offset: u64, len: u32) {
        let remote = &self.fixture.remote;
        let kind = SendKind::Read { remote_addr: remote.addr().get(), rkey: remote.rkey() };
        self.queue.post(id, kind, alias, offset, len).expect("posted");
    }

    /// Waits for the completions of all requests in flight, `count` of them; the id of the last.
    fn completions(&self, count: usize) -> Result<u64, Error> {
        let mut all = Vec::new();
        self.fixture.machine.provider.wait(BOUND, "requests", || {
            all.extend(self.queue.poll()?);
            Ok((all.len() == count).then_some(()))
        })?;
        all.iter().try_for_each(|completion| self.queue.check(completion, "a request"))?;
        Ok(all[count - 1].id)
    }

    fn completion(&self) -> Result<u64, Error> {
        self.completions(1)
    }

    fn bind(&self, region: MemoryRegion) -> (flexio::Binding, BoundAlias) {
        let (binding, grant) = self.pool.bind(region, BOUND).map_err(Error::from).expect("a free key");
        let grant = Grant::decode(&grant.encode()).expect("shipped");
        (binding, self.aliases.accept(grant).expect("new"))
    }

    fn counts(&self) -> [u64; 2] {
        let count = |id| self.fixture.machine.machine.with(|world| world.command_count(id)).expect("a count");
        [FunctionId::host(0), FunctionId::arm(0)].map(count)
    }
}

fn release(alias: BoundAlias) -> Released {
    let released = alias.release().expect("nothing is in flight");
    Released::decode(&released.encode()).expect("shipped")
}

#[test]
fn bound_keys_cost_the_arm_cores_no_control_operation() {
    let pools = Pools::new(2);
    let before = pools.counts();
    for turn in 0..10 {
        let sent = pattern(4096, turn);
        pools.fixture.remote.write(0, &sent).unwrap();
        let registered = pools.counts()[0];
        let (binding, alias) = pools.bind(pools.fixture.host_memory(ALL));
        assert_eq!(pools.counts()[0] - registered, 1, "the host registers the region, and no more");
        assert_eq!((alias.len(), usize::from(alias.slot()) < 2), (4096, true));
        pools.post(7, &alias, 96, 4000);
        assert_eq!(pools.completion().expect("a read into host memory"), 7);
        let region = binding.release(release(alias), BOUND).map_err(Error::from).expect("released");
        assert_eq!(bytes(&region)[96..], sent[..4000], "turn {turn}");
        assert_eq!(bytes(&region)[..96], [0xEE; 96]);
        assert_eq!(pools.pool.free(), 2);
    }
    let after = pools.counts();
    assert_eq!(
        [after[0] - before[0], after[1] - before[1]],
        [20, 0],
        "regions made and ended; nothing at the Arm cores"
    );
}

#[test]
fn a_key_is_not_bound_again_while_requests_use_it() {
    let pools = Pools::new(1);
    let (binding, alias) = pools.bind(pools.fixture.host_memory(ALL));
    pools.post(2, &alias, 0, 4096);
    assert_eq!(alias.in_flight(), 1);
    let id_in_use = pools.queue.post(2, SendKind::Send, &alias, 0, 1).expect_err("the same id");
    assert!(id_in_use.to_string().contains("id of a work request is 2"), "{id_in_use}");
    let alias = alias.release().expect_err("a request uses it");
    pools.completion().expect("the first");
    for id in 0..4 {
        pools.post(id, &alias, 16 * id, 100);
    }
    assert_eq!(alias.in_flight(), 4);
    let alias = alias.release().expect_err("four requests use it");
    // Without what the Arm cores release, the host cannot take the binding back: another binding's does not do.
    let other = Pools::new(1);
    let (_other_binding, other_alias) = other.bind(other.fixture.host_memory(ALL));
    let mut bytes_of_other = release(other_alias).encode();
    bytes_of_other[8] = 9;
    let (binding, error) = binding
        .release(Released::decode(&bytes_of_other).unwrap(), BOUND)
        .map(drop)
        .expect_err("another binding")
        .into_parts();
    assert!(matches!(error, Error::BindingMismatch { slot: 0, found: 9, expected: 1, .. }), "{error}");
    // And there is no other key.
    let (region, error) =
        pools.pool.bind(pools.fixture.host_memory(ALL), BOUND).map(drop).expect_err("all are bound").into_parts();
    assert_eq!(
        error.to_string(),
        "all 1 keys of the pool are bound, 0 of them for good: release a binding, or make a pool of more keys"
    );
    pools.completions(4).expect("the four");
    binding.release(release(alias), BOUND).map_err(Error::from).expect("released");
    // Now it is bound to the region that came back, and its number is another one.
    let (binding, grant) = pools.pool.bind(region, BOUND).map_err(Error::from).expect("free");
    let twice = grant.encode();
    let alias = pools.aliases.accept(Grant::decode(&twice).unwrap()).expect("new");
    let again = pools.aliases.accept(Grant::decode(&twice).unwrap()).expect_err("accepted before");
    assert!(matches!(again, Error::BindingMismatch { slot: 0, found: 2, expected: 3, .. }), "{again}");
    let mut elsewhere = twice;
    elsewhere[4] = 1;
    let unknown = pools.aliases.accept(Grant::decode(&elsewhere).unwrap()).expect_err("no such key");
    assert_eq!(
        unknown.to_string(),
        "place of a key in its pool is 1: must be below 1, the keys of the pool, and have an alias"
    );
    pools.post(1, &alias, 0, 64);
    pools.completion().expect("a read");
    assert_eq!(bytes(binding.region())[..64], pattern(64, 1));
}

/// Grants and releases that nobody has sent: numbers are compared, and the card refuses what is not bound.
#[test]
fn grants_and_releases_that_are_made_up_open_no_memory() {
    let pools = Pools::new(1);
    let made_up = pools.aliases.accept(Grant::received(0, 5, 4096)).expect("nothing is known of the key");
    pools.post(1, &made_up, 0, 64);
    pools.completion().expect_err("the owner has bound the key to nothing");

    let pools = Pools::new(1);
    let (binding, alias) = pools.bind(pools.fixture.host_memory(ALL));
    let mismatch = pools.aliases.accept(Grant::received(0, 1, 4096)).expect_err("accepted before");
    assert!(matches!(mismatch, Error::BindingMismatch { slot: 0, found: 1, expected: 2, .. }), "{mismatch}");
    let refused = binding.release(Released::received(0, 2), BOUND).map(drop).expect_err("another binding");
    let (binding, error) = refused.into_parts();
    assert!(matches!(error, Error::BindingMismatch { slot: 0, found: 2, expected: 1, .. }), "{error}");
    // The other function has released nothing: it still has the alias, which now stands for nothing.
    let released = Released::received(binding.slot(), binding.number());
    let region = binding.release(released, BOUND).map_err(Error::from).expect("it is of this binding");
    pools.post(2, &alias, 0, 64);
    pools.completion().expect_err("the key is free");
    assert_eq!(bytes(&region), [0xEE; 4096], "nothing was written");
}

#[test]
fn a_binding_that_is_dropped_ends_every_access_and_costs_its_key() {
    let pools = Pools::new(2);
    let (binding, alias) = pools.bind(pools.fixture.host_memory(ALL));
    drop(binding);
    pools.post(1, &alias, 0, 64);
    is_key_check(pools.completion().map(drop));
    assert_eq!((pools.pool.keys(), pools.pool.free()), (2, 1));
    assert_eq!(alias.in_flight(), 0, "a request that failed is over");
    let (_binding, _alias) = pools.bind(pools.fixture.host_memory(ALL));
    let refused = pools.pool.bind(pools.fixture.host_memory(ALL), BOUND).map(drop).expect_err("none is left");
    let error = refused.error();
    assert!(matches!(error, Error::NoFreeKey { keys: 2, retired: 1 }), "{error}");
}

#[test]
fn rights_of_a_bound_key_are_those_of_its_region() {
    let pools = Pools::new(1);
    let (binding, alias) = pools.bind(pools.fixture.host_memory(Access::empty()));
    let outside = pools.queue.post(1, SendKind::Send, &alias, 4090, 7).expect_err("one byte too far");
    assert!(matches!(outside, Error::RegionRange { offset: 4090, len: 7, region_len: 4096, .. }), "{outside}");
    pools.post(1, &alias, 0, 64);
    is_key_check(pools.completion().map(drop));
    assert_eq!(bytes(binding.region()), [0xEE; 4096], "nothing was moved");
    // A pool is for one domain, and has keys.
    let (_, elsewhere) = open(&pools.fixture.machine, "mlx5_0");
    let foreign =
        pools.pool.bind(region(&elsewhere, &[0; 8], ALL), BOUND).map(drop).expect_err("another domain").into_parts().1;
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    for keys in [0, flexio::MAX_POOL_KEYS + 1] {
        let refused = BindingPool::new(&pools.fixture.host, keys, SECRET).map(drop).expect_err("not a pool");
        assert!(refused.to_string().starts_with(&format!("keys of a pool is {keys}: must be 1 to 4096")), "{refused}");
    }
}

/// The virtual time that one registration takes by each of the ways, where a control operation takes 10 us: a figure
/// chosen, since nobody has published what a card takes. Times of work requests are those of model uncalibrated-1.
#[test]
fn binding_a_key_takes_less_time_than_the_four_steps() {
    const COMMAND_PS: u64 = 10_000_000;
    let fixture = Fixture::on(machine_of(Config { command_ps: COMMAND_PS, ..Config::default() }));
    let pools = Pools::of(fixture, 1);
    let provider = &pools.fixture.machine.provider;
    let timed = |act: &mut dyn FnMut()| {
        let start = provider.relax().now_ps();
        act();
        provider.relax().now_ps() - start
    };
    pools.fixture.host.device().vhca_id().expect("asked for once");
    let (mut exported, mut alias) = (None, None);
    let four_steps_ps = timed(&mut || {
        let region = pools.fixture.host_memory(ALL);
        let owner = ExportedRegion::new(region, SECRET).expect("steps 1 and 2");
        alias = Some(AliasKey::new(&pools.fixture.arm, &owner.export()).expect("step 4"));
        exported = Some(owner);
    });
    let mut bound = None;
    let binding_ps = timed(&mut || bound = Some(pools.bind(pools.fixture.host_memory(ALL))));
    // The region's registration, which both have; then four operations in a row, or one work request.
    assert_eq!((four_steps_ps, binding_ps), (COMMAND_PS + 4 * COMMAND_PS, COMMAND_PS + 750_000));
}

/// Transfers between host memory, Arm memory and the wire are no races, and are watched as others are.
#[test]
fn transfers_of_both_functions_are_watched_for_races() {
    let fixture = Fixture::on(machine_of(Config { detect_races: true, ..Config::default() }));
    let exported = ExportedRegion::new(fixture.host_memory(ALL), SECRET).expect("steps 1 and 2");
    let alias = AliasKey::new(&fixture.arm, &exported.export()).expect("step 4");
    let own = region(&fixture.arm, &[0; 4096], ALL);
    fixture.read(alias.slice(0, 4096).unwrap()).expect("a read into host memory");
    fixture.read(own.slice(0, 4096).unwrap()).expect("a read into Arm memory");
    fixture.write(own.slice(0, 4096).unwrap()).expect("a write from Arm memory");
    assert_eq!((bytes(exported.region()), bytes(&own)), (pattern(4096, 1), pattern(4096, 1)));
    let races = fixture.machine.machine.with(|world| (world.race_count(), world.take_races()));
    assert_eq!(races.0, 0, "{:?}", races.1);
}

/// What the card reads from and writes to memory of the Arm cores for a transfer through an alias is work queue entries
/// and completions alone.
#[test]
fn no_payload_crosses_memory_of_the_arm_cores() {
    let fixture = Fixture::new();
    let exported = ExportedRegion::new(fixture.host_memory(ALL), SECRET).expect("steps 1 and 2");
    let alias = AliasKey::new(&fixture.arm, &exported.export()).expect("step 4");
    let traffic = || fixture.machine.machine.with(|world| world.arm_traffic(0)).expect("a count");
    let moved = |act: &dyn Fn()| {
        let before = traffic();
        act();
        let after = traffic();
        (after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes)
    };
    let by_alias = moved(&|| {
        fixture.read(alias.slice(0, 4096).unwrap()).expect("a read into host memory");
        fixture.write(alias.slice(0, 4096).unwrap()).expect("a write from host memory");
    });
    let own = region(&fixture.arm, &[0; 4096], ALL);
    let by_own = moved(&|| {
        fixture.read(own.slice(0, 4096).unwrap()).expect("a read into Arm memory");
        fixture.write(own.slice(0, 4096).unwrap()).expect("a write from Arm memory");
    });
    // Staged through Arm memory each payload byte is written there once, and read once.
    assert_eq!((by_own.0 - by_alias.0, by_own.1 - by_alias.1), (4096, 4096));
    // Two entries and two completions of 64 bytes each.
    assert_eq!(by_alias, (128, 128));
}

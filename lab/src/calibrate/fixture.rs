//! Image `calibration` on an emulated card: its threads, what they share, and their results.

use std::mem::{offset_of, size_of};

use emu_machine::timing::Parameters;
use emu_machine::{Config, DrivenFrom, Wiring, with_world};
use flexcast_abi::calibration::{Kernel, KernelContext, KernelResult, PREPARE, START, next_line};
use flexcast_abi::{
    ABI_HASH, ABI_VERSION, Activation, CompletionQueueMemory, DeviceAddress, Layout as _, MeasuredMemory, Queue,
    Shared, TableMemory,
};
use flexio::{
    AbiExpectation, Access, Affinity, Application, Bound, Device, DeviceBuffer, DpaCompletionQueue, EventHandler,
    HostBuffer, MemoryRegion, Outbox, Process, ProtectionDomain, Provider, Window,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::CalibrateError;
use crate::tput::run::ImageFile;
use crate::tput::run::bring_up;

/// First execution unit of multi-threaded runs: that of a core that is whole, since unit 0 of the first is the
/// system's.
pub(super) const FIRST_UNIT: u32 = 16;
/// One thread of each whole core in turn.
pub(super) const fn spread(thread: u32) -> u32 {
    const CORES: u32 = 15;
    FIRST_UNIT + thread % CORES * 16 + thread / CORES
}

/// One core after the other.
pub(super) const fn compact(thread: u32) -> u32 {
    FIRST_UNIT + thread
}

/// Longest run of a kernel of loads and stores.
const KERNEL_BOUND: Bound = Bound::millis(20_000).with_polls(500_000_000);

/// Words of one line.
pub(super) const LINE_BYTES: u64 = 64;

/// A machine of `cards` cards with these parameters, driven from their servers: a cable between two, a switch between
/// more.
pub(super) fn provider(parameters: &Parameters, cards: usize) -> Result<Provider, CalibrateError> {
    let config = match cards {
        0..=2 => Config { wiring: Wiring::default(), ..Config::default() },
        _ => emu_config::Machine::default().config_of(cards)?,
    };
    Ok(emu_provider::emulated(Config { timing: Some(parameters.clone()), ..config })?)
}

/// Opens the cards in their order.
pub(super) fn devices(provider: &Provider) -> Result<Vec<Device>, CalibrateError> {
    let names = provider.devices()?;
    Ok(names.iter().map(|info| provider.open(&info.name)).collect::<Result<_, _>>()?)
}

/// What every kernel has.
pub(super) struct Fixture<'a> {
    pub(super) process: &'a Process,
    pub(super) outbox: &'a Outbox,
    window: &'a Window,
    barrier: &'a DeviceBuffer,
    /// Results first, then what a kernel wants of the host.
    pub(super) shared: &'a MemoryRegion,
    threads: usize,
}

/// Loads the image on a card with `host_bytes` bytes of host memory behind the window, and calls `body`.
pub(super) fn with_bench<R>(
    device: &Device,
    image: &ImageFile,
    threads: usize,
    host_bytes: u64,
    body: impl FnOnce(&Fixture<'_>) -> Result<R, CalibrateError>,
) -> Result<R, CalibrateError> {
    let provider = device.provider();
    let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
    let application = Application::load(provider, &image.name, &image.elf, Some(abi))?;
    let pd = ProtectionDomain::new(device)?;
    let bytes = Fixture::host_offset(threads) + host_bytes as usize;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let shared = MemoryRegion::register(&pd, HostBuffer::zeroed(bytes)?, access)?;
    let process = Process::new(&application, &pd)?;
    bring_up(&process)?;
    let window = Window::new(&process)?;
    let outbox = Outbox::new(&process)?;
    let barrier = DeviceBuffer::zeroed(&process, LINE_BYTES)?;
    let fixture =
        Fixture { process: &process, outbox: &outbox, window: &window, barrier: &barrier, shared: &shared, threads };
    body(&fixture)
}

impl<'a> Fixture<'a> {
    /// Where the kernel's host memory begins in `shared`.
    pub(super) fn host_offset(threads: usize) -> usize {
        threads * size_of::<KernelResult>()
    }

    /// Address of the kernel's host memory.
    pub(super) fn host(&self) -> u64 {
        self.shared.addr().get() + Self::host_offset(self.threads) as u64
    }

    /// A context with what all kernels have.
    pub(super) fn context(&self, thread: usize) -> KernelContext {
        KernelContext {
            layout_hash: KernelContext::HASH,
            threads: self.threads as u32,
            outbox_id: self.outbox.id(),
            window_id: self.window.id(),
            window_mkey: self.shared.lkey(),
            barrier: Shared::new(DeviceAddress::new(self.barrier.addr().get())),
            result_host: self.shared.addr().get() + (thread * size_of::<KernelResult>()) as u64,
            ..Default::default()
        }
    }

    /// One context and one handler of `entry` for each thread, at the units that `unit_of` names.
    pub(super) fn slots(
        &self,
        entry: &str,
        unit_of: impl Fn(u32) -> u32,
    ) -> Result<(Vec<DeviceBuffer>, Vec<EventHandler>), CalibrateError> {
        let (mut contexts, mut handlers) = (Vec::new(), Vec::new());
        for thread in 0..self.threads {
            let context = DeviceBuffer::zeroed(self.process, size_of::<KernelContext>() as u64)?;
            let unit = Affinity::Unit(unit_of(thread as u32));
            handlers.push(EventHandler::new(self.process, entry, context.addr().get(), unit)?);
            contexts.push(context);
        }
        Ok((contexts, handlers))
    }

    /// Writes a context and has the image prepare it.
    pub(super) fn prepare(
        &self,
        kernel: &str,
        thread: usize,
        buffer: &DeviceBuffer,
        context: &KernelContext,
    ) -> Result<(), CalibrateError> {
        let context = buffer.write_context(0, context)?;
        self.process.call(&PREPARE, context)?.map_err(|refusal| {
            let (kernel, code) = (kernel.to_owned(), refusal.code.into());
            CalibrateError::Context { kernel, thread, code }
        })
    }

    /// Lets all threads run, by one call.
    pub(super) fn start(&self, handlers: &[EventHandler], contexts: &[DeviceBuffer]) -> Result<(), CalibrateError> {
        let mut ids = Vec::new();
        for (handler, buffer) in handlers.iter().zip(contexts) {
            handler.run(buffer.addr().get())?;
            ids.push(u64::from(handler.id()));
        }
        let table = DeviceBuffer::from_bytes(self.process, ids.as_bytes())?;
        let activation_ids = TableMemory::new(DeviceAddress::new(table.addr().get()), ids.len() as u32);
        let list = KernelContext { activation_ids, ..self.context(0) };
        let list = DeviceBuffer::from_bytes(self.process, list.as_bytes())?;
        match self.process.call(&START, list.context_at(0)?)? {
            Activation::Woken => Ok(()),
            refused @ Activation::Refused => {
                Err(CalibrateError::Context { kernel: "start".to_owned(), thread: 0, code: refused as u64 })
            }
        }
    }

    /// A thread's result, once it has one.
    pub(super) fn result(&self, thread: usize) -> Result<Option<KernelResult>, CalibrateError> {
        let at = thread * size_of::<KernelResult>();
        if self.shared.read_u64(at + offset_of!(KernelResult, done))? == 0 {
            return Ok(None);
        }
        let mut raw = [0; size_of::<KernelResult>()];
        self.shared.read(at, &mut raw)?;
        Ok(KernelResult::read_from_bytes(&raw).ok())
    }

    /// The results of all threads, for which it waits.
    pub(super) fn results(&self, kernel: &str) -> Result<Vec<KernelResult>, CalibrateError> {
        let mut results = Vec::new();
        for thread in 0..self.threads {
            let mut polls = 0u32;
            let what = format!("thread {thread} of kernel {kernel} to end");
            self.process.device().provider().wait(KERNEL_BOUND, &what, || {
                polls = polls.wrapping_add(1);
                if polls.is_multiple_of(4096) {
                    self.process.check()?;
                }
                let done = self.shared.read_u64(thread * size_of::<KernelResult>() + offset_of!(KernelResult, done))?;
                Ok((done != 0).then_some(()))
            })?;
            results.extend(self.result(thread)?);
        }
        check(kernel, &results)?;
        Ok(results)
    }
}

/// An error if a kernel met what it must not.
pub(super) fn check(kernel: &str, results: &[KernelResult]) -> Result<(), CalibrateError> {
    match results.iter().map(|result| result.errors).sum() {
        0 => Ok(()),
        errors => Err(CalibrateError::Kernel { kernel: kernel.to_owned(), errors }),
    }
}

/// What the calling thread's machine has dropped.
pub(super) fn lost() -> Result<String, CalibrateError> {
    Ok(with_world(|world| {
        let network = world.network().map(|network| {
            let totals = network.totals();
            format!("switches {:?}, hosts {:?}, ", totals.switches.drops, totals.hosts.drops)
        });
        format!("{}card 0 {:?}", network.unwrap_or_default(), world.card(0).map(|card| card.nic.counters()))
    })?)
}

/// Nanoseconds from the first beginning to the last end.
pub(super) fn span_ns(results: &[KernelResult]) -> u64 {
    let begin = results.iter().map(|result| result.begin_ns).min().unwrap_or(0);
    let end = results.iter().map(|result| result.end_ns).max().unwrap_or(0);
    (end - begin).max(1)
}

/// A completion queue as the firmware is given it.
pub(super) fn cq_memory(cq: &DpaCompletionQueue) -> CompletionQueueMemory {
    let (ring, record) = (DeviceAddress::new(cq.ring().get()), DeviceAddress::new(cq.doorbell_record().get()));
    Queue::new(ring, record, cq.number(), u32::from(cq.log_depth()))
}

/// A run of loads or stores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) kernel: Kernel,
    pub(super) threads: u32,
    pub(super) first_unit: u32,
    /// Whose memory is the host's for the kernel.
    pub(super) driven_from: DrivenFrom,
    /// DPA memory and host memory: of each thread, but of all together for the chain.
    pub(super) memory_bytes: u64,
    pub(super) host_bytes: u64,
    pub(super) count: u64,
}

/// Runs a kernel of loads and stores on a new machine; a result for each thread.
pub(super) fn measure(
    image: &ImageFile,
    parameters: &Parameters,
    probe: &Probe,
) -> Result<Vec<KernelResult>, CalibrateError> {
    let config = Config { timing: Some(parameters.clone()), driven_from: probe.driven_from, ..Config::default() };
    let provider = emu_provider::emulated(config)?;
    let cards = devices(&provider)?;
    let threads = probe.threads as usize;
    let shares = if probe.kernel == Kernel::Chain { 1 } else { u64::from(probe.threads) };
    with_bench(&cards[0], image, threads, probe.host_bytes * shares, |fixture| {
        let memory = DeviceBuffer::zeroed(fixture.process, probe.memory_bytes * shares)?;
        let (contexts, handlers) = fixture.slots("measure", |thread| probe.first_unit + thread)?;
        let name = format!("{:?}", probe.kernel);
        // Threads begin at equal distances on the ring: a line comes again only after all others have, and is in no
        // cache by then.
        let (lines, mut start_line) = ((probe.memory_bytes / LINE_BYTES).max(1), 0);
        for (thread, buffer) in contexts.iter().enumerate() {
            let own = if shares == 1 { 0 } else { thread as u64 };
            let own_lines = probe.memory_bytes / LINE_BYTES / u64::from(probe.threads);
            let first_line = thread as u64 * own_lines;
            // The last one takes what division has left.
            let rest = probe.memory_bytes / LINE_BYTES - own_lines * u64::from(probe.threads);
            let context = KernelContext {
                kernel: probe.kernel as u32,
                memory: MeasuredMemory::new(
                    DeviceAddress::new(memory.addr().get() + own * probe.memory_bytes),
                    (probe.memory_bytes / LINE_BYTES) as u32,
                ),
                host: fixture.host() + own * probe.host_bytes,
                host_bytes: probe.host_bytes,
                first_line,
                start_line,
                own_lines: own_lines + if thread + 1 == threads { rest } else { 0 },
                count: probe.count,
                ..fixture.context(thread)
            };
            fixture.prepare(&name, thread, buffer, &context)?;
            start_line = (0..own_lines).fold(start_line, |line, _| next_line(line, lines));
        }
        fixture.start(&handlers, &contexts)?;
        fixture.results(&name)
    })
}

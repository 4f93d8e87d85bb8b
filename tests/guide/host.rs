//! Host program of image `sum`.

use std::error::Error;
use std::mem::offset_of;

use flexcast_abi::{ABI_HASH, ABI_VERSION};
use flexio::{
    AbiExpectation, Access, Application, Bound, ContextAddress, DeviceBuffer, HostBuffer, MemoryRegion, Process,
    ProtectionDomain, Provider, Rpc, Window,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::shared::{Answer, Job};

/// 0, or 1 for memory that the firmware does not reach.
const SUM: Rpc<ContextAddress<Job>, u64> = Rpc::new("sum");

/// Has the card add up the numbers.
pub(crate) fn sum(provider: &Provider, elf: &[u8], numbers: &[u64]) -> Result<Answer, Box<dyn Error>> {
    let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
    let application = Application::load(provider, "sum", elf, Some(abi))?;
    // An image that was built from another `Job` is refused here.
    application.expect_rpc(&SUM)?;
    let device = provider.open("mlx5_0")?;
    let pd = ProtectionDomain::new(&device)?;
    let process = Process::new(&application, &pd)?;

    // Memory that the firmware reaches through its window: the answer, then the numbers.
    let numbers_at = size_of::<Answer>();
    let memory = HostBuffer::zeroed(numbers_at + size_of_val(numbers))?;
    let memory = MemoryRegion::register(&pd, memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    memory.write(numbers_at, numbers.as_bytes())?;
    let window = Window::new(&process)?;
    let job = Job {
        window_id: window.id(),
        window_mkey: memory.lkey(),
        numbers: memory.addr().get() + numbers_at as u64,
        count: numbers.len() as u64,
        answer: memory.addr().get(),
    };

    // The argument of an RPC lies in DPA memory.
    let argument = DeviceBuffer::from_bytes(&process, job.as_bytes())?;
    match process.call(&SUM, argument.context_at(0)?)? {
        0 => {}
        code => return Err(format!("the firmware refused the job: {code}").into()),
    }
    // A call may return before the last stores through the window are there.
    let done = || Ok((memory.read_u64(offset_of!(Answer, done))? == 1).then_some(()));
    provider.wait(Bound::millis(10), "the answer", done)?;
    let mut answer = [0; size_of::<Answer>()];
    memory.read(0, &mut answer)?;
    Ok(Answer::read_from_bytes(&answer).map_err(|_| "not the size of an answer")?)
}

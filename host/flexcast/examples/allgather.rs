//! An Allgather and a Broadcast among the processes of a job, each with a card.
//!
//! `cargo xtask example allgather --ranks 4` starts four of these on emulated cards. On real ones: one process per
//! card, with `FLEXCAST_RANK`, `FLEXCAST_SIZE` and `FLEXCAST_STORE` (`host:port`, where rank 0 listens) set, and the
//! path of the image as argument:
//!
//! ```console
//! $ FLEXCAST_RANK=0 FLEXCAST_SIZE=4 FLEXCAST_STORE=node0:4711 allgather allgather.elf
//! ```
//!
//! `FLEXCAST_DEVICE` names the card (the first one if it is not set), `EXAMPLE_BYTES` what each rank contributes.

use std::error::Error;
use std::process::ExitCode;

use flexcast::bootstrap::TcpStore;
use flexcast::{Communicator, Config, Done, Endpoint, Failed, Firmware, Request, Test};
use flexio::Provider;

/// What each rank contributes if nothing else is said: some chunks and a part of one.
const BYTES: usize = 100_003;

fn main() -> ExitCode {
    match run() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            // Errors of the library name the value, the limit and the next step.
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Byte `at` of what rank `rank` contributes: any rank can compute what it must have got from the others.
fn byte(rank: usize, at: usize) -> u8 {
    (at * 7 + at / 251 + rank * 31 + 1) as u8
}

fn contribution(rank: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| byte(rank, at)).collect()
}

fn run() -> Result<String, Box<dyn Error>> {
    let image = std::env::args().nth(1).ok_or("usage: allgather ALLGATHER.elf; `cargo xtask build` makes the image")?;
    let elf =
        std::fs::read(&image).map_err(|error| format!("{image}: {error}; `cargo xtask build` makes the images"))?;
    let bytes = std::env::var("EXAMPLE_BYTES").map_or(Ok(BYTES), |text| text.parse())?;

    // 1. The vendor's libraries, wherever the dynamic loader finds them. The emulator offers the same ones.
    let provider = Provider::system()?;
    let device = match std::env::var("FLEXCAST_DEVICE") {
        Ok(name) => name,
        Err(_) => provider.devices()?.first().ok_or("no card here")?.name.clone(),
    };

    // 2. The card, with the firmware on its DPA. Everything that is made from it keeps it.
    let endpoint = Endpoint::open(&provider, &device, Firmware { name: &image, elf: &elf })?;

    // 3. The other ranks. MPI_Allgather does as well: see `bootstrap::CallbackExchange`.
    let mut store = TcpStore::from_env()?;

    // 4. A communicator, with times that suit the card: for emulated ones they are longer. FLEXCAST_CONTROL may ask
    //    for another control than the host's.
    let communicator =
        Communicator::create(&endpoint, &mut store, Config::for_endpoint(&endpoint).with_environment()?)?;
    let (rank, size) = (communicator.rank() as usize, communicator.size() as usize);

    // 5. An Allgather. The buffers are moved into the operation: nobody can touch or free them while the card uses
    //    them.
    let mut send = endpoint.buffer(bytes)?;
    send.write(0, &contribution(rank, bytes))?;
    let receive = endpoint.buffer(bytes * size)?;
    let request = communicator.allgather(send, receive)?;
    let done = wait(request)?;
    let gathered = done.receive.to_vec()?;
    for (from, block) in gathered.chunks(bytes.max(1)).enumerate() {
        if block != contribution(from, bytes) {
            return Err(format!("rank {rank}: the block of rank {from} is not what it sent").into());
        }
    }
    let recovered = done.report.recovered_chunks;

    // 6. A Broadcast from the last rank: one buffer, read there and written elsewhere.
    let root = size - 1;
    let mut buffer = endpoint.buffer(bytes)?;
    if rank == root {
        buffer.write(0, &contribution(size, bytes))?;
    }
    let request = communicator.broadcast(buffer, root as u32)?;
    let done = request.wait()?;
    if done.receive.to_vec()? != contribution(size, bytes) {
        return Err(format!("rank {rank}: the broadcast is not what rank {root} sent").into());
    }
    Ok(format!(
        "rank {rank} of {size}: allgather of {bytes} bytes per rank and broadcast from rank {root} equal; recovered \
         chunks: {recovered} + {}",
        done.report.recovered_chunks
    ))
}

/// What an application does: compute, and test now and then. `Request::wait` does it without computing.
fn wait(mut request: Request) -> Result<Done, Box<Failed>> {
    loop {
        match request.test()? {
            Test::Done(done) => return Ok(done),
            Test::Pending(pending) => request = pending,
        }
        // The application's own work goes here. The card receives, copies and sends without it.
        std::thread::yield_now();
    }
}

//! Connections of all ranks to rank 0, for barriers and results.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};

use super::BoundError;

/// Longest wait for another rank.
const LIMIT: Duration = Duration::from_secs(60);
/// How often a rank knocks until rank 0 is there.
const AGAIN: Duration = Duration::from_millis(5);

/// The place among the ranks, and the connections.
pub(super) struct Peers {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    /// Of rank 0, those to the others by their rank, from 1; of others, that to rank 0.
    links: Vec<TcpStream>,
}

impl Peers {
    /// Joins by the variables of torchrun.
    pub(super) fn join() -> Result<Self, BoundError> {
        let text = |name| std::env::var(name).map_err(|error| BoundError::Variable { name, reason: error.to_string() });
        let number = |name| {
            let wrong = |error: std::num::ParseIntError| BoundError::Variable { name, reason: error.to_string() };
            text(name)?.parse::<u16>().map_err(wrong)
        };
        let (rank, ranks) = (number("RANK")?.into(), number("WORLD_SIZE")?.into());
        let (address, port) = (text("MASTER_ADDR")?, number("MASTER_PORT")?);
        if rank >= ranks {
            return Err(BoundError::Variable { name: "RANK", reason: format!("{rank} of {ranks} ranks") });
        }
        let links = if rank == 0 { Self::accept(&address, port, ranks) } else { Self::connect(&address, port, rank) };
        let links = links.map_err(|source| BoundError::Io { rank, what: "connection to rank 0", source })?;
        Ok(Self { rank, ranks, links })
    }

    fn accept(address: &str, port: u16, ranks: usize) -> io::Result<Vec<TcpStream>> {
        let listener = TcpListener::bind((address, port))?;
        listener.set_nonblocking(true)?;
        let started = Instant::now();
        let mut links: Vec<(usize, TcpStream)> = Vec::new();
        while links.len() + 1 < ranks {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    let mut stream = prepared(stream)?;
                    let mut rank = [0; 4];
                    stream.read_exact(&mut rank)?;
                    links.push((u32::from_be_bytes(rank) as usize, stream));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && started.elapsed() < LIMIT => {
                    std::thread::sleep(AGAIN)
                }
                Err(error) => return Err(error),
            }
        }
        links.sort_by_key(|(rank, _)| *rank);
        Ok(links.into_iter().map(|(_, stream)| stream).collect())
    }

    fn connect(address: &str, port: u16, rank: usize) -> io::Result<Vec<TcpStream>> {
        let started = Instant::now();
        loop {
            match TcpStream::connect((address, port)) {
                Ok(stream) => {
                    let mut stream = prepared(stream)?;
                    stream.write_all(&(rank as u32).to_be_bytes())?;
                    return Ok(vec![stream]);
                }
                Err(error) if started.elapsed() > LIMIT => return Err(error),
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }

    /// Returns when all ranks have called it. Like the barriers of MPI it polls: ranks that sleep would start late.
    pub(super) fn barrier(&mut self) -> io::Result<()> {
        if self.rank == 0 {
            self.links.iter().try_for_each(poll_byte)?;
            self.links.iter_mut().try_for_each(|link| link.write_all(&[0]))
        } else {
            self.links.iter_mut().try_for_each(|link| link.write_all(&[0]).and_then(|()| poll_byte(link)))
        }
    }

    /// What each rank sends, all equally many numbers: rank 0 gets them in order.
    pub(super) fn gather(&mut self, own: &[f64]) -> io::Result<Option<Vec<Vec<f64>>>> {
        if self.rank > 0 {
            let bytes: Vec<u8> = own.iter().flat_map(|number| number.to_be_bytes()).collect();
            self.links.iter_mut().try_for_each(|link| link.write_all(&bytes))?;
            return Ok(None);
        }
        let mut all = vec![own.to_vec()];
        for link in &mut self.links {
            let mut bytes = vec![0; own.len() * 8];
            link.read_exact(&mut bytes)?;
            let (numbers, _) = bytes.as_chunks::<8>();
            all.push(numbers.iter().map(|number| f64::from_be_bytes(*number)).collect());
        }
        Ok(Some(all))
    }
}

/// Reads one byte, and lets others run until it is there.
fn poll_byte(link: &TcpStream) -> io::Result<()> {
    let started = Instant::now();
    loop {
        match recv(link.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(()),
            Err(Errno::EAGAIN | Errno::EINTR) if started.elapsed() < LIMIT => std::thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    }
}

fn prepared(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

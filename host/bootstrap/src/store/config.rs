//! Configuration of the store: rank, size, address, job.

use std::ffi::OsString;
use std::time::Duration;

use flexcast_proto::{RankError, RankInfo};

use super::address::Address;
use super::launcher::{self, Launched};
use super::{Secret, StoreError};

/// Longest job id, in bytes.
pub(super) const MAX_JOB_BYTES: usize = 128;

/// How a rank joins a [`TcpStore`](super::TcpStore).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The own rank, below `size`.
    pub rank: u32,
    /// Number of ranks, 1 to 1024.
    pub size: u32,
    /// Where rank 0 listens and the others connect: `host:port`, with an IPv6 address in brackets, with its zone if it
    /// is link-local (`[fe80::1%eth0]:4711`). Not used by a rank alone, which may leave it empty.
    pub address: String,
    /// Distinguishes jobs that meet at one address by mistake; the same on all ranks, at most 128 bytes.
    pub job: String,
    /// How long to wait for the other ranks, in joining and in every exchange. Should be the same on all ranks.
    pub timeout: Duration,
    /// Only ranks that have the same secret come together, and what they exchange is encrypted. Without one whoever
    /// reaches the port can be a rank, and whoever reads along gets the key of the communicator.
    pub secret: Option<Secret>,
}

impl StoreConfig {
    /// The usual timeout.
    pub const TIMEOUT: Duration = Duration::from_secs(60);

    /// A configuration with an empty job id, the usual timeout and no secret.
    #[must_use]
    pub fn new(rank: u32, size: u32, address: impl Into<String>) -> Self {
        Self { rank, size, address: address.into(), job: String::new(), timeout: Self::TIMEOUT, secret: None }
    }

    /// The same with a secret, or without one.
    #[must_use]
    pub fn secret(mut self, secret: Option<Secret>) -> Self {
        self.secret = secret;
        self
    }

    /// From the environment: `FLEXCAST_RANK`, `FLEXCAST_SIZE`, `FLEXCAST_STORE` (`host:port`, unless the size is 1),
    /// `FLEXCAST_JOB` (may be absent), and a secret as [`Secret::from_env`] finds it.
    ///
    /// Where the first two are not set, those of a launcher count: torchrun (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`,
    /// `MASTER_PORT`), mpirun of Open MPI (`OMPI_COMM_WORLD_RANK`, ...), mpiexec of MPICH and Intel MPI (`PMI_RANK`,
    /// ...), srun (`SLURM_PROCID`, ...). With mpirun and mpiexec `FLEXCAST_STORE` is needed as soon as ranks are on
    /// several computers.
    ///
    /// # Errors
    /// A variable is missing, is no number, or out of range.
    pub fn from_env() -> Result<Self, StoreError> {
        let (config, secret) = Self::from_variables(|name| std::env::var_os(name))?;
        config.check().map_err(StoreError::of_variables)?;
        Ok(config.secret(secret?))
    }

    /// What variables say, whether or not it can be: the secret has a result of its own, since the other ranks can
    /// learn without it that it is wrong.
    pub(super) fn from_variables(
        read: impl Fn(&str) -> Option<OsString>,
    ) -> Result<(Self, Result<Option<Secret>, StoreError>), StoreError> {
        let text = |name: &'static str, wanted: &'static str| match read(name).map(OsString::into_string) {
            None => Err(StoreError::Unset { name, wanted }),
            Some(Ok(text)) => Ok(text),
            Some(Err(bytes)) => {
                let value = bytes.to_string_lossy().into_owned();
                Err(StoreError::Variable { name, value, wanted })
            }
        };
        let number = |name, wanted| {
            let value = text(name, wanted)?;
            value.trim().parse().map_err(|_| StoreError::Variable { name, value, wanted })
        };
        let own = ["FLEXCAST_SIZE", "FLEXCAST_RANK"].iter().any(|name| read(name).is_some());
        let launched = if own { None } else { launcher::find(&read)? };
        let (rank, size) = match &launched {
            Some(Launched { rank, size, .. }) => (*rank, *size),
            None => {
                let size = number("FLEXCAST_SIZE", "the number of ranks, 1 to 1024")?;
                (number("FLEXCAST_RANK", "the rank of this process, from 0 to the number of ranks less one")?, size)
            }
        };
        let wanted = "host:port, where rank 0 listens, the same on all ranks";
        let address = match (text("FLEXCAST_STORE", wanted), launched.and_then(|launched| launched.address)) {
            (Err(StoreError::Unset { .. }), Some(address)) => address,
            (Err(StoreError::Unset { .. }), None) if size == 1 => String::new(),
            (other, _) => other?,
        };
        let job = match text("FLEXCAST_JOB", "an id that only the ranks of one job share") {
            Err(StoreError::Unset { .. }) => String::new(),
            other => other?,
        };
        let secret = Secret::from_variables(&read).map_err(StoreError::Secret);
        Ok((Self { job, ..Self::new(rank, size, address) }, secret))
    }

    /// Whether it can be: ranges, and the form of the address.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        RankInfo::new(self.rank, self.size).map_err(|error: RankError| StoreError::Rank(error))?;
        if self.job.len() > MAX_JOB_BYTES {
            return Err(StoreError::TooLong { what: "job id", found: self.job.len(), limit: MAX_JOB_BYTES });
        }
        match self.address.as_str() {
            "" if self.size == 1 => Ok(()),
            address => Address::parse(address).map(drop),
        }
    }
}

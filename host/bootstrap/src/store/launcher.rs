//! Launchers that have started this process, recognised by their variables.

use std::ffi::OsString;

use super::StoreError;

/// Ports of meeting points that follow from a job's id: below those that systems give to outgoing connections.
const FIRST_PORT: u16 = 20_000;
const PORTS: u64 = 10_000;

/// What a launcher gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launched {
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Where rank 0 can listen, if that is known.
    pub(super) address: Option<String>,
}

/// A launcher's variables.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    /// Ranks on this computer.
    local_size: Option<&'static str>,
    /// What distinguishes one job from others.
    job: &'static [&'static str],
}

/// In the order in which they count: `srun` may start `mpirun`'s, whose variables then are nearer.
const LAUNCHERS: [Launcher; 4] = [
    Launcher { name: "torchrun", rank: "RANK", size: "WORLD_SIZE", local_size: None, job: &[] },
    Launcher {
        name: "mpirun of Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_size: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Launcher {
        name: "mpiexec of MPICH or Intel MPI",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_size: Some("MPI_LOCALNRANKS"),
        job: &["PMI_ID_MAP", "HYDRA_PROXY_PORT", "PMI_PORT"],
    },
    Launcher {
        name: "srun",
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_size: None,
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

/// What the launcher of this process gives; none if no launcher is known by its variables.
///
/// # Errors
/// One of its variables is no number.
pub(super) fn find(read: &impl Fn(&str) -> Option<OsString>) -> Result<Option<Launched>, StoreError> {
    let text = |name: &str| read(name).and_then(|value| value.into_string().ok()).filter(|value| !value.is_empty());
    let number = |name: &'static str| match text(name) {
        None => Ok(None),
        Some(value) => match value.trim().parse::<u32>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(StoreError::Variable { name, value, wanted: "a number, as the launcher sets it" }),
        },
    };
    for launcher in &LAUNCHERS {
        let (Some(rank), Some(size)) = (number(launcher.rank)?, number(launcher.size)?) else { continue };
        let local_size = launcher.local_size.map(number).transpose()?.flatten();
        let host = match launcher.name {
            "torchrun" => text("MASTER_ADDR"),
            "srun" => text("SLURM_STEP_NODELIST").or_else(|| text("SLURM_NODELIST")).map(|list| first_host(&list)),
            // All ranks are on this computer.
            _ if local_size == Some(size) => Some("127.0.0.1".to_owned()),
            _ => None,
        };
        let port = match launcher.name {
            "torchrun" => {
                let port = number("MASTER_PORT")?.and_then(|port| u16::try_from(port).ok());
                // The launcher's agent has a store of its own there.
                let is_taken = text("TORCHELASTIC_RUN_ID").is_some();
                port.map(|port| if is_taken { port.wrapping_add(1).max(1024) } else { port })
            }
            _ => Some(port_of(launcher.job.iter().filter_map(|name| text(name)))),
        };
        let address = host.zip(port).map(|(host, port)| format!("{host}:{port}"));
        return Ok(Some(Launched { rank, size, address }));
    }
    Ok(None)
}

/// A port that the ranks of a job agree on.
fn port_of(job: impl Iterator<Item = String>) -> u16 {
    let bytes = job.flat_map(|part| part.into_bytes().into_iter().chain([0]).collect::<Vec<_>>());
    FIRST_PORT + (flexcast_proto::digest(bytes.map(u64::from)) % PORTS) as u16
}

/// The first of a list of hosts as Slurm writes it: `a[01-04,7],b` begins with `a01`.
fn first_host(list: &str) -> String {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let number = rest.strip_prefix('[').map(|rest| rest.split([',', '-', ']']).next().unwrap_or_default());
    format!("{name}{}", number.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Option<Launched> {
        let read =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        find(&read).unwrap()
    }

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        assert_eq!(found(&[("RANK", "1")]), None, "a size is missing");
        let torch = [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "head"), ("MASTER_PORT", "29500")];
        let expected = Launched { rank: 1, size: 4, address: Some("head:29500".to_owned()) };
        assert_eq!(found(&torch), Some(expected.clone()));
        let elastic = [&torch[..], &[("TORCHELASTIC_RUN_ID", "x")]].concat();
        assert_eq!(found(&elastic), Some(Launched { address: Some("head:29501".to_owned()), ..expected }));
        let mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), ("PMIX_NAMESPACE", "12345")];
        let here = [&mpi[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat();
        let address = found(&here).unwrap().address.unwrap();
        let port: u16 = address.strip_prefix("127.0.0.1:").unwrap().parse().unwrap();
        assert!((20_000..30_000).contains(&port));
        assert_eq!(found(&mpi).unwrap().address, None, "ranks elsewhere: nobody knows where rank 0 is");
        let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
        assert_eq!(found(&pmi).unwrap().rank, 1);
        let slurm = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8"), ("SLURM_STEP_NODELIST", "n[07-09,12],m3")];
        assert!(found(&slurm).unwrap().address.unwrap().starts_with("n07:"));
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn the_first_host_of_a_list() {
        for (list, host) in [("a", "a"), ("a,b", "a"), ("node[3]", "node3"), ("n[01-04]", "n01"), ("x-1,y[1-2]", "x-1")]
        {
            assert_eq!(first_host(list), host);
        }
    }

    #[test]
    fn numbers_that_are_none_are_named() {
        let read = |name: &str| match name {
            "RANK" => Some(OsString::from("one")),
            "WORLD_SIZE" => Some(OsString::from("4")),
            _ => None,
        };
        let text = find(&read).unwrap_err().to_string();
        assert!(text.contains("RANK") && text.contains("one"), "{text}");
    }
}

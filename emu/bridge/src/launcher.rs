//! Rank of this process, as its launcher gives it.

use std::ffi::OsString;

/// Variables with the rank and the number of processes: a job's own, then those of torchrun, Open MPI, MPICH and Intel
/// MPI, Slurm. Earlier ones are nearer: `srun` may start `mpirun`.
const VARIABLES: [(&str, &str); 5] = [
    ("FLEXCAST_RANK", "FLEXCAST_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// Rank and number of processes; none if no launcher is known by its variables. An error is the sentence that says
/// which variable is no number.
pub(crate) fn place(read: &impl Fn(&str) -> Option<OsString>) -> Result<Option<(usize, usize)>, String> {
    let number = |name: &str| match read(name).filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(value) => match value.to_str().and_then(|text| text.trim().parse::<usize>().ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{name} is {value:?}, but must be a number, as a launcher sets it")),
        },
    };
    for (rank, size) in VARIABLES {
        if let (Some(rank), Some(size)) = (number(rank)?, number(size)?) {
            return Ok(Some((rank, size)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_nearest_launcher() {
        let place = |variables: &[(&str, &str)]| {
            let read = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            place(&read)
        };
        assert_eq!(place(&[]), Ok(None));
        assert_eq!(place(&[("PMI_RANK", "1")]), Ok(None), "a size is missing");
        for (rank, size) in VARIABLES {
            assert_eq!(place(&[(rank, " 2"), (size, "4")]), Ok(Some((2, 4))), "{rank}");
        }
        let both = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("PMI_RANK", "3"), ("PMI_SIZE", "8")];
        assert_eq!(place(&both), Ok(Some((3, 8))));
        let error = place(&[("PMI_RANK", "-1"), ("PMI_SIZE", "8")]).unwrap_err();
        assert_eq!(error, "PMI_RANK is \"-1\", but must be a number, as a launcher sets it");
    }
}

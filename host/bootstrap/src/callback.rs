//! Over a function of the application that gathers equally long pieces, as `MPI_Allgather` does.

use flexcast_proto::{RankError, RankInfo, digest};

use super::{Exchange, ExchangeError, MAX_CONTRIBUTION_BYTES};

/// Why the callback has failed.
type Refused = Box<dyn std::error::Error + Send + Sync>;

/// What a rank announces of its contribution before it: number of the exchange, digest of its tag, bytes.
const NOTICE_BYTES: usize = 24;

/// An exchange over a callback that gathers.
///
/// The callback gets `send`, of the same length on all ranks, and fills `receive`, [`Exchange::size`] times as long,
/// with what each rank sent, in the order of ranks; it is called by all ranks, as often, and has to return an error
/// rather than wait for ever. Each exchange calls it twice, or once when nobody contributes anything: first for 24
/// bytes, lengths and names, then for the longest contribution.
pub struct CallbackExchange<F> {
    place: RankInfo,
    gather: F,
    exchanges: u64,
}

impl<F> CallbackExchange<F>
where
    F: FnMut(&[u8], &mut [u8]) -> Result<(), Refused>,
{
    /// Rank `rank` of `size`.
    ///
    /// # Errors
    /// No such rank.
    pub fn new(rank: u32, size: u32, gather: F) -> Result<Self, RankError> {
        Ok(Self { place: RankInfo::new(rank, size)?, gather, exchanges: 0 })
    }

    /// Gathers equally long pieces.
    fn gather(&mut self, tag: &str, send: &[u8]) -> Result<Vec<u8>, ExchangeError> {
        let mut receive = vec![0; send.len() * self.place.ranks() as usize];
        (self.gather)(send, &mut receive)
            .map_err(|error| ExchangeError::new(tag, format_args!("the callback failed: {error}")))?;
        Ok(receive)
    }
}

impl<F> Exchange for CallbackExchange<F>
where
    F: FnMut(&[u8], &mut [u8]) -> Result<(), Refused>,
{
    fn rank(&self) -> u32 {
        self.place.rank()
    }

    fn size(&self) -> u32 {
        self.place.ranks()
    }

    fn exchange(&mut self, tag: &str, contribution: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        self.exchanges += 1;
        let own = [self.exchanges, digest(tag.bytes().map(u64::from)), contribution.len() as u64];
        let notices = self.gather(tag, own.map(u64::to_le_bytes).as_flattened())?;
        let mut lengths = Vec::new();
        for (rank, notice) in notices.chunks_exact(NOTICE_BYTES).enumerate() {
            let field = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| notice[8 * at + byte]));
            let wrong = |reason: String| Err(ExchangeError::new(tag, format_args!("rank {rank} {reason}")));
            if field(0) != own[0] {
                return wrong(format!(
                    "is at its exchange {}, this rank at {}: all ranks must do the same",
                    field(0),
                    own[0]
                ));
            }
            if field(1) != own[1] {
                return wrong("is at an exchange of another name: all ranks must do the same".to_owned());
            }
            if field(2) > MAX_CONTRIBUTION_BYTES as u64 {
                return wrong(format!("contributes {} bytes, but {MAX_CONTRIBUTION_BYTES} are the limit", field(2)));
            }
            lengths.push(field(2) as usize);
        }
        if notices[NOTICE_BYTES * self.place.rank() as usize..][..NOTICE_BYTES]
            != *own.map(u64::to_le_bytes).as_flattened()
        {
            let reason = format_args!("the callback gave back something else than rank {} sent", self.place.rank());
            return Err(ExchangeError::new(tag, reason));
        }
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest == 0 {
            return Ok(vec![Vec::new(); lengths.len()]);
        }
        let mut padded = contribution.to_vec();
        padded.resize(longest, 0);
        let gathered = self.gather(tag, &padded)?;
        Ok(gathered.chunks_exact(longest).zip(lengths).map(|(piece, length)| piece[..length].to_vec()).collect())
    }
}

//! Groups of ranks.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int};
use std::rc::Rc;

use flexcast_rust::{Communicator, Config};

use crate::bootstrap::{Bootstrap, count, flexcast_bootstrap};
use crate::card::{OpenCard, flexcast_card};
use crate::config::{self, flexcast_config, number_of};
use crate::fault::{Fault, call};
use crate::handle;
use crate::memory::{give, out};
use crate::status::flexcast_status::{self, *};

/// Ranks that broadcast and gather among one another. Made by flexcast_comm_create() or flexcast_comm_split().
pub struct flexcast_comm {
    _opaque: [u8; 0],
}

/// Colour of a rank that is in none of the communicators that flexcast_comm_split() makes.
pub const FLEXCAST_UNDEFINED: i32 = -1;

/// Memory of failed operations that the card could not be made to let go.
struct Held {
    card: Rc<OpenCard>,
    claims: RefCell<Vec<u64>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.card.release(&self.claims.borrow());
    }
}

/// A communicator, and what it stands on.
pub(crate) struct Group {
    // Dropped first: it reaches the memory.
    communicator: RefCell<Communicator>,
    held: Held,
    /// Operations that are not over.
    under_way: Cell<u32>,
    /// Its control, and why it is not the one of its parameters, if so.
    control: (u32, Option<CString>),
}

impl Group {
    fn new(communicator: Communicator, card: Rc<OpenCard>) -> Rc<Self> {
        let held = Held { card, claims: RefCell::default() };
        let report = communicator.control();
        let reason = report.reason.as_ref().map(|reason| CString::new(reason.replace('\0', " ")).unwrap_or_default());
        let control = (number_of(report.control), reason);
        Rc::new(Self { communicator: RefCell::new(communicator), held, under_way: Cell::new(0), control })
    }

    pub(crate) fn card(&self) -> &OpenCard {
        &self.held.card
    }

    pub(crate) fn begun(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    /// An operation is over. Its memory is the program's again, unless the card may still reach it.
    pub(crate) fn ended(&self, claims: &[u64], held: bool) {
        self.under_way.set(self.under_way.get() - 1);
        if held {
            self.held.claims.borrow_mut().extend(claims);
        } else {
            self.card().release(claims);
        }
    }

    /// Uses the communicator, unless this call comes from a callback of a call that uses it.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut Communicator) -> Result<R, Fault>) -> Result<R, Fault> {
        let mut communicator = self.communicator.try_borrow_mut().map_err(|_| {
            let text = "the communicator is in use by the call from which this callback was made: return from it first";
            Fault::new(FLEXCAST_ERROR_BUSY, text)
        })?;
        body(&mut communicator)
    }
}

/// Makes a communicator of all ranks of a bootstrap. All of them call it, with the same configuration (NULL: the defaults). It blocks as
/// long as the bootstrap's exchanges do. A rank that fails is named by all others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_create(
    card: *mut flexcast_card,
    bootstrap: *mut flexcast_bootstrap,
    config: *const flexcast_config,
    comm: *mut *mut flexcast_comm,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(comm, "comm") }?;
        let card = handle::get::<OpenCard>(card)?;
        let bootstrap = handle::get::<Bootstrap>(bootstrap)?;
        // SAFETY: null or a configuration of the caller, as long as it says.
        let config = unsafe { config::read(config, &Config::for_card(card.card())) }?;
        let communicator = bootstrap.with(|exchange| Ok(Communicator::create(card.card(), exchange, config)?))?;
        place.put(handle::insert(Group::new(communicator, card))?);
        Ok(())
    })
}

/// Parts the ranks of a communicator, as MPI_Comm_split does: those of one colour (0 or more) become a communicator, in the order of
/// their keys and then of their ranks. A rank of colour FLEXCAST_UNDEFINED gets NULL and FLEXCAST_OK. All ranks call it, with the bootstrap
/// that the communicator was made with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_split(
    comm: *mut flexcast_comm,
    bootstrap: *mut flexcast_bootstrap,
    color: c_int,
    key: i64,
    part: *mut *mut flexcast_comm,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a handle.
        let place = unsafe { out(part, "part") }?;
        let group = handle::get::<Group>(comm)?;
        let bootstrap = handle::get::<Bootstrap>(bootstrap)?;
        let colour = if color == FLEXCAST_UNDEFINED { None } else { Some(count(color, "color")?) };
        let made =
            group.with(|communicator| bootstrap.with(|exchange| Ok(communicator.split(exchange, colour, key)?)))?;
        let handle = match made {
            // The new group holds the card, too.
            Some(communicator) => handle::insert(Group::new(communicator, Rc::clone(&group.held.card)))?,
            None => std::ptr::null_mut(),
        };
        place.put(handle);
        Ok(())
    })
}

/// Frees a communicator; the others need not be asked. Refused (FLEXCAST_ERROR_BUSY) while an operation is under way: wait for it, or
/// cancel it and wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_free(comm: *mut flexcast_comm) -> flexcast_status {
    call(|| {
        let group = handle::get::<Group>(comm)?;
        if group.under_way.get() > 0 {
            let text = format!(
                "{} operations of the communicator are not over: wait for their requests, or cancel and wait",
                group.under_way.get()
            );
            return Err(Fault::new(FLEXCAST_ERROR_BUSY, text));
        }
        group.with(|_| Ok(()))?;
        drop(group);
        handle::remove::<Group>(comm).map(drop)
    })
}

/// The own rank, and how many there are. Either pointer may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_rank(
    comm: *mut flexcast_comm,
    rank: *mut c_int,
    size: *mut c_int,
) -> flexcast_status {
    call(|| {
        let group = handle::get::<Group>(comm)?;
        let (own, all) = group.with(|communicator| Ok((communicator.rank(), communicator.size())))?;
        for (place, value) in [(rank, own), (size, all)].into_iter().filter(|(place, _)| !place.is_null()) {
            // SAFETY: not null, so a place for an int.
            unsafe { out(place, "rank") }?.put(value as c_int);
        }
        Ok(())
    })
}

/// Which control carries the operations of a communicator, one of FLEXCAST_CONTROL_*, alike on all ranks. `reason` (may be NULL) becomes NULL where it is the one of
/// the configuration; else a text that says which rank has no service process, and why not. The text stays until the communicator is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_control(
    comm: *mut flexcast_comm,
    control: *mut u32,
    reason: *mut *const c_char,
) -> flexcast_status {
    call(|| {
        // SAFETY: null or a place for a number.
        let place = unsafe { out(control, "control") }?;
        let group = handle::get::<Group>(comm)?;
        let (number, why) = &group.control;
        place.put(*number);
        if !reason.is_null() {
            // SAFETY: not null, so a place for a pointer.
            unsafe { out(reason, "reason") }?.put(why.as_ref().map_or(std::ptr::null(), |text| text.as_ptr()));
        }
        Ok(())
    })
}

/// Moves the operations of a communicator on as far as they go now, without blocking. `moved` (may be NULL) becomes 1 if anything
/// happened, else 0. What the card does needs no such call; neighbours may need it even when no operation of this rank is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_progress(comm: *mut flexcast_comm, moved: *mut c_int) -> flexcast_status {
    call(|| {
        let any = handle::get::<Group>(comm)?.with(|communicator| Ok(communicator.progress()?))?;
        if !moved.is_null() {
            // SAFETY: not null, so a place for an int.
            unsafe { out(moved, "moved") }?.put(any.into());
        }
        Ok(())
    })
}

/// Ends all operations of a communicator as failures, on all ranks; it can only be freed afterwards. To be followed by tests or waits: the
/// memory is in use until they say that the operations are over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_cancel(comm: *mut flexcast_comm) -> flexcast_status {
    call(|| {
        handle::get::<Group>(comm)?.with(|communicator| {
            communicator.cancel();
            Ok(())
        })
    })
}

/// What a communicator takes of its card, and what it has done.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct flexcast_stats {
    /// The own rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// DPA threads.
    pub threads: u32,
    /// Queue pairs: to receive, to send, over the own card, to other ranks.
    pub receive_queue_pairs: u32,
    /// See `receive_queue_pairs`.
    pub send_queue_pairs: u32,
    /// See `receive_queue_pairs`.
    pub loopback_queue_pairs: u32,
    /// See `receive_queue_pairs`.
    pub control_queue_pairs: u32,
    /// 0.
    pub reserved: u32,
    /// Staging slots in DPA memory, in bytes.
    pub staging_bytes: u64,
    /// Bitmaps, contexts and rings, which the DPA's last-level cache should hold, in bytes.
    pub hot_bytes: u64,
    /// Control messages sent: barrier signals, activations, requests for missing blocks, blocks offered, final messages, failures told.
    pub barrier_messages: u64,
    /// See `barrier_messages`.
    pub activate_messages: u64,
    /// See `barrier_messages`.
    pub fetch_messages: u64,
    /// See `barrier_messages`.
    pub acknowledge_messages: u64,
    /// See `barrier_messages`.
    pub final_messages: u64,
    /// See `barrier_messages`.
    pub failed_messages: u64,
    /// Receive completions consumed on the DPA, as of the last report, like all that follow up to `receive_instructions`.
    pub receive_cqes: u64,
    /// Chunks accepted.
    pub accepted_chunks: u64,
    /// Chunks discarded: there already; of no place in the operation; of another or closed operation; of a wrong length.
    pub duplicate_chunks: u64,
    /// See `duplicate_chunks`.
    pub out_of_range_chunks: u64,
    /// See `duplicate_chunks`.
    pub wrong_id_chunks: u64,
    /// See `duplicate_chunks`.
    pub wrong_length_chunks: u64,
    /// Error completions.
    pub error_cqes: u64,
    /// Instructions that the receive workers have retired.
    pub receive_instructions: u64,
    /// Chunks sent.
    pub sent_chunks: u64,
    /// Doorbells that they took.
    pub send_doorbells: u64,
    /// Registrations of the card's cache that were there when asked for, and that had to be made.
    pub registration_hits: u64,
    /// See `registration_hits`.
    pub registration_misses: u64,
    /// Registrations that are there, and their bytes.
    pub registrations: u64,
    /// See `registrations`.
    pub registered_bytes: u64,
}

/// Fills `stats`, of `size` = sizeof(flexcast_stats) bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_comm_stats(
    comm: *mut flexcast_comm,
    stats: *mut flexcast_stats,
    size: usize,
) -> flexcast_status {
    call(|| {
        let group = handle::get::<Group>(comm)?;
        let value = group.with(|communicator| {
            let (footprint, messages) = (communicator.footprint(), communicator.messages());
            let (receive, send) = (communicator.receive_statistics()?, communicator.send_statistics()?);
            let cache = group.card().cache_statistics();
            Ok(flexcast_stats {
                rank: communicator.rank(),
                ranks: communicator.size(),
                threads: footprint.threads,
                receive_queue_pairs: footprint.receive_queue_pairs,
                send_queue_pairs: footprint.send_queue_pairs,
                loopback_queue_pairs: footprint.loopback_queue_pairs,
                control_queue_pairs: footprint.control_queue_pairs,
                reserved: 0,
                staging_bytes: footprint.staging_bytes,
                hot_bytes: footprint.hot_bytes(),
                barrier_messages: messages.barrier,
                activate_messages: messages.activate,
                fetch_messages: messages.fetch,
                acknowledge_messages: messages.acknowledge,
                final_messages: messages.last,
                failed_messages: messages.failed,
                receive_cqes: receive.cqes,
                accepted_chunks: receive.accepted,
                duplicate_chunks: receive.duplicates,
                out_of_range_chunks: receive.out_of_range,
                wrong_id_chunks: receive.wrong_id,
                wrong_length_chunks: receive.wrong_length,
                error_cqes: receive.error_cqes,
                receive_instructions: receive.instructions,
                sent_chunks: send.posted,
                send_doorbells: send.doorbells,
                registration_hits: cache.hits,
                registration_misses: cache.misses,
                registrations: cache.entries as u64,
                registered_bytes: cache.bytes,
            })
        })?;
        // SAFETY: the caller gives as many bytes as it says.
        unsafe { give(stats, size, value, "stats") }
    })
}

//! Log of the card: its counters, and notes for those who asked for them.

use crate::counters::Counters;
use crate::note::Note;
use crate::packet::Packet;

/// Counters and notes.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) counters: Counters,
    /// What happened, if it is asked for.
    notes: Option<Vec<(u64, Note)>>,
}

impl Log {
    /// Starts or stops taking notes.
    pub(crate) fn observe(&mut self, on: bool) {
        self.notes = on.then(Vec::new);
    }

    pub(crate) fn take_notes(&mut self) -> impl Iterator<Item = (u64, Note)> {
        self.notes.as_mut().map(|notes| notes.drain(..)).into_iter().flatten()
    }

    #[inline]
    pub(crate) fn note(&mut self, at_ps: u64, note: impl FnOnce() -> Note) {
        if let Some(notes) = &mut self.notes {
            notes.push((at_ps, note()));
        }
    }

    /// Notes a packet that leaves from `at_ps` to `until_ps`.
    pub(crate) fn note_sent(&mut self, at_ps: u64, until_ps: u64, packet: &Packet, loopback: bool) {
        self.note(at_ps, || Note::Sent { packet: packet.into(), until_ps, loopback });
    }

    /// The counters before a packet is handled, for [`note_drop`](Self::note_drop); nothing unless notes are asked for.
    #[inline]
    pub(crate) fn before(&self) -> Option<Counters> {
        self.notes.is_some().then_some(self.counters)
    }

    /// Notes a packet if it was dropped since `before`.
    #[inline]
    pub(crate) fn note_drop(&mut self, before: Option<Counters>, at_ps: u64, packet: &Packet) {
        if let Some(reason) = before.and_then(|before| drop_reason(&before, &self.counters)) {
            self.note(at_ps, || Note::Dropped { packet: packet.into(), reason });
        }
    }
}

/// The counter of dropped, refused or repeated packets that went up.
fn drop_reason(before: &Counters, after: &Counters) -> Option<&'static str> {
    macro_rules! first_that_rose {
        ($($counter:ident),*) => {$(
            if after.$counter > before.$counter {
                return Some(stringify!($counter));
            }
        )*};
    }
    first_that_rose!(
        rx_buffer_drops,
        address_drops,
        steering_drops,
        multicast_drops,
        qp_drops,
        pkey_drops,
        qkey_drops,
        rnr_drops
    );
    first_that_rose!(rnr_naks, uc_gap_drops, access_drops, rc_out_of_sequence, rc_duplicates, remote_access_errors);
    None
}

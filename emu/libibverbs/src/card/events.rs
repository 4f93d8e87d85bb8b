//! Completion events of other processes, until they fetch them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use emu_machine::World;

use crate::errno::{Errno, Result};

/// Numbers of channels from here on are those of other processes.
const FIRST: u32 = 1 << 31;
/// Most channels of a process, and most events that wait for it. It gets one event for each time that it arms a queue.
const MAX_CHANNELS: usize = 4096;
const MAX_WAITING: usize = 1 << 16;
/// Events that one answer holds; the next has those behind them.
const MAX_TAKEN: usize = 1024;

#[derive(Debug, Default)]
struct Process {
    /// Its number of a channel -> ours.
    channels: BTreeMap<u32, u32>,
    /// Its number of a channel, and of a completion queue.
    waiting: VecDeque<(u32, u32)>,
}

#[derive(Debug, Default)]
struct Others {
    processes: BTreeMap<u32, Process>,
    /// Our number of a channel -> process, and its number.
    channels: BTreeMap<u32, (u32, u32)>,
    made: u32,
}

static OTHERS: Mutex<Option<Others>> = Mutex::new(None);

fn others() -> MutexGuard<'static, Option<Others>> {
    OTHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number under which the card knows a channel of another process.
///
/// # Errors
/// ENOMEM: the process has too many.
pub(crate) fn number(process: u32, channel: u32) -> Result<u32> {
    let mut others = others();
    let Others { processes, channels, made } = others.get_or_insert_default();
    let of_process = processes.entry(process).or_default();
    if let Some(known) = of_process.channels.get(&channel) {
        return Ok(*known);
    }
    if of_process.channels.len() >= MAX_CHANNELS || *made >= FIRST {
        return Err(Errno::new(
            libc::ENOMEM,
            format!("a process may have {MAX_CHANNELS} completion channels at another's card"),
        ));
    }
    let number = FIRST + *made;
    *made += 1;
    of_process.channels.insert(channel, number);
    channels.insert(number, (process, channel));
    Ok(number)
}

/// Keeps an event of another process. `false`: the channel is this process's.
pub(crate) fn keep(number: u32, cqn: u32) -> bool {
    if number < FIRST {
        return false;
    }
    let mut others = others();
    let Others { processes, channels, .. } = others.get_or_insert_default();
    // Of a process that is gone nobody wants any.
    if let Some((process, channel)) = channels.get(&number)
        && let Some(process) = processes.get_mut(process)
        && process.waiting.len() < MAX_WAITING
    {
        process.waiting.push_back((*channel, cqn));
    }
    true
}

/// What has come for a process: its numbers of channels, and those of completion queues.
pub(crate) fn take(world: &mut World, process: u32) -> Vec<(u32, u32)> {
    for (_, number, cqn) in world.take_channel_events_from(FIRST) {
        keep(number, cqn);
    }
    let mut others = others();
    let process = others.as_mut().and_then(|others| others.processes.get_mut(&process));
    process.map_or_else(Vec::new, |Process { waiting, .. }| waiting.drain(..waiting.len().min(MAX_TAKEN)).collect())
}

/// A process is gone.
pub(crate) fn forget(process: u32) {
    if let Some(Others { processes, channels, .. }) = others().as_mut() {
        for number in processes.remove(&process).into_iter().flat_map(|process| process.channels.into_values()) {
            channels.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use emu_machine::Config;

    use super::*;

    #[test]
    fn events_go_to_the_process_of_their_channel_until_it_is_gone() {
        let mut world = World::new(Config::default()).unwrap();
        // Numbers that no other test has.
        let [first, second] = [900, 901];
        let number = |process, channel| super::number(process, channel).unwrap();
        let (one, other) = (number(first, 7), number(second, 7));
        assert_eq!(number(first, 7), one);
        assert_ne!(one, other);
        assert!(!keep(7, 1), "this process's own");
        assert!(keep(one, 1) && keep(other, 2) && keep(one, 3));
        assert_eq!(take(&mut world, first), [(7, 1), (7, 3)]);
        assert_eq!(take(&mut world, first), []);
        (0..1030).for_each(|cqn| _ = keep(one, cqn));
        assert_eq!([take(&mut world, first).len(), take(&mut world, first).len()], [MAX_TAKEN, 6]);
        forget(second);
        assert!(keep(other, 4));
        assert_eq!(take(&mut world, second), []);
        let most = MAX_CHANNELS as u32;
        (0..most).for_each(|channel| _ = number(second, channel));
        assert_eq!(super::number(second, most).unwrap_err().value, libc::ENOMEM);
        [first, second].into_iter().for_each(forget);
    }
}

//! Command queues: functions of the firmware that the host hands over, and worker threads that run them one by one.

use emu_hart::Hart;

use crate::dpa::command_queue::{CommandQueue, Task};
use crate::dpa::thread::{ThreadKind, ThreadState};
use crate::error::MachineError;
use crate::time::{cycles_to_ps, ps_to_cycles};
use crate::world::World;
use crate::world::control::{add_thread, free_id};
use crate::world::schedule::reg;

/// Most command queues of a process.
const MAX_QUEUES: u32 = 256;
/// Most tasks that wait in one.
const MAX_TASKS: usize = 1 << 20;

impl World {
    /// Makes a command queue with so many worker threads, and gives its id. `started`: tasks run as soon as they are
    /// added.
    ///
    /// # Errors
    /// The process runs no more, or there are no execution units for the workers.
    pub fn create_command_queue(
        &mut self,
        card: usize,
        process: u32,
        workers: u32,
        started: bool,
    ) -> Result<u32, MachineError> {
        let now_cycles = ps_to_cycles(self.now_ps);
        let this = self.card(card)?;
        let queues = &this.healthy(process)?.command_queues;
        let id = free_id("command queue", process, MAX_QUEUES, |id| queues.contains_key(&id))?;
        let mut queue = CommandQueue { started, ..CommandQueue::default() };
        for _ in 0..workers {
            let made = this.pick_eu(None).and_then(|eu| add_thread(this, process, eu, ThreadKind::Worker, now_cycles));
            match made {
                Ok(worker) => queue.workers.push(worker),
                Err(error) => {
                    for worker in queue.workers {
                        self.destroy_thread(card, worker)?;
                    }
                    return Err(error);
                }
            }
        }
        self.card(card)?.process_mut(process)?.command_queues.insert(id, queue);
        Ok(id)
    }

    /// The queue of a process.
    fn command_queue(&mut self, card: usize, process: u32, id: u32) -> Result<&mut CommandQueue, MachineError> {
        let missing = MachineError::NoObject { what: "command queue", id, process };
        self.card(card)?.process_mut(process)?.command_queues.get_mut(&id).ok_or(missing)
    }

    /// Adds a task: `function(argument)`.
    ///
    /// # Errors
    /// There is no such queue, the process runs no more, or a million tasks wait.
    pub fn add_task(
        &mut self,
        card: usize,
        process: u32,
        id: u32,
        function: u64,
        argument: u64,
    ) -> Result<(), MachineError> {
        self.card(card)?.healthy(process)?;
        let queue = self.command_queue(card, process, id)?;
        if queue.waiting.len() >= MAX_TASKS {
            return Err(MachineError::TooManyTasks { limit: MAX_TASKS });
        }
        queue.waiting.push_back(Task { function, argument });
        self.start_tasks(card, process, id)
    }

    /// Has the tasks run that were added, and those to come.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn run_command_queue(&mut self, card: usize, process: u32, id: u32) -> Result<(), MachineError> {
        self.command_queue(card, process, id)?.started = true;
        self.start_tasks(card, process, id)
    }

    /// Whether all tasks are done.
    ///
    /// # Errors
    /// There is no such queue, or the process runs no more.
    pub fn command_queue_is_empty(&mut self, card: usize, process: u32, id: u32) -> Result<bool, MachineError> {
        let queue = self.command_queue(card, process, id)?;
        let empty = queue.waiting.is_empty() && queue.running.is_empty();
        if !empty {
            self.card(card)?.healthy(process)?;
        }
        Ok(empty)
    }

    /// Removes a command queue and its workers, running or not.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn destroy_command_queue(&mut self, card: usize, process: u32, id: u32) -> Result<(), MachineError> {
        let missing = MachineError::NoObject { what: "command queue", id, process };
        let queue = self.card(card)?.process_mut(process)?.command_queues.remove(&id).ok_or(missing)?;
        queue.workers.into_iter().try_for_each(|worker| self.destroy_thread(card, worker))
    }

    /// Gives waiting tasks to workers without one.
    fn start_tasks(&mut self, card: usize, process: u32, id: u32) -> Result<(), MachineError> {
        let at_ps = self.now_ps + self.rpc_ps();
        loop {
            let queue = self.command_queue(card, process, id)?;
            let idle = queue.workers.iter().find(|worker| !queue.running.contains_key(worker)).copied();
            let Some(worker) = idle.filter(|_| queue.started) else { return Ok(()) };
            let Some(task) = queue.waiting.pop_front() else { return Ok(()) };
            queue.running.insert(worker, task);
            self.start_task(ps_to_cycles(at_ps), card, worker, task);
        }
    }

    fn start_task(&mut self, cycles: u64, card: usize, worker: u32, task: Task) {
        if let Ok(thread) = self.cards[card].thread_mut(worker) {
            thread.entry = task.function;
        }
        self.start_with(cycles, card, worker, |hart: &mut Hart| hart.x[reg::A0] = task.argument);
    }

    /// A worker's function has returned: the next task is its, if one waits.
    pub(crate) fn task_returned(&mut self, card: usize, worker: u32) {
        let this = &mut self.cards[card];
        let Some(process) = this.owners.get(&worker).and_then(|process| this.processes.get_mut(process)) else {
            return;
        };
        let Some(thread) = process.threads.get_mut(&worker) else { return };
        let cycles = thread.hart.cycles;
        this.cores.leave(thread, ThreadState::Waiting);
        let mut queues = process.command_queues.values_mut();
        let next = queues.find(|queue| queue.running.contains_key(&worker)).and_then(|queue| {
            queue.running.remove(&worker);
            let task = queue.waiting.pop_front()?;
            queue.running.insert(worker, task);
            Some(task)
        });
        self.trace.record(cycles_to_ps(cycles), "return", card as u64, u64::from(worker));
        self.watch_gave(card, worker);
        self.watch_end(card, worker);
        if let Some(task) = next {
            self.start_task(cycles, card, worker, task);
        }
    }
}

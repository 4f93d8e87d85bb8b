//! Processes on the DPA: what a started context has on the card.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doca_sys::*;
use emu_bridge::with_world;
use emu_libdoca::failure::{Failure, Result};
use emu_libdoca::{Dev, streams};
use emu_libflexio::{App, attach, before_destroy};
use emu_libibverbs::umem::new_uar_page;
use emu_machine::nic::{QueueMemory, Space};
use emu_machine::{MachineError, World};

use crate::launch::Launch;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls into the machine.
pub(crate) fn world<T, E>(f: impl FnOnce(&mut World) -> std::result::Result<T, E>) -> Result<T>
where
    Failure: From<E>,
{
    Ok(with_world(f)??)
}

/// What FlexIO's part refuses.
pub(crate) fn of_flexio(failure: emu_libflexio::Failure) -> Failure {
    Failure(DOCA_ERROR_INVALID_VALUE, failure.reason)
}

/// A process.
pub(crate) struct Process {
    pub(crate) dev: Arc<Dev>,
    pub(crate) app: Arc<App>,
    pub(crate) card: usize,
    pub(crate) id: u32,
    pub(crate) pd: u32,
    pub(crate) uar: u32,
    /// The default message stream, which kernels print on.
    stream: u32,
    pub(crate) launches: Mutex<Vec<Launch>>,
}

impl Process {
    /// Loads an application. Messages up to `level`, of FlexIO's, are printed.
    pub(crate) fn create(dev: &Arc<Dev>, app: &Arc<App>, level: u8) -> Result<Arc<Self>> {
        let card = dev.info.id.card;
        let pd = dev.domain()?;
        attach().map_err(of_flexio)?;
        let uar = new_uar_page();
        let (id, stream) = world(|world| {
            let id = world.create_process(card, app.elf())?;
            world.card(card)?.process_mut(id)?.label = app.label();
            world.create_default_outbox(card, id, uar)?;
            let stream = world.create_stream(card, id, level)?;
            // The first, by which kernels see memory of the host.
            world.create_window(card, id, pd)?;
            Ok::<_, MachineError>((id, stream))
        })?;
        let (dev, app, launches) = (Arc::clone(dev), Arc::clone(app), Mutex::default());
        Ok(Arc::new(Self { dev, app, card, id, pd, uar, stream, launches }))
    }

    /// Ends it, with all kernels that were launched.
    pub(crate) fn destroy(&self) -> Result<()> {
        self.print()?;
        lock(&self.launches).clear();
        before_destroy().map_err(of_flexio)?;
        world(|world| world.destroy_process(self.card, self.id))
    }

    /// Prints what kernels have sent.
    pub(crate) fn print(&self) -> Result<()> {
        let messages = world(|world| world.take_stream_messages(self.card, self.id, self.stream))?;
        for message in &messages {
            streams()[0].write(message.split(|&byte| byte == 0).next().unwrap_or_default());
        }
        Ok(())
    }

    pub(crate) fn set_level(&self, level: u8) -> Result<()> {
        world(|world| world.set_stream_level(self.card, self.id, self.stream, level))
    }

    /// Fails if it has crashed.
    pub(crate) fn check(&self) -> Result<()> {
        world(|world| world.card(self.card)?.healthy(self.id).map(|_| ()))
    }

    /// Takes memory of the DPA and fills it.
    pub(crate) fn place(&self, bytes: &[u8]) -> Result<u64> {
        world(|world| {
            let addr = world.heap_alloc(self.card, self.id, bytes.len() as u64)?;
            world.write_memory(self.card, self.id, addr, bytes).map(|()| addr)
        })
    }

    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) -> Result<()> {
        world(|world| world.write_memory(self.card, self.id, addr, bytes))
    }

    pub(crate) fn read(&self, addr: u64, out: &mut [u8]) -> Result<()> {
        world(|world| world.peek_memory(self.card, self.id, addr, out))
    }

    /// Gives memory back. What cannot be given back goes with the process.
    pub(crate) fn free(&self, addr: u64) -> Result<()> {
        world(|world| world.heap_free(self.card, self.id, addr))
    }

    /// Memory of the DPA, for a queue.
    pub(crate) fn queue_memory(&self, addr: u64) -> QueueMemory {
        QueueMemory { space: Space::Dpa(self.id), addr }
    }
}

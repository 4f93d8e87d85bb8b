//! The process that has the cards: another process's requests are carried out, and what it has made is taken back when
//! it is gone.

use emu_bridge::{Client, MAX_MESSAGE_BYTES, Reply, Session};
use emu_machine::nic::Gid;
use emu_machine::{Function, FunctionId, World, with_world};

use super::caller::{Caller, Class, Owned};
use super::events;
use super::execute::execute;
use super::request::{Answer, PROBE, Request};
use crate::errno::{Errno, Result};
use crate::umem;

/// Longest answer to a command in bytes; in a message they take several times as much room.
const MAX_MAILBOX_BYTES: usize = 16 << 10;

/// What another process has here.
struct Process {
    number: u32,
    owned: Owned,
    /// It has shown that the card reaches its memory.
    open: bool,
}

/// Begins to serve a process.
///
/// # Errors
/// There is no machine.
pub(crate) fn begin(client: Client) -> std::result::Result<Box<dyn Session>, String> {
    let number =
        with_world(|world| world.add_host_process(client.pid, client.end)).map_err(|error| error.to_string())?;
    Ok(Box::new(Process { number, owned: Owned::default(), open: false }))
}

impl Process {
    fn carry_out(&mut self, world: &mut World, id: FunctionId, request: Request) -> Result<Answer> {
        if let Request::Open { probe } = request {
            self.probe(world, probe)?;
        } else if !self.open {
            return Err(Errno::new(
                libc::EPROTO,
                "the first request must show that the card reaches this process's memory",
            ));
        }
        if id.function != Function::Host {
            return Err(Errno::unsupported(format!("{id} is the process's that has the card: others use the host's")));
        }
        if request.is_command() {
            world.begin_command(id)?;
        }
        execute(world, &mut Caller { id, other: Some((self.number, &mut self.owned)) }, request)
    }

    /// Whether the system lets this process read and write the other's memory.
    fn probe(&mut self, world: &mut World, addr: u64) -> Result<()> {
        let mut found = PROBE.map(|_| 0);
        if let Some(process) = world.host_process(self.number) {
            process.register(addr, found.len() as u64);
            let _ = process.read(addr, &mut found);
            process.unregister(addr, found.len() as u64);
        }
        if found != PROBE {
            let reason = "the process with the card cannot read this one's memory, as a card does: both must be of one \
                user and in one PID namespace, and the system must allow process_vm_readv (see \
                kernel.yama.ptrace_scope)";
            return Err(Errno::new(libc::EPERM, reason));
        }
        self.open = true;
        Ok(())
    }
}

impl Session for Process {
    fn handle(&mut self, message: &[u8]) -> Reply {
        let (id, request): (FunctionId, Request) = match serde_json::from_slice(message) {
            Ok(request) => request,
            Err(error) => return Reply::End(format!("its message is no request: {error}")),
        };
        if matches!(&request, Request::Devx { answer_bytes, .. } if *answer_bytes > MAX_MAILBOX_BYTES) {
            return Reply::End(format!("it asks for an answer of more than {MAX_MAILBOX_BYTES} bytes"));
        }
        let answered = request.is_answered();
        let result = with_world(|world| self.carry_out(world, id, request)).unwrap_or_else(|error| Err(error.into()));
        if !answered {
            return Reply::Nothing;
        }
        let refused = |Errno { value, reason }| Answer::Refused { errno: value, reason };
        match serde_json::to_vec(&result.unwrap_or_else(refused)) {
            Ok(answer) if answer.len() <= MAX_MESSAGE_BYTES => Reply::Answer(answer),
            Ok(answer) => Reply::End(format!("an answer of {} bytes is too long", answer.len())),
            Err(error) => Reply::End(format!("an answer cannot be written: {error}")),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let owned = std::mem::take(&mut self.owned);
        let taken_back = with_world(|world| {
            for &(class, card, number) in &owned.objects {
                let Ok(card) = world.card(card) else { continue };
                let result = match class {
                    Class::QueuePair => {
                        let is_member = |gid: &Gid| card.nic.is_member(number, gid);
                        let groups: Vec<Gid> = card.nic.joined_groups().filter(is_member).collect();
                        let left = groups.into_iter().try_for_each(|gid| card.nic.detach_multicast(number, gid));
                        left.and_then(|()| card.nic.destroy_qp(number))
                    }
                    Class::SharedReceives => card.nic.destroy_srq(number),
                    // A window's tag may have changed.
                    Class::Key => card.nic.destroy_mkey(card.nic.mkey_of_index(number >> 8).unwrap_or(number)),
                    Class::CompletionQueue => card.nic.destroy_cq(number),
                    Class::Domain => card.nic.dealloc_pd(number),
                };
                if let Err(error) = result {
                    tracing::debug!(%error, "an object of a process that is gone is left");
                }
            }
            world.remove_host_process(self.number);
        });
        owned.umems.into_iter().for_each(umem::remove);
        events::forget(self.number);
        if let Err(error) = taken_back {
            tracing::debug!(%error, "a process is gone, and so is the machine");
        }
    }
}

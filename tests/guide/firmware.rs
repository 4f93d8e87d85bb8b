//! Image `sum`: adds up numbers in host memory.
#![cfg_attr(target_arch = "riscv64", no_std, no_main)]
#![forbid(unsafe_code)]

#[cfg(target_arch = "riscv64")]
mod shared;

#[cfg(target_arch = "riscv64")]
mod entries {
    #[cfg(feature = "emu")]
    use rt_emu as _;

    use core::mem::offset_of;

    use dpa::{CompletionQueue, Entity, HostLine, Next, Window, error, fatal, fence};

    use crate::shared::{Answer, Job, Watch};

    #[dpa::rpc]
    fn bring_up(argument: u64) -> u64 {
        dpa::abi::bring_up_answer(argument)
    }

    /// Adds up the numbers of a job and reports sum and largest; 0, or 1 if the window does not show them.
    #[dpa::rpc]
    fn sum(job: &Job) -> u64 {
        let Ok(window) = Window::configure(Entity::Zero, job.window_id, job.window_mkey) else { return 1 };
        let (Ok(numbers), Ok(answer)) =
            (window.words(job.numbers, job.count as usize), window.cell::<Answer>(job.answer))
        else {
            return 1;
        };
        // Lines that an earlier job has read may be stale.
        fence::window_invalidate();
        let mut found = Answer::default();
        for number in (0..numbers.len()).filter_map(|index| numbers.load(index)) {
            found.sum = found.sum.wrapping_add(number);
            found.largest = found.largest.max(number);
        }
        answer.store_part::<0, Answer>(&found);
        fence::window_writeback();
        answer.store_at::<{ offset_of!(Answer, done) }>(1);
        fence::window_writeback();
        0
    }

    /// Reports to the host, each time it is woken, the limit that it has set.
    #[dpa::event_handler]
    fn watch(context: &mut Watch) -> Next {
        let window = if context.activations == 0 {
            Window::configure(Entity::Zero, context.window_id, context.window_mkey)
        } else {
            Ok(Window::configured(Entity::Zero))
        };
        let answer = window.and_then(|window| window.cell::<Answer>(context.answer));
        let Ok(answer) = answer else { fatal(error::NO_RESOURCE) };
        context.activations += 1;
        let limit = HostLine::attach(&context.limit).snapshot();
        let waiting = CompletionQueue::attach(&context.queue).is_ready(0);
        let found = Answer { sum: context.activations, largest: limit, ..Answer::default() };
        answer.store_part::<0, Answer>(&found);
        fence::window_writeback();
        if waiting { Next::Retrigger } else { Next::Reschedule }
    }

    #[dpa::rpc]
    fn wake(activation_id: u64) -> u64 {
        dpa::entry::activate(activation_id as u32);
        0
    }
}

#[cfg(not(target_arch = "riscv64"))]
fn main() {
    println!("an image for the DPA: build it with `cargo xtask build sum`");
}

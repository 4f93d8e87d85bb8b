//! Reports to the host.

use core::mem::{offset_of, size_of};

use dpa::abi::progress::{REPORT_READING, REPORT_RELEASED};
use dpa::abi::{ProgressDetail, ProgressFlag, ProgressReport};
use dpa::{WindowCell, error, fatal, fence};

use super::ProgressEngine;

impl ProgressEngine<'_> {
    /// Notifies the host of what is new: a report, and then its number, with that of the last operation that is over.
    #[inline]
    pub(super) fn notify_host(&mut self) {
        if self.state.unreported != 0 {
            self.write_report();
        } else if self.state.unannounced | self.state.unacknowledged != 0 {
            self.announce();
            fence::window_writeback();
        }
    }

    /// States which report is the last, which operation that is over, and that the last command is carried out, once
    /// the line is written back.
    fn announce(&mut self) {
        self.state.unannounced = 0;
        let announced = u64::from(self.state.over) << 32 | self.state.report.number & 0xFFFF_FFFF;
        self.cell::<ProgressFlag>(self.set_up.flag_host).store_at::<{ offset_of!(ProgressFlag, announced) }>(announced);
        if self.state.unacknowledged != 0 {
            self.acknowledge();
        }
    }

    /// States that the last command is carried out, once the line is written back. What a report says of it is there
    /// before.
    fn acknowledge(&mut self) {
        self.state.unacknowledged = 0;
        let number = self.state.acknowledged;
        self.cell::<ProgressFlag>(self.set_up.flag_host).store_at::<{ offset_of!(ProgressFlag, acknowledged) }>(number);
    }

    #[inline(never)]
    fn write_report(&mut self) {
        self.state.unreported = 0;
        if self.state.undetailed != 0 {
            self.write_detail();
        }
        let deadline_ps = self.participant.deadline_ps().unwrap_or(u64::MAX);
        let reading = if self.is_reading() { REPORT_READING } else { 0 };
        let report = &mut self.state.report;
        report.flags = report.flags & !REPORT_READING | reading;
        report.deadline_ps = deadline_ps;
        report.number += 1;
        if report.released_ps != 0 {
            report.flags |= REPORT_RELEASED;
            self.state.over = report.operation;
        }
        let at = Self::turn::<ProgressReport>(self.set_up.report_host, report.number);
        self.cell::<ProgressReport>(at).store_part::<0, ProgressReport>(&self.state.report);
        fence::window_writeback();
        self.announce();
        // Also before anything of the report after the next, which takes this one's place.
        fence::window_writeback();
    }

    /// Writes the detail, which the report then announces.
    #[cold]
    #[inline(never)]
    fn write_detail(&mut self) {
        self.state.undetailed = 0;
        let number = self.state.report.detail.wrapping_add(1);
        (self.state.report.detail, self.state.detail.number) = (number, number);
        let details = self.set_up.report_host.wrapping_add(2 * size_of::<ProgressReport>() as u64);
        let at = Self::turn::<ProgressDetail>(details, number.into());
        self.cell::<ProgressDetail>(at).store_part::<0, ProgressDetail>(&self.state.detail);
    }

    /// Which one of two structures from an address on number `number` is written to.
    const fn turn<T>(first: u64, number: u64) -> u64 {
        first.wrapping_add(if number & 1 == 0 { 0 } else { size_of::<T>() as u64 })
    }

    fn cell<T>(&self, host_address: u64) -> WindowCell<T> {
        self.window.cell(host_address).unwrap_or_else(|_| fatal(error::NO_RESOURCE))
    }
}

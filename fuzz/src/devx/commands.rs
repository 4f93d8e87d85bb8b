//! The commands that make objects, field by field (layouts: mlx5 PRM).

use core::ptr::null_mut;

use super::{Devx, Object, errno, kind, mailbox_opcode};
use crate::call;
use crate::input::Input;

/// Bytes of the commands with a context.
pub(super) const BYTES: usize = 272;

/// Bytes of a command, filled by field.
pub(super) struct Mailbox(pub(super) Vec<u8>);

impl Mailbox {
    pub(super) fn new(opcode: u32, bytes: usize) -> Self {
        let mut this = Mailbox(vec![0; bytes]);
        this.set(0, 0, 16, opcode);
        this
    }

    /// Sets `width` bits from `bit` (0 = most significant) of the big-endian dword at `offset`.
    pub(super) fn set(&mut self, offset: usize, bit: u32, width: u32, value: u32) {
        let shift = 32 - bit - width;
        let mask = (u32::MAX >> (32 - width)) << shift;
        let at = &mut self.0[offset..offset + 4];
        let old = u32::from_be_bytes([at[0], at[1], at[2], at[3]]);
        at.copy_from_slice(&(old & !mask | value << shift & mask).to_be_bytes());
    }

    pub(super) fn set_u64(&mut self, offset: usize, value: u64) {
        self.0[offset..offset + 8].copy_from_slice(&value.to_be_bytes());
    }
}

impl Devx<'_> {
    pub(super) fn create(&mut self, input: &mut Input<'_>) {
        let card = usize::from(input.u8() % 2);
        let kind = input.u8() % kind::COUNT;
        let mut service = 0;
        let mailbox = match kind {
            kind::CQ => self.create_cq(input, card),
            kind::QP => {
                service = u32::from(input.u8() % 4);
                self.create_qp(input, card, service)
            }
            kind::MKEY | kind::UMR_KEY => self.create_mkey(input, card, kind),
            kind::GROUP => {
                let mut mailbox = Mailbox::new(0x806, 0x20);
                mailbox.set(8, 8, 24, self.number(input, card, kind::QP));
                let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 239, 1, 1, input.u8()];
                mailbox.0[0x10..0x20].copy_from_slice(&gid);
                mailbox
            }
            kind::PD => Mailbox::new(0x800, 16),
            kind::ALIAS => {
                let mut m = Mailbox::new(0xA00, 0x50);
                m.set(4, 16, 16, 0xFF01);
                m.set(0xC, 0, 1, 1);
                m.set(0x10, 0, 16, self.vhca);
                m.set(0x14, 0, 32, self.number(input, 0, kind::MKEY));
                m.0[0x20..0x40].fill(input.u8());
                m.set(0x40, 0, 32, self.arm.2);
                m
            }
            _ => Mailbox::new(input.u16().into(), BYTES),
        };
        // Aliases are for the Arm cores; what is of another function is refused.
        let context = if kind == kind::ALIAS { self.arm.0 } else { self.contexts[card] };
        let mut handle = null_mut();
        let answer = self.command(input, &mailbox, 16, |verbs, i, il, o, ol| {
            handle = call!(verbs, mlx5dv_devx_obj_create(context, i, il, o, ol));
            if handle.is_null() { errno() } else { 0 }
        });
        if handle.is_null() {
            return;
        }
        let number = answer[8..12].iter().fold(0, |number, &byte| number << 8 | u32::from(byte)) & 0xFF_FFFF;
        // The opcode may have been patched into another one.
        let made = mailbox_opcode(&self.program.contents(1));
        let kind = match made {
            0x400 => kind::CQ,
            0x500 => kind::QP,
            0x200 => kind::MKEY,
            0x800 => kind::PD,
            0xA00 => kind::ALIAS,
            _ => kind::GROUP,
        };
        assert!(number != 0 || kind == kind::GROUP, "an object has a number");
        self.objects.push(Object { handle, card, kind, number, service });
    }

    fn umem(&self, input: &mut Input<'_>) -> (u32, u64) {
        let which = usize::from(input.u8());
        let (_, _, id, base) = self.umems[which % self.umems.len()];
        (id, base)
    }

    fn create_cq(&mut self, input: &mut Input<'_>, card: usize) -> Mailbox {
        let _ = card;
        let (umem, _) = self.umem(input);
        let (ring, record, log, thread) = (input.u8(), input.u8(), input.u8(), input.u8());
        let mut m = Mailbox::new(0x400, BYTES);
        const CONTEXT: usize = 0x10;
        m.set(CONTEXT, 6, 1, 1);
        m.set(CONTEXT + 4, 0, 32, umem);
        m.set(CONTEXT + 0xC, 3, 5, log.into());
        m.set(CONTEXT + 0xC, 8, 24, 1);
        if thread & 1 == 1 {
            m.set(CONTEXT, 7, 1, 1);
            m.set(CONTEXT, 24, 1, 1);
            m.set(CONTEXT + 0x14, 0, 32, self.thread);
        }
        m.set_u64(CONTEXT + 0x38, u64::from(record) * 64);
        m.set_u64(0x50, u64::from(ring) * 64);
        m.set(0x58, 0, 32, umem);
        m.set(0x5C, 0, 1, 1);
        m
    }

    fn create_qp(&mut self, input: &mut Input<'_>, card: usize, service: u32) -> Mailbox {
        let (umem, _) = self.umem(input);
        let (ring, record) = (input.u8(), input.u8());
        let (send_cq, receive_cq) = (self.number(input, card, kind::CQ), self.number(input, card, kind::CQ));
        let (log_sends, log_receives) = (input.u8(), input.u8());
        let mut m = Mailbox::new(0x500, BYTES);
        const CONTEXT: usize = 0x18;
        m.set(CONTEXT, 8, 8, service);
        m.set(CONTEXT, 19, 2, 3);
        m.set(CONTEXT + 4, 8, 24, self.pd_numbers[card]);
        m.set(CONTEXT + 8, 9, 4, log_receives.into());
        m.set(CONTEXT + 8, 17, 4, log_sends.into());
        m.set(CONTEXT + 0xC, 8, 24, 1);
        m.set(CONTEXT + 0x7C, 8, 24, send_cq);
        m.set(CONTEXT + 0x9C, 8, 24, receive_cq);
        m.set_u64(CONTEXT + 0xA0, u64::from(record) * 64);
        m.set(CONTEXT + 0xD0, 3, 1, 1);
        m.set(CONTEXT + 0xE4, 0, 32, umem);
        m.set_u64(0x100, u64::from(ring) * 64);
        m.set(0x108, 0, 32, umem);
        m.set(0x10C, 0, 1, 1);
        m
    }

    fn create_mkey(&mut self, input: &mut Input<'_>, card: usize, kind: u8) -> Mailbox {
        let mut m = Mailbox::new(0x200, BYTES);
        const CONTEXT: usize = 0x10;
        m.set(CONTEXT + 4, 0, 24, 0xFF_FFFF);
        m.set(CONTEXT + 0xC, 8, 24, self.pd_numbers[card]);
        if kind == kind::UMR_KEY {
            m.set(CONTEXT, 1, 1, 1);
            m.set(CONTEXT, 16, 1, 1);
            m.set(CONTEXT, 22, 2, 2);
            m.set(CONTEXT + 0x34, 0, 32, input.u8().into());
        } else {
            let (umem, base) = self.umem(input);
            let (offset, len) = (u64::from(input.u8()) * 64, u64::from(input.u8()) * 64);
            m.set(CONTEXT, 17, 4, 0xF);
            m.set(CONTEXT, 22, 2, 1);
            m.set_u64(CONTEXT + 0x10, base + offset);
            m.set_u64(CONTEXT + 0x18, len);
            m.set(0x64, 0, 32, umem);
            m.set_u64(0x68, offset);
            m.set(0xC, 1, 1, 1);
        }
        m.set(CONTEXT + 4, 24, 8, input.u8().into());
        m
    }
}

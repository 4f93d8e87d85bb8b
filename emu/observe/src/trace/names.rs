//! Numbers in words.

use emu_machine::nic::{PacketNote, Transport, cqe_opcode};
use emu_machine::{Ending, layout::call};

/// A packet by its operation, as the InfiniBand specification names the opcodes of the base transport header.
pub(super) fn packet(packet: &PacketNote) -> String {
    let service = match packet.transport {
        Transport::Rc => "RC",
        Transport::Uc => "UC",
        Transport::Ud => "UD",
        Transport::Ethernet => return "Ethernet frame".to_owned(),
    };
    let operation = match packet.opcode & 0x1F {
        0 => "SEND first",
        1 => "SEND middle",
        2 => "SEND last",
        3 => "SEND last with immediate",
        4 => "SEND only",
        5 => "SEND only with immediate",
        6 => "WRITE first",
        7 => "WRITE middle",
        8 => "WRITE last",
        9 => "WRITE last with immediate",
        10 => "WRITE only",
        11 => "WRITE only with immediate",
        12 => "READ request",
        13 => "READ response first",
        14 => "READ response middle",
        15 => "READ response last",
        16 => "READ response only",
        17 => "acknowledge",
        18 => "atomic acknowledge",
        19 => "compare and swap",
        20 => "fetch and add",
        22 => "SEND last with invalidate",
        23 => "SEND only with invalidate",
        other => return format!("{service} opcode {other:#04x}"),
    };
    format!("{service} {operation}")
}

pub(super) fn cqe(opcode: u8, syndrome: u8) -> String {
    match opcode {
        cqe_opcode::REQUESTER => "CQE: sent".to_owned(),
        cqe_opcode::RESPONDER_WRITE_IMMEDIATE => "CQE: WRITE with immediate arrived".to_owned(),
        cqe_opcode::RESPONDER_SEND => "CQE: SEND arrived".to_owned(),
        cqe_opcode::RESPONDER_SEND_IMMEDIATE => "CQE: SEND with immediate arrived".to_owned(),
        cqe_opcode::RESPONDER_SEND_INVALIDATE => "CQE: SEND with invalidate arrived".to_owned(),
        cqe_opcode::REQUESTER_ERROR => format!("CQE: send failed, syndrome {syndrome:#04x}"),
        cqe_opcode::RESPONDER_ERROR => format!("CQE: receive failed, syndrome {syndrome:#04x}"),
        other => format!("CQE: opcode {other}"),
    }
}

pub(super) fn rtos_call(number: u64) -> String {
    match number {
        call::RESCHEDULE => "reschedule",
        call::FINISH => "finish",
        call::RETRIGGER => "retrigger",
        call::PROCESS_FINISH => "process_finish",
        call::YIELD => "yield",
        call::OUTBOX_CONFIG => "outbox_config",
        call::WINDOW_CONFIG => "window_config",
        call::WINDOW_MKEY_CONFIG => "window_mkey_config",
        call::MSG => "msg",
        call::ERROR => "error",
        call::EVENT_HANDLER_ACTIVATE => "event_handler_activate",
        call::THREAD_ID => "get_thread_id",
        call::TLS => "get_thread_local_storage",
        call::OUTBOX_CONFIG_UAR_EXTENSION => "outbox_config_uar_extension",
        other => return format!("RTOS call {other}"),
    }
    .to_owned()
}

pub(super) fn ending(how: Ending) -> &'static str {
    match how {
        Ending::Reschedule => "reschedule",
        Ending::Retrigger => "retrigger",
        Ending::Finish => "finish",
        Ending::Return => "return",
        Ending::Crash => "crash",
        Ending::Stopped => "stopped",
    }
}

//! Connection management: two ends, what their programs wish, and a network that changes, loses and doubles datagrams.
//!
//! Checked: a datagram that is understood is written as it was read, where it has no fields that are not known; nobody
//! panics; and once both programs have forgotten everything, both ends become empty in bounded time.

use std::net::IpAddr;

use emu_librdmacm::protocol::agent::{Action, Agent, ConnId, Path, Terms};
use emu_librdmacm::protocol::mad::{MAD_BYTES, Mad};
use emu_librdmacm::protocol::service::{Service, Space};

use crate::input::Input;

const STREAM: Service = Service { space: Space::Tcp, port: 7471 };
const LOOKUP: Service = Service { space: Space::Udp, port: 7174 };
/// Steps of an input, and of the end that follows it.
const STEPS: usize = 400;
const LAST_STEPS: usize = 20_000;
const BACKLOG: usize = 4;

/// Steps that an input may have.
mod step {
    pub(super) const CONNECT: u8 = 0;
    pub(super) const QUERY: u8 = 1;
    pub(super) const ACCEPT: u8 = 2;
    pub(super) const REJECT: u8 = 3;
    pub(super) const ESTABLISH: u8 = 4;
    pub(super) const DISCONNECT: u8 = 5;
    pub(super) const DATA: u8 = 6;
    pub(super) const SHOW: u8 = 7;
    pub(super) const FORGET: u8 = 8;
    pub(super) const DELIVER: u8 = 9;
    pub(super) const LOSE: u8 = 10;
    pub(super) const DOUBLE: u8 = 11;
    pub(super) const CHANGE: u8 = 12;
    pub(super) const WAIT: u8 = 13;
    pub(super) const TAKE: u8 = 14;
    pub(super) const FORGE: u8 = 15;
    pub(super) const ALL: u8 = 16;
}

struct Net {
    agents: [Agent; 2],
    now_ps: u64,
    wire: Vec<(usize, [u8; MAD_BYTES])>,
    last: [ConnId; 2],
}

fn address(end: usize) -> IpAddr {
    [198, 18, 0, end as u8 + 1].into()
}

fn path(end: usize) -> Path {
    Path { port: 0, local: address(end), remote: address(1 - end) }
}

impl Net {
    fn new() -> Self {
        let mut agents = [Agent::new(7), Agent::new(0xFFFF_FFFE)];
        for agent in &mut agents {
            for service in [STREAM, LOOKUP] {
                let _ = agent.listen(service, None, BACKLOG);
            }
        }
        Self { agents, now_ps: 0, wire: Vec::new(), last: [ConnId(0); 2] }
    }

    fn act(&mut self) {
        for end in 0..2 {
            while let Some(action) = self.agents[end].take_action() {
                match action {
                    Action::Send { path: way, bytes } => {
                        assert_eq!(way, path(end));
                        self.wire.push((1 - end, *bytes));
                    }
                    Action::Report { conn, .. } => self.last[end] = conn,
                }
            }
        }
    }

    fn deliver(&mut self, at: usize) {
        if self.wire.is_empty() {
            return;
        }
        let (to, bytes) = self.wire.remove(at % self.wire.len());
        self.arrive(to, &bytes);
    }

    fn arrive(&mut self, to: usize, bytes: &[u8]) {
        if let Ok(mad) = Mad::decode(bytes) {
            assert_eq!(Mad::decode(&mad.encode()), Ok(mad), "what is understood is written as it was read");
        }
        self.agents[to].receive(path(to), bytes, self.now_ps);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let (kind, end) = (input.u8(), usize::from(input.u8() % 2));
        let (now_ps, last) = (self.now_ps, self.last[end]);
        let terms = Terms { qpn: 0x40, psn: 9, mtu: 5, responder_resources: 3, initiator_depth: 2, ..Terms::default() };
        let agent = &mut self.agents[end];
        match kind % step::ALL {
            step::CONNECT => _ = agent.connect(path(end), (STREAM, 5), &terms, &[1, 2, 3], now_ps),
            step::QUERY => _ = agent.query(path(end), (LOOKUP, 5), &[1, 2, 3], now_ps),
            step::ACCEPT => _ = agent.accept(last, &terms, &[4], now_ps),
            step::REJECT => _ = agent.reject(last, &[5], now_ps),
            step::ESTABLISH => _ = agent.establish(last),
            step::DISCONNECT => _ = agent.disconnect(last, now_ps),
            step::DATA => _ = agent.data_came(last),
            step::SHOW => _ = agent.show(last, (7, 8), &[6], now_ps),
            step::FORGET => agent.forget(last, now_ps),
            step::TAKE => agent.taken(last),
            step::DELIVER => self.deliver(input.u8().into()),
            step::LOSE => _ = (!self.wire.is_empty()).then(|| self.wire.remove(0)),
            step::DOUBLE => self.wire.extend(self.wire.first().copied()),
            step::CHANGE => {
                let (at, value) = (input.u8(), input.u8());
                if let Some((_, bytes)) = self.wire.last_mut() {
                    bytes[usize::from(at)] ^= value;
                }
            }
            step::FORGE => {
                let mut bytes = [0; MAD_BYTES];
                bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
                bytes[17] = 0x10 + input.u8() % 9;
                bytes[24..].iter_mut().take(40).for_each(|byte| *byte = input.u8());
                self.arrive(end, &bytes);
            }
            _ => {
                self.now_ps = agent.due_ps().unwrap_or(now_ps).max(now_ps);
                let now_ps = self.now_ps;
                self.agents.iter_mut().for_each(|agent| agent.tick(now_ps));
            }
        }
        self.act();
    }

    /// Both programs forget everything, and the network is a good one from now on.
    fn end(&mut self) {
        for _ in 0..LAST_STEPS {
            for end in 0..2 {
                for conn in self.agents[end].alive() {
                    self.agents[end].forget(conn, self.now_ps);
                }
            }
            self.act();
            if !self.wire.is_empty() {
                self.deliver(0);
                continue;
            }
            let Some(due_ps) = self.agents.iter().filter_map(Agent::due_ps).min() else { break };
            self.now_ps = self.now_ps.max(due_ps);
            let now_ps = self.now_ps;
            self.agents.iter_mut().for_each(|agent| agent.tick(now_ps));
        }
        assert!(self.agents.iter().all(|agent| agent.connections() == 0), "something is left");
    }
}

/// Handles one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut net = Net::new();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        net.step(&mut input);
    }
    net.end();
}

/// Connections undisturbed, refused, disturbed and forged.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    use step::{
        ACCEPT, CHANGE, CONNECT, DATA, DELIVER, DISCONNECT, DOUBLE, ESTABLISH, FORGE, FORGET, LOSE, QUERY, REJECT,
        SHOW, TAKE, WAIT,
    };
    let deliver = [DELIVER, 0, 0];
    let made = [&[CONNECT, 0][..], &deliver, &[TAKE, 1, ACCEPT, 1], &deliver, &[ESTABLISH, 0], &deliver].concat();
    let ended = [&made[..], &[DISCONNECT, 0], &deliver, &deliver, &[WAIT, 0, WAIT, 1]].concat();
    let both = [&made[..], &[DISCONNECT, 0, DISCONNECT, 1], &deliver, &deliver].concat();
    let refused = [&[CONNECT, 1][..], &deliver, &[REJECT, 0], &deliver].concat();
    let lost = [&[CONNECT, 0, LOSE, 0, WAIT, 0][..], &deliver, &[DOUBLE, 0, ACCEPT, 1, LOSE, 0, WAIT, 1]].concat();
    let queried = [&[QUERY, 0][..], &deliver, &[SHOW, 1], &deliver].concat();
    let changed = [&[CONNECT, 0, CHANGE, 0, 67, 2][..], &deliver, &[CONNECT, 0, CHANGE, 0, 165, 9], &deliver].concat();
    let mut forged = made.clone();
    forged.extend([DATA, 1, FORGE, 1, 5]);
    forged.extend([0; 40]);
    forged.extend([FORGET, 0]);
    vec![
        ("ended", ended),
        ("both", both),
        ("refused", refused),
        ("lost", lost),
        ("queried", queried),
        ("changed", changed),
        ("forged", forged),
    ]
}

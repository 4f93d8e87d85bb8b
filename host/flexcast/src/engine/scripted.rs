//! Scripted carrier in memory, and scripted protocol: what they answer is the test's.

use std::collections::VecDeque;
use std::fmt;

use flexcast_proto::wire::{Availability, Codec, Encoded};
use flexcast_proto::{
    Action, Algorithm, Body, Disagreement, Failure, Message, OperationDescriptor, PieceSet, RankInfo, StallWindow,
    Summary,
};

use super::carrier::{LetGo, Withdrawn};
use super::eager::Gathered;
use super::event::Event;
use super::{Admission, Carrier, Core, Engine, Exchange, Operation, Operations, Posted, Protocol};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::Config;
use crate::op::decision::Decision;
use crate::op::outcome::{Failed, Outcome};
use crate::op::report::{MessageCounts, Report};
use crate::op::stream::Stream;
use crate::plan::Plan;

/// What the engine calls of a carrier that may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    BeforeBegin,
    Prepare,
    Arm,
    Receive,
    Advance,
    SendMessage,
    Multicast,
    Read,
    SendData,
    Flush,
    Failed,
    MayEnd,
    Ended,
    HasLetGo,
    Renew,
    EndExchange,
}

impl Call {
    pub(crate) const ALL: [Self; 16] = [
        Self::BeforeBegin,
        Self::Prepare,
        Self::Arm,
        Self::Receive,
        Self::Advance,
        Self::SendMessage,
        Self::Multicast,
        Self::Read,
        Self::SendData,
        Self::Flush,
        Self::Failed,
        Self::MayEnd,
        Self::Ended,
        Self::HasLetGo,
        Self::Renew,
        Self::EndExchange,
    ];
}

/// A carrier that answers as it is configured. `S`: what it keeps of an operation.
pub(crate) struct Scripted<S> {
    pub(crate) now_ps: u64,
    /// How operations of blocks go.
    pub(crate) algorithm: Algorithm,
    /// The call that is refused, once.
    pub(crate) refuses: Option<Call>,
    /// Calls of [`Carrier::arm`] that are answered with "not yet".
    pub(crate) defers: u32,
    pub(crate) may_end: bool,
    pub(crate) let_go: LetGo,
    pub(crate) withdrawn: Withdrawn,
    /// What the engine has called, in this order.
    pub(crate) calls: Vec<Call>,
    pub(crate) wakes: u32,
    _keeps: std::marker::PhantomData<S>,
}

impl<S> Scripted<S> {
    fn call(&mut self, call: Call) -> Result<()> {
        self.calls.push(call);
        match self.refuses.take_if(|refused| *refused == call) {
            None => Ok(()),
            Some(call) => {
                Err(Error::Argument { operation: "scripted carrier", reason: format!("{call:?} is refused") })
            }
        }
    }
}

/// A protocol that asks for what the test wants, whatever it is notified of.
#[derive(Debug, Default)]
pub(crate) struct ScriptedProtocol {
    pub(crate) actions: VecDeque<Action>,
    /// Names of the events that it was notified of.
    pub(crate) events: Vec<String>,
    pub(crate) deadline_ps: Option<u64>,
    pub(crate) started: u32,
    gathered: Option<Gathered>,
}

impl Protocol for ScriptedProtocol {
    fn operation(&self) -> u32 {
        self.started + 1
    }

    fn start_eager(&mut self, _: OperationDescriptor, gathered: Gathered, _: u64) -> Result<()> {
        self.started += 1;
        self.gathered = Some(gathered);
        Ok(())
    }

    fn take_eager(&mut self) -> Result<Option<Gathered>> {
        Ok(self.gathered.take())
    }

    fn start_direct(&mut self, _: OperationDescriptor, _: u64) {
        self.started += 1;
    }

    fn handle(&mut self, _: u64, event: Event<'_>) {
        let text = format!("{event:?}");
        self.events.push(text.split([' ', '(']).next().unwrap_or_default().to_owned());
        if let Event::Failed(failure) | Event::Crashed(failure) = event {
            self.actions.push_back(Action::Fail(failure));
        }
    }

    fn next(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn encode(&mut self, message: &Message) -> Option<(Encoded, Vec<u8>)> {
        Some((Codec::new(1, 2).encode(message, Availability::default()), Vec::new()))
    }

    fn offer(&self) -> Option<Availability> {
        None
    }

    fn deadline_ps(&self) -> Option<u64> {
        self.deadline_ps
    }

    fn note(&self, _: u64, _: &mut Report) {}

    fn messages(&self) -> MessageCounts {
        MessageCounts::default()
    }

    fn disagreement(&self) -> Option<Disagreement> {
        None
    }
}

/// Who a scripted engine's protocol is.
pub(crate) trait Script: Protocol + fmt::Debug + 'static {}

impl<P: Protocol + fmt::Debug + 'static> Script for P {}

/// A carrier with a protocol.
pub(crate) struct With<P, S>(pub(crate) Scripted<S>, std::marker::PhantomData<fn() -> P>);

impl<P: Script, S: Default + fmt::Debug + Send + 'static> With<P, S> {
    /// The engine of a rank of two, with this protocol.
    pub(crate) fn engine(rank: u32, config: Config, protocol: P) -> Engine<Self> {
        let carrier = Scripted {
            now_ps: 0,
            algorithm: Algorithm::Multicast,
            refuses: None,
            defers: 0,
            may_end: true,
            let_go: LetGo::Yes,
            withdrawn: Withdrawn::Clean,
            calls: Vec::new(),
            wakes: 0,
            _keeps: std::marker::PhantomData,
        };
        let place = RankInfo::new(rank, 2).expect("a rank of two");
        let core = Core::new(place, 1, config);
        Engine::new(Self(carrier, std::marker::PhantomData), core, protocol, StallWindow::new(1_000_000))
    }
}

impl<P: Script, S: Default + fmt::Debug + Send + 'static> Carrier for With<P, S> {
    type Protocol = P;
    type Purpose = ();
    type Stream = S;
    type Work = ();

    fn now_ps(&self) -> u64 {
        self.0.now_ps
    }

    fn admission(&self, _: &Config) -> Admission {
        let stream = Stream { subgroup: 0, peer: None };
        Admission { registered: false, collectives: Ok(()), streams: vec![stream], psn_bits: 24, most_chunks: 1 << 20 }
    }

    fn before_begin(&mut self, _: &mut Operations<Self>, _: u64) -> Result<()> {
        self.0.call(Call::BeforeBegin)
    }

    fn decide(&mut self, _: &mut Operations<Self>, _: &Plan) -> Decision {
        Decision::of(self.0.algorithm)
    }

    fn begin_collective(
        engine: &mut Engine<Self>,
        posted: Posted<Collective>,
        now_ps: u64,
    ) -> std::result::Result<(), Box<Failed>> {
        let summary = posted.plan.summary(Algorithm::Dissemination);
        let posted = posted.map(|collective| (collective.kind().name(), ()));
        engine.ops.begin_exchange(posted, (summary, Decision::of(Algorithm::Dissemination)), (1, 0), now_ps);
        Ok(())
    }

    fn begin_direct(
        engine: &mut Engine<Self>,
        posted: Posted,
        decision: Decision,
        now_ps: u64,
    ) -> std::result::Result<(), Box<Failed>> {
        engine.begin_blocks(posted, decision, (), now_ps)
    }

    fn prepare(&mut self, _: &mut Operations<Self>, _: &mut Posted, _: &Decision) -> Result<S> {
        self.0.call(Call::Prepare)?;
        Ok(S::default())
    }

    fn arm(&mut self, _: &mut Operations<Self>, _: u64) -> Result<bool> {
        self.0.call(Call::Arm)?;
        let is_taken = self.0.defers == 0;
        self.0.defers = self.0.defers.saturating_sub(1);
        Ok(is_taken)
    }

    fn withdraw(&mut self, _: &mut Operation<Self>) -> Withdrawn {
        self.0.withdrawn
    }

    fn receive(&mut self, _: &mut Operations<Self>, _: u64) -> Result<bool> {
        self.0.call(Call::Receive).map(|()| false)
    }

    fn advance(engine: &mut Engine<Self>, moved: bool, now_ps: u64) -> Result<bool> {
        engine.carrier.0.call(Call::Advance)?;
        Ok(engine.start_deferred(now_ps) || moved)
    }

    fn send_message(&mut self, _: &mut Operations<Self>, _: u32, _: u32, _: (Encoded, Vec<u8>)) -> Result<()> {
        self.0.call(Call::SendMessage)
    }

    fn multicast(&mut self, _: &mut Operations<Self>, _: u64) -> Result<()> {
        self.0.call(Call::Multicast)
    }

    fn read(&mut self, _: &mut Operations<Self>, _: u32, _: &PieceSet, _: Option<Availability>) -> Result<()> {
        self.0.call(Call::Read)
    }

    fn send_data(&mut self, _: &mut Operations<Self>, _: u64) -> Result<bool> {
        self.0.call(Call::SendData).map(|()| false)
    }

    fn flush(&mut self, _: &mut Operations<Self>, _: u64) -> Result<()> {
        self.0.call(Call::Flush)
    }

    fn failed(&mut self, _: &mut Operations<Self>, _: Failure, _: u64) -> Result<()> {
        self.0.call(Call::Failed)
    }

    fn may_end(&mut self, _: &mut Operations<Self>, _: u64) -> Result<bool> {
        self.0.call(Call::MayEnd)?;
        Ok(self.0.may_end)
    }

    fn ended(&mut self, _: &mut Operations<Self>, _: &mut Operation<Self>, _: u64) -> Result<()> {
        self.0.call(Call::Ended)
    }

    fn has_let_go(&mut self, _: &mut Operations<Self>, _: u64) -> Result<LetGo> {
        self.0.call(Call::HasLetGo)?;
        Ok(self.0.let_go)
    }

    fn renew(&mut self, buffer: Buffer) -> Result<Buffer> {
        self.0.call(Call::Renew)?;
        Ok(buffer)
    }

    fn may_end_exchange(&mut self, _: &mut Operations<Self>, _: u64) -> bool {
        self.0.may_end
    }

    fn end_exchange(&mut self, ops: &mut Operations<Self>, exchange: Exchange<Self>, _: u64) -> Result<Outcome> {
        self.0.call(Call::EndExchange)?;
        Ok(exchange.into_outcome(|name, failure| ops.core.requests.failed(name, failure, None)))
    }

    fn deadline_ps(&self, ops: &Operations<Self>) -> Option<u64> {
        ops.current.as_ref().map(|operation| operation.deadline_ps)
    }

    fn wake(&mut self) {
        self.0.wakes += 1;
    }
}

/// A message of operation number 1.
pub(crate) fn message() -> Message {
    let summary = Summary::broadcast(0, 1, 64);
    Message { operation: 1, body: Body::Barrier { round: 0, summary } }
}

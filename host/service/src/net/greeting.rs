//! The greeting of a connection and the exchange of its queue pairs, as state machines of both sides without IO.
//!
//! HELLO, CHALLENGE and PROOF of both sides say who is there: from then on messages have tags. WELCOME says what there
//! is room for. Then both sides say LINK, first the one that connects. It connects its queue pair and says HEARTBEAT;
//! the other connects its own and says HEARTBEAT as well. Only then is anything sent by the queue pairs: no message
//! comes to one that is not ready.

use flexcast_proto::service::wire::{
    Accepted, Accepting, Body, Confirming, Connecting, FormatError, Hello, HelloError, Link, Rejection, Role, Secret,
    Session, TAG_BYTES, Welcome,
};
use thiserror::Error;

use super::counts::Reason;
use super::keyed_hash;

/// Why a connection was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GreetingError {
    /// The tags do not fit.
    #[error("{0}")]
    Hello(HelloError),
    /// The service process refuses.
    #[error("{0}")]
    Rejected(Rejection),
    /// What has come is no message.
    #[error("{0}")]
    Format(FormatError),
    /// A message with another tag than is due.
    #[error(
        "what comes was changed, copied or inserted on the way: find out who has access to the network between the \
         two"
    )]
    Forged,
    /// A message out of order.
    #[error("the other side sends something else where {expected} is due: is it a service process of this release?")]
    Order {
        /// What is due.
        expected: &'static str,
    },
}

impl GreetingError {
    /// How a service process counts it, and what it answers.
    pub(crate) const fn reason_and_answer(self) -> (Reason, Option<Rejection>) {
        match self {
            Self::Hello(HelloError::Tag) | Self::Rejected(Rejection::Secret) => {
                (Reason::Secret, Some(Rejection::Secret))
            }
            Self::Format(FormatError::Version { .. }) => (Reason::Version, Some(Rejection::Format)),
            Self::Rejected(Rejection::Stopping) => (Reason::Stopping, None),
            Self::Rejected(Rejection::Crossing) => (Reason::Crossing, None),
            Self::Rejected(Rejection::Connections { .. }) => (Reason::Connections, None),
            Self::Rejected(Rejection::Crowded { .. }) => (Reason::Crowded, None),
            Self::Forged => (Reason::Format, None),
            _ => (Reason::Format, Some(Rejection::Format)),
        }
    }
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send this.
    Say(Body<'static>),
    /// Who connects knows the secret: take it, or not; then [`Incoming::accept`].
    Decide(Hello),
    /// The service process takes the connection: messages have tags from now on.
    Establish(Box<Session>),
    /// The service process takes the connection: open a queue pair and send its LINK.
    Open,
    /// The queue pair of the other side: where this side has none yet it opens one and sends its LINK; who has one
    /// connects it and sends HEARTBEAT.
    Far(Link),
    /// Both queue pairs are connected.
    There,
}

/// Who is connected to, in a greeting.
#[derive(Debug)]
pub(crate) enum Incoming {
    Hello {
        nonce: [u8; TAG_BYTES],
    },
    Proof(Accepting),
    Decided(Accepted),
    Link,
    /// The queue pair of the other side, which is not ready yet.
    Ready(Link),
    Over,
}

impl Incoming {
    /// `nonce`: fresh random bytes.
    pub(crate) const fn new(nonce: [u8; TAG_BYTES]) -> Self {
        Self::Hello { nonce }
    }

    /// Takes a message.
    ///
    /// # Errors
    /// The connection is to be refused.
    pub(crate) fn receive(&mut self, body: &Body<'_>, secret: &Secret) -> Result<Step, GreetingError> {
        match (std::mem::replace(self, Self::Over), body) {
            (Self::Hello { nonce }, Body::Hello(hello)) => {
                let accepting = Accepting::new(secret, *hello, nonce, &keyed_hash);
                let (accepting, challenge) = accepting.map_err(GreetingError::Hello)?;
                *self = Self::Proof(accepting);
                Ok(Step::Say(Body::Challenge(challenge)))
            }
            (Self::Proof(accepting), Body::Proof(proof)) => {
                let accepted = accepting.check(proof, &keyed_hash).map_err(GreetingError::Hello)?;
                let hello = accepted.hello();
                *self = Self::Decided(accepted);
                Ok(Step::Decide(hello))
            }
            (Self::Proof(_), Body::Rejected(Rejection::Secret)) => Err(GreetingError::Rejected(Rejection::Secret)),
            (Self::Link, Body::Link(link)) => {
                *self = Self::Ready(*link);
                Ok(Step::Far(*link))
            }
            (Self::Ready(_), Body::Heartbeat(_)) => Ok(Step::There),
            (state, _) => Err(GreetingError::Order { expected: state.expected() }),
        }
    }

    /// The connection is taken: what to send, and what messages have tags of from then on; WELCOME is the first of
    /// them. None where nothing is to be decided.
    pub(crate) fn accept(&mut self) -> Option<(Body<'static>, Session)> {
        let Self::Decided(accepted) = std::mem::replace(self, Self::Over) else { return None };
        *self = Self::Link;
        let (proof, session) = accepted.accept(&keyed_hash);
        Some((Body::Proof(proof), session))
    }

    /// The queue pair of the other side, while that is not ready.
    pub(crate) const fn far(&self) -> Option<Link> {
        if let Self::Ready(link) = self { Some(*link) } else { None }
    }

    const fn expected(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "HELLO",
            Self::Proof(_) => "PROOF",
            Self::Link => "LINK",
            Self::Ready(_) => "HEARTBEAT",
            Self::Decided(_) | Self::Over => "nothing",
        }
    }
}

/// Who connects, in a greeting.
#[derive(Debug)]
pub(crate) enum Outgoing {
    Challenge(Connecting),
    Proof(Confirming),
    Welcome,
    Link(Welcome),
    Ready(Welcome),
    Over,
}

impl Outgoing {
    /// Begins, and what to send first. `epoch`: drawn when this side started; `nonce`: fresh random bytes.
    pub(crate) fn new(secret: &Secret, role: Role, epoch: u64, nonce: [u8; TAG_BYTES]) -> (Self, Body<'static>) {
        let connecting = Connecting::new(secret.clone(), role, epoch, nonce);
        let hello = Body::Hello(connecting.hello());
        (Self::Challenge(connecting), hello)
    }

    /// Takes a message.
    ///
    /// # Errors
    /// There will be no connection.
    pub(crate) fn receive(&mut self, body: &Body<'_>) -> Result<Step, GreetingError> {
        match (std::mem::replace(self, Self::Over), body) {
            (_, Body::Rejected(rejection)) => Err(GreetingError::Rejected(*rejection)),
            (Self::Challenge(connecting), Body::Challenge(challenge)) => {
                let (confirming, proof) = connecting.answer(challenge, &keyed_hash).map_err(GreetingError::Hello)?;
                *self = Self::Proof(confirming);
                Ok(Step::Say(Body::Proof(proof)))
            }
            (Self::Proof(confirming), Body::Proof(proof)) => {
                let session = confirming.conclude(proof, &keyed_hash).map_err(GreetingError::Hello)?;
                *self = Self::Welcome;
                Ok(Step::Establish(Box::new(session)))
            }
            (Self::Welcome, Body::Welcome(welcome)) => {
                *self = Self::Link(*welcome);
                Ok(Step::Open)
            }
            (Self::Link(welcome), Body::Link(link)) => {
                *self = Self::Ready(welcome);
                Ok(Step::Far(*link))
            }
            (Self::Ready(welcome), Body::Heartbeat(_)) => {
                *self = Self::Ready(welcome);
                Ok(Step::There)
            }
            (state, _) => Err(GreetingError::Order { expected: state.expected() }),
        }
    }

    /// What the service process has said of itself.
    pub(crate) const fn welcome(&self) -> Option<Welcome> {
        if let Self::Link(welcome) | Self::Ready(welcome) = self { Some(*welcome) } else { None }
    }

    const fn expected(&self) -> &'static str {
        match self {
            Self::Challenge(_) => "CHALLENGE",
            Self::Proof(_) => "PROOF",
            Self::Welcome => "WELCOME",
            Self::Link(_) => "LINK",
            Self::Ready(_) => "HEARTBEAT",
            Self::Over => "nothing",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexcast_proto::service::wire::Heartbeat;

    const WELCOME: Welcome = Welcome { epoch: 3, heartbeat_ms: 100, groups: 4, collectives: 2 };
    const LINK: Link = Link { gid: [1; 16], mac: [2; 6], queue_pair: 3, nonce: [4; 16] };
    const HEARTBEAT: Body<'static> = Body::Heartbeat(Heartbeat { number: 1, seen: 0 });

    fn pair(secrets: [u8; 2]) -> (Incoming, Outgoing, Body<'static>, Secret) {
        let (outgoing, hello) = Outgoing::new(&Secret::new([secrets[0]; 32]), Role::Rank, 7, [1; 32]);
        (Incoming::new([2; 32]), outgoing, hello, Secret::new([secrets[1]; 32]))
    }

    fn said(step: Result<Step, GreetingError>) -> Body<'static> {
        match step {
            Ok(Step::Say(body)) => body,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_sides_are_there_after_both_heartbeats() {
        let (mut incoming, mut outgoing, hello, secret) = pair([9, 9]);
        let challenge = said(incoming.receive(&hello, &secret));
        let proof = said(outgoing.receive(&challenge));
        assert!(matches!(incoming.receive(&proof, &secret), Ok(Step::Decide(Hello { epoch: 7, .. }))));
        let (proof, theirs) = incoming.accept().expect("it is to be decided");
        let Ok(Step::Establish(own)) = outgoing.receive(&proof) else { panic!("no session") };
        assert_eq!((own.send, own.receive), (theirs.receive, theirs.send));
        assert_eq!(outgoing.receive(&Body::Welcome(WELCOME)), Ok(Step::Open));
        assert_eq!(incoming.receive(&Body::Link(LINK), &secret), Ok(Step::Far(LINK)));
        assert_eq!(outgoing.receive(&Body::Link(LINK)), Ok(Step::Far(LINK)));
        assert_eq!(incoming.far(), Some(LINK));
        assert_eq!(incoming.receive(&HEARTBEAT, &secret), Ok(Step::There));
        assert_eq!((outgoing.receive(&HEARTBEAT), outgoing.welcome()), (Ok(Step::There), Some(WELCOME)));
    }

    #[test]
    fn another_secret_is_seen_by_who_connects_and_reported() {
        let (mut incoming, mut outgoing, hello, secret) = pair([9, 8]);
        let challenge = said(incoming.receive(&hello, &secret));
        let error = outgoing.receive(&challenge).expect_err("another secret");
        assert_eq!(error.reason_and_answer(), (Reason::Secret, Some(Rejection::Secret)));
        let error = incoming.receive(&Body::Rejected(Rejection::Secret), &secret).expect_err("reported");
        assert_eq!(error.reason_and_answer().0, Reason::Secret);
    }

    #[test]
    fn whatever_is_not_due_is_refused() {
        let (incoming, _, hello, secret) = pair([9, 9]);
        let mut states = vec![(incoming, "HELLO")];
        let (mut incoming, mut outgoing, ..) = pair([9, 9]);
        let proof = said(outgoing.receive(&said(incoming.receive(&hello, &secret))));
        incoming.receive(&proof, &secret).expect("the secret");
        states.push((incoming, "nothing"));
        let (mut incoming, mut outgoing, hello, secret) = pair([9, 9]);
        assert!(incoming.accept().is_none(), "nothing is to be decided");
        incoming = pair([9, 9]).0;
        let proof = said(outgoing.receive(&said(incoming.receive(&hello, &secret))));
        incoming.receive(&proof, &secret).expect("the secret");
        incoming.accept().expect("it is to be decided");
        states.push((incoming, "LINK"));
        for (mut state, due) in states {
            for body in [Body::Goodbye, Body::Proof(flexcast_proto::service::wire::Proof { tag: [0; 32] }), HEARTBEAT] {
                let error = state.receive(&body, &secret).expect_err("not due");
                assert!(matches!(error, GreetingError::Order { .. }), "{due}: {error}");
            }
        }
    }
}

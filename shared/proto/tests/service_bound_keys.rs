//! Every interleaving of a program that binds one key to several regions, its service process, a peer that reads by the
//! alias, and messages that come late: no access under one binding ever reaches the region of another one, none reaches
//! memory that the program has again, and memory that is taken back comes back. The program may lie, and either side
//! may die.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::support::check::check;
use flexcast_proto::service::{BoundKey, LettingGo};
use stateright::{Model, Property};

/// What happens in addition to calls and their ends.
#[derive(Clone, Copy, Debug, Default)]
struct Plan {
    /// Bindings, one after another.
    bindings: u32,
    /// A program that says that its calls have ended when they have not.
    lies: bool,
    /// Messages of older bindings come once more.
    replays: u8,
    /// Who dies, if anybody.
    program_dies: bool,
    process_dies: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Said {
    Export(u32),
    /// A call that names an alias: of which binding the program means it.
    Start(u32, u32),
    Revoke(u32, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Notice {
    Alias(u32),
    Refused(u32),
    Failed(u32),
    Revoked(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Known {
    Posted,
    Refused,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// The card: what the key is bound to, and the alias that is alive.
    bound: Option<u32>,
    alias: Option<u32>,
    next_alias: u32,
    /// The program.
    is_alive: bool,
    binding: u32,
    holds: bool,
    taken_back: bool,
    known_alias: u32,
    calls: BTreeMap<u32, Known>,
    flags: BTreeSet<u32>,
    returned: BTreeSet<u32>,
    said: VecDeque<Said>,
    notices: VecDeque<Notice>,
    /// The service process.
    serves: bool,
    key: BoundKey,
    in_use: BTreeSet<u32>,
    /// Reads of a peer under way: by which alias, and of which binding.
    reads: BTreeSet<(u32, u32)>,
    replays: u8,
    wrong: Option<&'static str>,
    replaced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Bind,
    Call,
    TakeBack {
        is_idle: bool,
    },
    Receive,
    Listen,
    Read(u32, u32),
    /// A call fails since another rank dies; the Read by the peer goes on.
    Fail(u32),
    Replay(Said),
    ProgramDies,
    LossIsSeen,
    ProcessDies,
    EndIsSeen,
}

impl World {
    fn let_go(&mut self, binding: u32, how: LettingGo) {
        match how {
            LettingGo::Waits => return,
            LettingGo::Unknown | LettingGo::Now => {}
            LettingGo::Replace => {
                self.alias = Some(self.next_alias);
                self.notices.push_back(Notice::Alias(self.next_alias));
                self.next_alias += 1;
                self.replaced = true;
            }
        }
        self.notices.push_back(Notice::Revoked(binding));
    }

    /// Something of a binding is over. What uses another one is no matter to it.
    fn settle(&mut self, binding: u32) {
        let how = if self.key.last() == binding { self.key.settle(self.in_use.contains(&binding)) } else { return };
        if how != LettingGo::Unknown {
            self.let_go(binding, how);
        }
    }

    fn receive(&mut self, said: Said) {
        match said {
            Said::Export(binding) => _ = self.key.bind(binding),
            Said::Start(alias, binding) => {
                if self.alias == Some(alias) && self.key.binding() == Some(binding) {
                    self.in_use.insert(binding);
                    self.reads.insert((alias, binding));
                } else {
                    self.notices.push_back(Notice::Refused(binding));
                }
            }
            Said::Revoke(binding, is_idle) => {
                let how = self.key.revoke(binding, is_idle, self.in_use.contains(&binding));
                self.let_go(binding, how);
            }
        }
    }

    /// A call is over for this process.
    fn over(&mut self, binding: u32, well: bool) {
        if !self.in_use.remove(&binding) {
            return;
        }
        if well {
            self.flags.insert(binding);
        } else {
            self.key.doubt(binding);
            self.notices.push_back(Notice::Failed(binding));
        }
        self.settle(binding);
    }

    fn is_idle(&self) -> bool {
        self.flags.contains(&self.binding)
            || !matches!(self.calls.get(&self.binding), Some(Known::Posted | Known::Failed))
    }
}

impl Model for Plan {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            bound: None,
            alias: Some(1),
            next_alias: 2,
            is_alive: true,
            binding: 0,
            holds: false,
            taken_back: false,
            known_alias: 1,
            calls: BTreeMap::new(),
            flags: BTreeSet::new(),
            returned: BTreeSet::new(),
            said: VecDeque::new(),
            notices: VecDeque::new(),
            serves: true,
            key: BoundKey::new(),
            in_use: BTreeSet::new(),
            reads: BTreeSet::new(),
            replays: self.replays,
            wrong: None,
            replaced: false,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.is_alive {
            if !world.holds && world.serves && world.binding < self.bindings {
                steps.push(Step::Bind);
            }
            if world.holds && !world.taken_back {
                if !world.calls.contains_key(&world.binding) {
                    steps.push(Step::Call);
                }
                steps.push(Step::TakeBack { is_idle: world.is_idle() });
                if self.lies && !world.is_idle() {
                    steps.push(Step::TakeBack { is_idle: true });
                }
            }
            if !world.notices.is_empty() {
                steps.push(Step::Listen);
            }
            if world.replays > 0 && world.serves {
                let old = (1..world.binding).flat_map(|binding| [Said::Export(binding), Said::Revoke(binding, true)]);
                steps.extend(old.map(Step::Replay));
            }
            if self.program_dies {
                steps.push(Step::ProgramDies);
            }
            if !world.serves && world.holds {
                steps.push(Step::EndIsSeen);
            }
        } else if world.serves && world.alias.is_some() {
            steps.push(Step::LossIsSeen);
        }
        if world.serves {
            if !world.said.is_empty() {
                steps.push(Step::Receive);
            }
            steps.extend(world.in_use.iter().map(|binding| Step::Fail(*binding)));
            if self.process_dies {
                steps.push(Step::ProcessDies);
            }
        }
        steps.extend(world.reads.iter().map(|(alias, binding)| Step::Read(*alias, *binding)));
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        match step {
            Step::Bind => {
                world.binding += 1;
                (world.holds, world.taken_back) = (true, false);
                if world.bound.replace(world.binding).is_some() {
                    world.wrong = Some("the key has a binding already");
                }
                world.said.push_back(Said::Export(world.binding));
            }
            Step::Call => {
                world.calls.insert(world.binding, Known::Posted);
                world.said.push_back(Said::Start(world.known_alias, world.binding));
            }
            Step::TakeBack { is_idle } => {
                world.taken_back = true;
                world.said.push_back(Said::Revoke(world.binding, is_idle));
            }
            Step::Receive => {
                let said = world.said.pop_front()?;
                world.receive(said);
            }
            Step::Replay(said) => {
                world.replays -= 1;
                let before = (world.key, world.alias);
                // KEY-REVOKED of an older binding may be said again: the program does not mind.
                world.receive(said);
                if (world.key, world.alias) != before {
                    world.wrong = Some("a message of an older binding has changed something");
                }
            }
            Step::Listen => match world.notices.pop_front()? {
                Notice::Alias(alias) => world.known_alias = alias,
                Notice::Refused(binding) => _ = world.calls.insert(binding, Known::Refused),
                Notice::Failed(binding) => _ = world.calls.insert(binding, Known::Failed),
                Notice::Revoked(binding) => {
                    if world.holds && world.taken_back && binding == world.binding {
                        (world.bound, world.holds) = (None, false);
                        world.returned.insert(binding);
                    }
                }
            },
            Step::Read(alias, binding) => {
                world.reads.remove(&(alias, binding));
                let reaches = world.bound.filter(|_| world.alias == Some(alias));
                if reaches.is_some_and(|reached| reached != binding) {
                    world.wrong = Some("a Read under one binding reaches another one's region");
                }
                if reaches.is_some() && world.returned.contains(&binding) {
                    world.wrong = Some("a Read reaches memory that the program has again");
                }
                if world.serves {
                    world.over(binding, reaches.is_some());
                }
            }
            Step::Fail(binding) => world.over(binding, false),
            Step::ProgramDies => (world.is_alive, world.bound, world.holds) = (false, None, false),
            // A service process destroys the aliases of a program that is gone, and what it begins is refused.
            Step::LossIsSeen => {
                world.alias = None;
                world.said.clear();
            }
            // The card ends what a process has made.
            Step::ProcessDies => {
                (world.serves, world.alias) = (false, None);
                world.in_use.clear();
            }
            // The program frees the key by a work request of its own.
            Step::EndIsSeen => {
                (world.bound, world.holds) = (None, false);
                world.returned.insert(world.binding);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing goes wrong", |_, world: &World| world.wrong.is_none()),
            Property::always("memory comes back", |plan: &Self, world: &World| {
                let mut steps = Vec::new();
                plan.actions(world, &mut steps);
                !steps.is_empty() || !world.is_alive || !world.holds
            }),
            Property::sometimes("all bindings are had and given back", |plan: &Self, world: &World| {
                world.returned.len() as u32 == plan.bindings
            }),
            Property::sometimes("all without another alias", |plan: &Self, world: &World| {
                !world.replaced && world.flags.len() as u32 == plan.bindings && !world.holds
            }),
            Property::sometimes("an alias gives way", |_, world: &World| world.replaced),
        ]
    }
}

#[test]
fn a_key_never_has_two_bindings_while_anything_uses_one() {
    check("bindings of a key", Plan { bindings: 3, ..Plan::default() });
}

#[test]
fn messages_of_older_bindings_change_nothing() {
    check("bindings with late messages", Plan { bindings: 3, replays: 2, ..Plan::default() });
}

#[test]
fn a_program_that_lies_is_held_to_what_its_process_knows() {
    check("bindings of a program that lies", Plan { bindings: 3, lies: true, replays: 1, ..Plan::default() });
}

#[test]
fn whoever_dies_leaves_no_way_to_memory() {
    check(
        "bindings with deaths",
        Plan { bindings: 2, program_dies: true, process_dies: true, replays: 1, ..Plan::default() },
    );
}

//! Descriptions of topologies: what they say, and what is refused by name.

#![allow(missing_docs)]

use emu_fabric::{
    End, FatTree, FlowControl, Forwarding, LinkConfig, Node, Rate, Routing, SwitchConfig, Topology, TopologyBuilder,
    TopologyError,
};

const BY_HAND: &str = r#"
name = "two-racks"

[links]
gbit_per_s = 400
latency_ps = 250_000

[switching]
forwarding = "store-and-forward"
flow_control = "tail-drop"
routing = "adaptive"
buffer_bytes = 100_000

[[switch]]
name = "rack0"
ports = 32
[[switch]]
name = "rack1"
ports = 32
[[switch]]
name = "top"
ports = 8
level = 2

[[host]]
name = "a"
count = 8
to = "rack0"
[[host]]
name = "storage"

[[link]]
a = "storage"
b = "rack1:31"
gbit_per_s = 100
[[link]]
a = "rack0"
b = "top"
count = 4
[[link]]
name = "long"
a = "rack1"
b = "top"
latency_ps = 5_000_000
"#;

#[test]
fn a_file_says_all_of_it_and_survives_being_written() {
    let topology = Topology::from_toml(BY_HAND).unwrap();
    assert_eq!(topology.name(), "two-racks");
    assert_eq!(topology.hosts().len(), 9);
    assert_eq!((topology.hosts()[7].as_str(), topology.hosts()[8].as_str()), ("a7", "storage"));
    let names: Vec<&str> = topology.cables().iter().map(|cable| cable.name.as_str()).collect();
    assert_eq!(names[..6], ["storage-rack1", "rack0-top", "rack0-top#2", "rack0-top#3", "rack0-top#4", "long"]);
    assert_eq!(topology.cables()[0].b, End { node: Node::Switch(1), port: 31 });
    assert_eq!(topology.host_link(8), Some(LinkConfig { rate: Rate::from_gbps(100).unwrap(), latency_ps: 250_000 }));
    assert_eq!(topology.host_link(0).unwrap().rate, Rate::from_gbps(400).unwrap());
    assert_eq!((topology.host_link(9), topology.switch_of(9)), (None, None));
    assert_eq!((topology.switch_of(0), topology.switch_of(8)), (Some(0), Some(1)));
    let switching = SwitchConfig {
        forwarding: Forwarding::StoreAndForward,
        flow_control: FlowControl::TailDrop,
        routing: Routing::Adaptive,
        buffer_bytes: 100_000,
        ..SwitchConfig::default()
    };
    assert_eq!(topology.switching(), switching);
    assert_eq!(Topology::from_toml(&topology.to_toml()).unwrap(), topology);
    let tree = Topology::named("fat-tree-188").unwrap();
    assert_eq!(Topology::from_toml(&tree.to_toml()).unwrap(), tree);
}

#[test]
fn a_file_may_name_a_preset_or_a_fat_tree() {
    let preset = Topology::from_toml("preset = \"fat-tree-188\"\n[switching]\nrouting = \"adaptive\"").unwrap();
    assert_eq!((preset.hosts().len(), preset.switching().routing), (188, Routing::Adaptive));
    assert_eq!(preset.host_link(0).unwrap().rate.gbit_per_s(), 56);
    let faster = Topology::from_toml("preset = \"fat-tree-188\"\n[links]\ngbit_per_s = 200").unwrap();
    assert_eq!(faster.host_link(0).unwrap().rate.gbit_per_s(), 200);
    let tree = Topology::from_toml("name = \"x\"\n[fat_tree]\nlevels = 2\nradix = 8\nhosts = 20\noversubscription = 3")
        .unwrap();
    // 6 ports down and 2 up: 4 leaves; a spine has ports for all 8 uplinks.
    assert_eq!((tree.switches().len(), tree.hosts().len(), tree.name()), (5, 20, "x"));
    assert_eq!(Topology::named("switch-32").unwrap().switches()[0].ports, 32);
    assert_eq!(Topology::named("back-to-back").unwrap().switches().len(), 0);
    assert_eq!(Topology::named("switch-1").unwrap().hosts().len(), 1);
}

fn refused(text: &str) -> String {
    Topology::from_toml(text).unwrap_err().to_string()
}

#[test]
fn what_is_wrong_is_named() {
    let hosts = "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n";
    let with = |more: &str| refused(&format!("{hosts}{more}"));
    let link = |a: &str, b: &str| format!("[[link]]\na = \"{a}\"\nb = \"{b}\"\n");
    let switch = "[[switch]]\nname = \"s\"\nports = 2\n";

    assert!(with(&link("a", "c")).starts_with("link \"a-c\" ends at \"c\", which is neither a host nor a switch"));
    assert!(
        with(&(link("a", "b") + &link("a", "b")))
            .starts_with("link \"a-b#2\" needs a port of \"a\", whose 1 ports are all used")
    );
    let twice = format!("{switch}{}{}", link("a", "s:1"), link("b", "s:1"));
    assert!(with(&twice).starts_with("port 1 of \"s\" is used by link \"a-s\" and by link \"b-s\""));
    assert!(
        with(&format!("{switch}{}", link("a", "s:2")))
            .starts_with("link \"a-s\" uses port 2 of \"s\", which has 2 ports")
    );
    assert!(with(&format!("{switch}{}", link("a", "s"))).starts_with("host \"b\" has no link"));
    assert!(with(&format!("{}gbit_per_s = 0", link("a", "b"))).starts_with("link \"a-b\" has a rate of 0 Gbit/s"));
    assert!(with("[[switch]]\nname = \"a\"\nports = 1").starts_with("the name \"a\" is given twice"));
    assert!(with(&link("a", "a")).starts_with("link \"a-a\" joins \"a\" with itself"));
    assert!(with(&format!("{}latency_ps = 10_000_000_000_001", link("a", "b"))).contains("give 0 to 10000000000000"));
    assert!(with("[[switch]]\nname = \"s\"\nports = 5000").contains("5000: give 1 to 4096"));
    assert!(with("[[switch]]\nname = \"s t\"\nports = 5").starts_with("\"s t\" is no name"));
    assert!(with(&link("a", "b:x")).contains("ends at \"b:x\""));
    assert!(with("[fat_tree]\nlevels = 2\nradix = 4\nhosts = 4").starts_with("a topology is a preset, a fat_tree, or"));
    let split = "[[switch]]\nname = \"s\"\nports = 2\n[[switch]]\nname = \"t\"\nports = 2\n";
    assert!(with(&format!("{split}{}{}", link("a", "s"), link("b", "t"))).starts_with("no way leads from host \"a\""));

    assert!(refused("").starts_with("the topology has no hosts"));
    assert!(refused("nonsense = 1").contains("unknown field `nonsense`"));
    assert!(refused("host = 3").starts_with("the topology cannot be read"));
    assert!(refused("[[host]]\nname = \"h\"\ncount = 1000000").contains("give 1 to 16384"));
    assert!(refused("preset = \"switch-5000\"").contains("give 1 to 4096"));
    assert!(refused("preset = \"switch-x\"").starts_with("no topology is called \"switch-x\": take back-to-back"));
    assert!(refused("preset = \"switch-2\"\n[switching]\nbuffer_bytes = 0").contains("buffer_bytes is 0"));
    let tree = |text: &str| refused(&format!("[fat_tree]\n{text}"));
    assert!(tree("levels = 4\nradix = 4\nhosts = 4").contains("levels is 4: give 2 to 3"));
    assert!(tree("levels = 2\nradix = 36\nhosts = 1000").contains("leaf switches is 56: give 56 to 36"));
    assert!(tree("levels = 2\nradix = 4\nhosts = 4\noversubscription = 4").contains("give 1 to 3"));
    assert!(tree("levels = 2\nradix = 4\nhosts = 4\nleaves = 1").contains("give 2 to 4"));
}

#[test]
fn levels_make_ways_that_the_distance_to_hosts_does_not() {
    // Two tops, x and y, that share but one leaf, l1: from l0 to l2 a frame would go up, down, up and down.
    let build = |level: Option<u32>| {
        let mut builder = TopologyBuilder::new("valley");
        builder.host("a").host("b").host("c");
        builder.switch("l0", 4).switch_at("l1", 4, level).switch("l2", 4).switch("x", 4).switch("y", 4);
        for (a, b) in [("a", "l0"), ("b", "l1"), ("c", "l2"), ("l0", "x"), ("l1", "x"), ("l1", "y"), ("l2", "y")] {
            builder.link(a, b, LinkConfig::default());
        }
        builder.build()
    };
    assert_eq!(build(None).unwrap_err(), TopologyError::NoRoute { from: "a".to_owned(), to: "c".to_owned() });
    // As the top of all, l1 is the peak of the way.
    assert!(build(Some(3)).is_ok());
}

#[test]
fn fat_trees_of_every_size_have_ways_between_all_hosts() {
    // Building checks the ways.
    for levels in [2, 3] {
        for radix in [4, 6, 8, 16] {
            for oversubscription in [1, 2, 3] {
                for hosts in [1, 2, 7, 16, 31] {
                    let tree = FatTree { levels, radix, hosts, oversubscription, leaves: None };
                    match tree.build("t", LinkConfig::default()) {
                        Ok(topology) => assert_eq!(topology.hosts().len(), hosts),
                        Err(TopologyError::OutOfRange { .. }) => {
                            assert!(radix < 8 && hosts > 7 || hosts > 30, "{tree:?}")
                        }
                        Err(other) => panic!("{tree:?}: {other}"),
                    }
                }
            }
        }
    }
}

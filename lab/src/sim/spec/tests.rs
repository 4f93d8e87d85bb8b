use clap::{Args as _, FromArgMatches as _, ValueEnum as _};
use emu_config::{DrivenFrom, Memory, Priorities};
use flexcast_proto::service::{Delivery, Multicast, StagedReader};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::service::StagedPlan;
use crate::sim::side::{MAX_COMMUNICATORS, MAX_GAP_BYTES};
use crate::sim::skew::MAX_SKEW_US;
use crate::sim::sparse::AggregatorsText;
use crate::sparse::PatternName;

fn parse(words: &[String]) -> Result<SimSpec, clap::Error> {
    let command = SimSpec::augment_args(clap::Command::new("sim").no_binary_name(true));
    SimSpec::from_arg_matches(&command.try_get_matches_from(words)?)
}

fn algorithm() -> impl Strategy<Value = AlgorithmArgs> {
    let names = AlgorithmName::value_variants();
    (of(select(names)), of(1..=u32::MAX), of(2..=u32::MAX), of(1..=u64::MAX))
        .prop_map(|(algorithm, segments, radix, segment)| AlgorithmArgs { algorithm, segments, radix, segment })
}

fn communicator() -> impl Strategy<Value = CommunicatorArgs> {
    let names = (
        select(&Transport::ALL[..]),
        select(SimControlName::value_variants()),
        any::<bool>(),
        select(DatapathName::value_variants()),
        of(0..=1_000_000_u64),
    );
    let counts = (1..=MAX_SUBGROUPS, of(1..=MAX_SUBGROUPS), of(1..=MAX_SUBGROUPS), 0..=MAX_RANKS, of(0..=u32::MAX));
    let sizes = (
        2..=u32::MAX,
        of(1..=u32::MAX),
        of(0..=u64::MAX),
        64..=1_u32 << 30,
        of(16..=8192_u32),
        of(2..=4096_u32),
        of(0..=MAX_EAGER_BYTES),
        of(1..=u64::MAX),
    );
    (names, counts, sizes).prop_map(|(names, counts, sizes)| {
        let (transport, control, spread, datapath, chunk_ns) = names;
        let (subgroups, threads, send_threads, chains, lookahead) = counts;
        let (send_batch, pacing, cutoff_slack, chunk, slots, batch, eager, link_gbit) = sizes;
        CommunicatorArgs {
            datapath,
            chunk_ns,
            transport,
            subgroups,
            threads,
            send_threads,
            control,
            service_processes: None,
            local_copies: None,
            spread,
            chains,
            lookahead,
            link_gbit,
            send_batch,
            pacing,
            eager,
            cutoff_slack,
            chunk,
            slots,
            batch,
        }
    })
}

/// Names of files and topologies, with what a shell has a meaning for.
const NAME: &str = "[a-z/.][a-z0-9 '$*/.=-]{0,9}";

fn machine() -> impl Strategy<Value = NetworkArgs> {
    let paths = (of(NAME), of(NAME), of(NAME), of(NAME), prop::collection::vec(NAME, 0..3));
    let values = (of(0.0..=100.0), of(select(&Memory::ALL[..])), of(select(&DrivenFrom::ALL[..])));
    (paths, values, of(select(&Priorities::ALL[..])), any::<bool>()).prop_map(
        |(paths, values, queues, detect_races)| {
            let (machine, topology, faults, model, set) = paths;
            let (loss, memory, driven_from) = values;
            NetworkArgs {
                machine: machine.map(Into::into),
                loss,
                topology,
                faults: faults.map(Into::into),
                memory,
                detect_races,
                model,
                set,
                driven_from,
                queues,
            }
        },
    )
}

fn side() -> impl Strategy<Value = Side> {
    let counts = (1..=MAX_COMMUNICATORS, of(1..=MAX_RANKS), of(0..=MAX_GAP_BYTES));
    (counts, any::<bool>(), any::<bool>()).prop_map(|((communicators, split, gap), in_place, user_memory)| Side {
        communicators,
        split,
        in_place,
        gap,
        user_memory,
    })
}

fn staged() -> impl Strategy<Value = StagedArgs> {
    let names = (
        of(select(DeliveryName::value_variants())),
        of(select(ReaderName::value_variants())),
        of(select(BetweenName::value_variants())),
    );
    let bytes = (of(1..=1_u64 << 40), of(any::<u64>()), of(0..=1_u64 << 40));
    (names, bytes).prop_map(|((delivery, reader, between), (staging, scatter, ahead))| StagedArgs {
        delivery,
        reader,
        staging,
        scatter,
        between,
        ahead,
    })
}

fn sparse() -> impl Strategy<Value = SparseArgs> {
    let who =
        select(&["ranks", "cpu:5,arm:1", "arm:2", "dpa"][..]).prop_map(|text| text.parse::<AggregatorsText>().unwrap());
    let names = (of(1..=MAX_RANKS), of(who), of(0.0..=1.0), of(select(PatternName::value_variants())));
    let sizes = (of(256..=16_384_u32), of(1..=32_u32), of(1..=64_u32), of(1..=u64::MAX));
    (names, sizes, any::<(bool, bool)>()).prop_map(|(names, sizes, (in_rank_order, processor_times))| {
        let (workers, aggregators, sparsity, pattern) = names;
        let (block, blocks_per_message, shards, dpa_cache) = sizes;
        SparseArgs {
            workers,
            aggregators,
            sparsity,
            pattern,
            block,
            blocks_per_message,
            shards,
            dpa_cache,
            in_rank_order,
            processor_times,
        }
    })
}

fn spec() -> impl Strategy<Value = SimSpec> {
    let shape = (1..=MAX_RANKS, 1..=MAX_RANKS, select(Operation::value_variants()), any::<u64>(), 0..MAX_RANKS);
    let times = (any::<u32>(), 1..=u32::MAX, any::<bool>(), of(any::<u64>()), 0..=MAX_SKEW_US, side());
    (shape, times, algorithm(), communicator(), staged(), sparse(), machine()).prop_map(
        |(shape, times, algorithm, communicator, staged, sparse, machine)| {
            let (ranks, ranks_per_card, op, bytes, root) = shape;
            let (warm_up, iterations, overlap, seed, skew_us, side) = times;
            SimSpec {
                ranks,
                ranks_per_card,
                op,
                bytes,
                root,
                warm_up,
                iterations,
                overlap,
                seed,
                skew: PostSkew::of_us(skew_us),
                side,
                algorithm,
                communicator,
                staged,
                sparse,
                machine,
            }
        },
    )
}

proptest! {
    #[test]
    fn a_printed_command_is_parsed_as_the_same_run(spec in spec()) {
        let words = spec.words();
        prop_assert_eq!(parse(&words).map_err(|error| TestCaseError::fail(format!("{words:?}: {error}")))?, spec);
    }
}

#[test]
fn nothing_given_is_the_default() {
    assert_eq!(parse(&[]).unwrap(), SimSpec::default());
    assert_eq!(SimSpec::default().command(), "flexcast sim");
    let (params, machine) = SimSpec::default().resolve(None).unwrap();
    let config = Config::default().slots(256).max_receive_bytes(8 << 20);
    assert_eq!(params, SimParams { config, ..SimParams::default() });
    assert_eq!(machine, Machine { seed: Some(1), ..Machine::default() });
}

#[test]
fn every_option_is_a_key_of_the_description() {
    let keys = serde_json::json!(SimSpec::default());
    for argument in SimSpec::augment_args(clap::Command::new("sim")).get_arguments() {
        assert!(keys.get(argument.get_id().as_str()).is_some(), "{argument}");
    }
}

#[test]
fn a_command_is_what_a_shell_takes() {
    let mut spec = SimSpec { ranks: 4, skew: PostSkew::of_us(30), ..SimSpec::default() };
    spec.machine = NetworkArgs {
        loss: Some(0.5),
        topology: Some("my net.toml".to_owned()),
        detect_races: true,
        set: vec!["a.b=1".to_owned(), "it's".to_owned()],
        ..NetworkArgs::default()
    };
    spec.communicator.control = SimControlName::Device;
    assert_eq!(
        spec.command(),
        r"flexcast sim --ranks 4 --skew-us 30 --control device --loss 0.5 --topology 'my net.toml' --detect-races --set a.b=1 --set 'it'\''s'"
    );
}

#[test]
fn service_processes_take_what_they_have() {
    let of = |line: &str| {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        parse(&words).unwrap().service().map(|(params, _)| params).map_err(|error| error.to_string())
    };
    let params =
        of("--control service --op alltoallv --ranks 12 --ranks-per-card 3 --service-processes 2 --bytes 64").unwrap();
    assert_eq!((params.op, params.shape.hosts, params.shape.processes_per_host), (ServiceOp::Alltoallv, 4, 2));
    assert_eq!(params.crossings(), 12 * 9);
    assert_eq!(params.local_reads(), 12 * 2);
    let gather = "--control service --op allgatherv --ranks 12 --ranks-per-card 3";
    let by_card = of(&format!("{gather} --local-copies card")).unwrap();
    assert_eq!((by_card.local_copies, by_card.local_reads()), (CopiesName::Card, 12 * 4 * 2));
    let by_host = of(gather).unwrap();
    assert_eq!((by_host.local_copies, by_host.local_reads()), (CopiesName::Host, 0));
    let params = of("--control service --op bcast --root 3 --delivery flat --reader first --staging 4096").unwrap();
    let StagedPlan { staging, staging_bytes, delivery, root, .. } = params.staged;
    assert_eq!((params.op, root, delivery), (ServiceOp::Broadcast, 3, Some(Delivery::Flat)));
    assert_eq!((staging.staging_bytes, staging_bytes, staging.reader), (4096, Some(4096), StagedReader::First));
    assert_eq!(staging.multicast, None);
    let multicast =
        of("--control service --op bcast --between multicast --ahead 4096").unwrap().staged.staging.multicast;
    assert_eq!(multicast, Some(Multicast { ahead_bytes: 4096, ..Multicast::default() }));
    assert_eq!(of("--control service --op bcast --between messages").unwrap().staged.staging.multicast, None);
    assert_eq!(of("--control service --op allgather --delivery auto").unwrap().staged.delivery, None);
    let direct = of("--control service --op bcast --ranks 12 --ranks-per-card 3 --delivery direct").unwrap();
    assert_eq!((direct.staged.delivery, direct.crossings()), (Some(Delivery::Direct), 9));
    let refused = |line: &str| of(line).unwrap_err();
    assert!(refused("--control service --op allreduce").contains("--op is allreduce"));
    assert!(refused("--control service --op bcast --root 1000").contains("--root is 1000"));
    assert!(refused("--control service --op allgather --root 1").contains("service takes no --root with Iallgather"));
    assert!(refused("--control service --op alltoallv --delivery flat").contains("no --delivery with Ialltoallv"));
    assert!(refused("--control service --op alltoallv --local-copies card").contains("no --local-copies with"));
    assert!(
        of("--control service --op allgatherv --ranks 5 --ranks-per-card 2")
            .unwrap_err()
            .contains("5 ranks, 2 on a card")
    );
    assert!(
        of("--control service --op allgatherv --subgroups 2").unwrap_err().contains("service takes no --subgroups")
    );
    for words in [["--control", "service"], ["--delivery", "flat"], ["--local-copies", "card"]] {
        let words = words.map(str::to_owned).to_vec();
        assert!(parse(&words).unwrap().resolve(None).unwrap_err().to_string().contains("--control"));
    }
}

#[test]
fn what_a_sparse_allreduce_does_not_have_is_refused() {
    let given = |more: &str| {
        let words = format!("--op sparse-allreduce {more}");
        parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).unwrap()
    };
    let text = |more: &str| given(more).sparse().unwrap_err().to_string();
    assert!(text("--skew-us 5").contains("has no --skew-us"));
    assert!(text("--subgroups 2").contains("has no --subgroups"));
    let (params, _) =
        given("--workers 6 --aggregators cpu:5,arm:1 --sparsity 0.5 --pattern powerlaw").sparse().unwrap();
    assert_eq!((params.workers, params.cards(), params.image()), (6, 12, None));
    assert_eq!(given("--ranks 3").sparse().unwrap().0.image(), Some("allgather"));
    let (params, _) = given("--workers 3 --aggregators dpa").sparse().unwrap();
    assert_eq!((params.cards(), params.image()), (3, Some("sparse")));
    let other = SimSpec { op: Operation::Allgather, ..given("--sparsity 0.5") };
    assert!(other.resolve(None).unwrap_err().to_string().contains("sparse"));
}

use flexcast_proto::cutoff::transfer_ps;

use super::*;

#[test]
fn the_default_fits_and_stages_four_mebibytes() {
    let config = Config::default();
    let footprint = config.footprint(16, 4096).unwrap();
    assert_eq!(footprint.staging_bytes, 4 * 256 * 4160);
    config.check_cache(&footprint).unwrap();
    assert_eq!(footprint.threads, 6);
}

#[test]
fn staging_holds_what_was_published() {
    let staged = |slots, subgroups| {
        let config = Config { slots, ..Config::default().with_subgroups(subgroups) };
        config.footprint(16, 4096).unwrap().staging_bytes
    };
    // 8192 slots stage 32 MiB of payload, and 32.5 MiB with what is in front of each.
    assert_eq!((staged(MAX_SLOTS, 1), u64::from(MAX_SLOTS) * 4096), (65 << 19, 32 << 20));
    // The practical 1024 slots: 4 MiB of payload, which arrive in 168 us at 200 Gbit/s.
    assert_eq!(staged(256, 4), 1024 * 4160);
    assert_eq!((transfer_ps(1024 * 4096, 200) + 500_000) / 1_000_000, 168);
}

#[test]
fn queue_pairs_are_counted_as_they_are_made() {
    for (ranks, control) in [(1, 0), (2, 2), (3, 4), (8, 10), (16, 14), (188, 32), (1024, 38)] {
        let footprint = Config::default().footprint(ranks, 4096).unwrap();
        assert_eq!(footprint.control_queue_pairs, control, "{ranks} ranks");
        // One for each subgroup, whatever the number of senders.
        assert_eq!((footprint.receive_queue_pairs, footprint.send_queue_pairs), (4, 4));
        assert_eq!(footprint.loopback_queue_pairs, 4 + 6);
        // Dissemination has a peer ahead and one behind in each round; the nearest two are the ring's. Each has
        // a queue pair for each direction.
        assert!(control <= 4 * u32::from(ranks > 1) * (ranks.next_power_of_two().ilog2()));
    }
    assert!(Config::default().footprint(0, 4096).is_err());
}

#[test]
fn rings_count_in_the_budget() {
    // Sixteen rings of the published depth exceed the cache several times.
    let config = Config { slots: 8192, ..Config::default().with_subgroups(16) };
    let footprint = config.footprint(16, 4096).unwrap();
    assert!(footprint.ring_bytes > 16 * 8192 * 64);
    let text = config.check_cache(&footprint).unwrap_err().to_string();
    assert!(text.contains("1500000") && text.contains("slots"), "{text}");
}

#[test]
fn zero_copy_needs_no_staging_and_unicast_a_context_for_each_rank() {
    let of = |transport| Config { transport, ..Config::default() }.footprint(16, 4096).unwrap();
    let (ud, multicast, unicast) = (of(Transport::Ud), of(Transport::UcMulticast), of(Transport::UcUnicast));
    assert_eq!((multicast.staging_bytes, unicast.staging_bytes), (0, 0));
    assert_eq!((multicast.receive_queue_pairs, unicast.receive_queue_pairs), (4, 60));
    assert_eq!((ud.loopback_queue_pairs, multicast.loopback_queue_pairs), (10, 6));
    assert_eq!(unicast.control_queue_pairs, ud.control_queue_pairs + 15);
    assert!(multicast.ring_bytes < ud.ring_bytes && unicast.ring_bytes == 15 * multicast.ring_bytes);
    // What does not fit the cache is refused with what to lower.
    let config = Config { transport: Transport::UcUnicast, ..Config::default() };
    let text = config.check_cache(&unicast).unwrap_err().to_string();
    assert!(text.contains("1500000") && text.contains("subgroups"), "{text}");
}

#[test]
fn bits_of_the_sequence_number_follow_the_largest_operation() {
    let config = Config { max_receive_bytes: 128 << 20, ..Config::default() };
    // 8192 chunks of a subgroup, and room for what rounding up adds for 16 ranks.
    assert_eq!(config.derive(16, 4096).unwrap().layout.psn_bits(), 14);
    let exact = Config { psn_bits: Some(13), ..config.clone() };
    assert_eq!(exact.derive(16, 4096).unwrap().bitmap_words, 128);
    let huge = Config { max_receive_bytes: 1 << 46, ..config };
    let text = huge.derive(16, 4096).unwrap_err().to_string();
    assert!(text.contains("psn_bits") && text.contains("1 to 31"), "{text}");
}

#[test]
fn parameters_outside_their_range_are_named() {
    let check = |config: Config, word: &str| {
        let text = config.derive(4, 4096).unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    };
    let ok = Config::default;
    check(Config { chunk_bytes: 0, ..ok() }, "chunk_bytes is 0");
    check(Config { chunk_bytes: 8192, ..ok() }, "64 to 4096");
    check(Config { chunk_bytes: 100, ..ok() }, "multiple of 64");
    let unicast = || Config { transport: Transport::UcUnicast, ..ok() };
    check(Config { chunk_bytes: (1 << 30) + 64, ..unicast() }, "64 to 1073741824");
    check(Config { receive_threads: 13, ..unicast() }, "receive_threads is 13: must be 1 to 12");
    check(Config { subgroups: 0, ..ok() }, "subgroups is 0");
    check(Config { receive_threads: 5, ..ok() }, "receive_threads is 5");
    check(Config { send_threads: 0, ..ok() }, "send_threads is 0");
    check(Config { slots: 100, ..ok() }, "power of two");
    check(Config { slots: 16384, ..ok() }, "16 to 8192");
    check(Config { receive_batch: 256, ..ok() }, "2 to 128");
    check(Config { send_batch: 3, ..ok() }, "power of two");
    check(Config { send_depth: 16, ..ok() }, "32 to 8192");
    check(Config { budget: 0, ..ok() }, "budget is 0");
    check(Config { chains: 1025, ..ok() }, "chains is 1025");
    check(Config { psn_bits: Some(32), ..ok() }, "psn_bits is 32");
    check(Config { pacing_gbit_per_s: Some(9), ..ok() }, "pacing_gbit_per_s is 9");
    let uc = Config { transport: Transport::UcMulticast, ..ok() };
    check(Config { pacing_gbit_per_s: Some(100), ..uc.clone() }, "pacing_gbit_per_s is 100");
    check(
        Config { control: Control::Device, transport: Transport::UcUnicast, ..uc },
        "control is device: must be host",
    );
}

/// What is sent in 16 us: 112 000 bytes at 56 Gbit/s.
#[test]
fn a_lead_is_what_a_root_sends_while_another_is_activated() {
    let config = Config { link_gbit_per_s: 56, ..Config::default() };
    assert_eq!([1, 4, 12, 200].map(|chains| config.lookahead(chains)), [27, 6, 1, 0]);
    let paced = Config { pacing_gbit_per_s: Some(10), ..config.clone() };
    assert_eq!([1, 4, 12].map(|chains| paced.lookahead(chains)), [4, 4, 1]);
    assert_eq!(Config { lookahead_chunks: Some(9), ..config.clone() }.lookahead(4), 9);
    assert_eq!(Config { link_gbit_per_s: u64::MAX, chunk_bytes: 64, ..config }.lookahead(1), u32::MAX);
}

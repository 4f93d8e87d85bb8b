//! Whatever comes over a connection.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Bytes of which many are small: steps, ranks and lengths.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![0u8..8, 0u8..32, any::<u8>()], 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_message_harms_the_store(data in bytes()) {
        hostile::rank_0(&data);
        hostile::rank_1(&data);
        hostile::frames(&data);
        hostile::records(&data);
    }
}

/// The random messages above are worth something only if meetings can come of them.
#[test]
fn meetings_that_end_well_can_be_written_as_messages() {
    let hellos = [[8, 1, 3], [9, 2, 3]].concat();
    let encrypted = [[12, 1, 3, 16], [13, 2, 3, 17]].concat();
    let contributions = [[20, 1, 1, 0], [21, 1, 1, 1]].concat();
    for (secret, steps) in [(0, hellos), (1, encrypted)] {
        let all = hostile::rank_0(&[&[secret], &steps[..], &contributions[..]].concat());
        assert_eq!(all, Some(vec![b"own".to_vec(), vec![0], vec![1]]));
    }
}

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

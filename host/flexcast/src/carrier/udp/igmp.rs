//! Version of IGMP that the system speaks on an interface, which is that of the queries it has received.

/// Whether the system has lately received queries of IGMP before version 3 on an interface. Then there is a querier,
/// and a socket that leaves a group sends a message that takes the host out of it for a while.
pub(super) fn has_old_querier(index: u32) -> bool {
    let list = std::fs::read_to_string("/proc/net/igmp").unwrap_or_default();
    version(&list, index).is_some_and(|version| version != "V3")
}

/// The version in the list of the system: a line for each interface, which begins with its index, and an indented one
/// for each group.
fn version(list: &str, index: u32) -> Option<&str> {
    let is_of = |line: &&str| line.split_whitespace().next().is_some_and(|word| word.parse() == Ok(index));
    list.lines().filter(|line| !line.starts_with(char::is_whitespace)).find(is_of)?.split_whitespace().last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_interface() {
        let list = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
                    1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
                    4\teth0      :     2      V2\n\t\t\t\t010000E0     4 0:00000000\t\t0\n";
        assert_eq!([1, 4, 10].map(|index| version(list, index)), [Some("V3"), Some("V2"), None]);
        assert!(!has_old_querier(u32::MAX));
    }
}

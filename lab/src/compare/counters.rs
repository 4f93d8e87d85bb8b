//! Byte counters of network interfaces, as `/proc/net/dev` prints them.

/// Bytes that one interface has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Received.
    pub received: u64,
    /// Sent.
    pub sent: u64,
}

impl Counters {
    /// What has been added since earlier counters.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { received: self.received.saturating_sub(earlier.received), sent: self.sent.saturating_sub(earlier.sent) }
    }
}

/// The interfaces of a `/proc/net/dev` whose names begin so.
#[must_use]
pub fn parse(text: &str, prefix: &str) -> Vec<Counters> {
    let interface = |line: &str| {
        let (name, fields) = line.split_once(':')?;
        let fields: Vec<u64> = fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let counters = Counters { received: *fields.first()?, sent: *fields.get(8)? };
        name.trim().starts_with(prefix).then_some(counters)
    };
    text.lines().filter_map(interface).collect()
}

/// The sum over interfaces.
#[must_use]
pub fn sum(all: &[Counters]) -> Counters {
    all.iter().fold(Counters::default(), |sum, one| Counters {
        received: sum.received + one.received,
        sent: sum.sent + one.sent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_name() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls \
            carrier \
            compressed\n    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0\n \
            port0: \
            5000      10    0    0    0     0          0         0     7000      11    0    0    0     0       0          0\n \
            port1:  1        10    0    0    0     0          0         0        2      11    0    0    0     0       0          0\n";
        let ports = parse(text, "port");
        assert_eq!(ports, [Counters { received: 5000, sent: 7000 }, Counters { received: 1, sent: 2 }]);
        assert_eq!(sum(&ports), Counters { received: 5001, sent: 7002 });
        assert_eq!(ports[0].since(ports[1]), Counters { received: 4999, sent: 6998 });
        assert_eq!(parse(text, "eth"), []);
        assert_eq!(parse("nothing", ""), []);
    }
}

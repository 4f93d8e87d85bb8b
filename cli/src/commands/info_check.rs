//! `flexcast info --check`: what of the multicast of each rank arrives at each rank.

use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{Table, presets};
use flexcast::bootstrap::{CallbackExchange, Exchange, StoreConfig, StoreError, TcpStore};
use flexcast::{Interface, MulticastArrival};
use flexcast_cli::{note, out};
use serde_json::json;

use crate::tune_args::InfoArgs;

/// The ranks of the job, or this process alone if no launcher has started it.
fn ranks() -> anyhow::Result<Box<dyn Exchange>> {
    match StoreConfig::from_env() {
        Ok(config) => Ok(Box::new(TcpStore::join(config)?)),
        Err(StoreError::Unset { name: "FLEXCAST_SIZE", .. }) if std::env::var_os("FLEXCAST_RANK").is_none() => {
            let alone = |send: &[u8], receive: &mut [u8]| {
                receive.copy_from_slice(send);
                Ok(())
            };
            Ok(Box::new(CallbackExchange::new(0, 1, alone)?))
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) fn run(args: &InfoArgs, interface: &Interface) -> anyhow::Result<ExitCode> {
    let mut ranks = ranks()?;
    let (rank, size) = (ranks.rank(), ranks.size());
    let time = Duration::from_secs(args.seconds);
    if rank == 0 {
        note!(
            "multicast among {size} rank{} over {} ({}), for {} s",
            if size == 1 { "" } else { "s" },
            interface.name(),
            interface.address(),
            args.seconds
        );
    }
    let arrivals = interface.check_multicast(&mut *ranks, time)?;
    let is_right = arrivals.iter().all(MulticastArrival::is_right);
    let code = if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if rank != 0 {
        return Ok(code);
    }
    if args.json {
        let pairs = arrivals.iter().map(|arrival| {
            let MulticastArrival { from, to, sent, short, long, long_bytes, last } = arrival;
            json!({
                "from": from, "to": to, "sent": sent, "short": short, "long": long, "long_bytes": long_bytes,
                "last_ms": last.as_millis() as u64, "right": arrival.is_right(), "reason": reason(arrival, time, interface),
            })
        });
        out!("{}", json!({ "ranks": size, "right": is_right, "pairs": pairs.collect::<Vec<_>>() }))?;
        return Ok(code);
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["from", "to", "short datagrams", "long datagrams", "bytes of a long packet"]);
    for arrival in &arrivals {
        let MulticastArrival { from, to, sent, short, long, long_bytes, .. } = arrival;
        table.add_row([
            from.to_string(),
            to.to_string(),
            format!("{short} of {sent}"),
            format!("{long} of {sent}"),
            long_bytes.to_string(),
        ]);
    }
    out!("{table}")?;
    for arrival in &arrivals {
        if let Some(reason) = reason(arrival, time, interface) {
            out!("from rank {} to rank {}: {reason}", arrival.from, arrival.to)?;
        }
    }
    out!("{}", if is_right { "multicast arrives" } else { "multicast does not arrive everywhere" })?;
    Ok(code)
}

/// Why multicast does not arrive, as far as it can be seen, and what to do; none if it does.
fn reason(arrival: &MulticastArrival, time: Duration, interface: &Interface) -> Option<String> {
    let MulticastArrival { from, to, sent, short, long, long_bytes, last } = *arrival;
    if arrival.is_right() {
        return None;
    }
    let querier = if interface.address().is_ipv4() { "IGMP" } else { "MLD" };
    Some(if short == 0 && long == 0 && from == to {
        "not even the own datagrams come back: see whether a firewall drops them (`nft list ruleset`), and whether \
         the interface can multicast (`ip link`)"
            .to_owned()
    } else if short == 0 && long == 0 {
        format!(
            "nothing arrives: see whether switches between them forward multicast (with {querier} snooping they need a \
             querier), whether a firewall drops it, and, if there is a router between them, whether FLEXCAST_TTL is \
             more than 1"
        )
    } else if 2 * short > sent && long == 0 {
        format!(
            "short datagrams arrive, packets of {long_bytes} bytes do not: a switch between them carries shorter \
             frames; give interfaces and switches one MTU"
        )
    } else if last + Duration::from_secs(2) < time {
        format!(
            "nothing arrives after {:.0} s: a switch that snoops has forgotten the group; switch an {querier} querier \
             on (for a bridge: `ip link set BRIDGE type bridge mcast_querier 1`), or snooping off",
            last.as_secs_f64()
        )
    } else {
        format!(
            "{short} of {sent} short and {long} of {sent} long datagrams arrive: see whether a link or a switch is \
             overloaded or faulty (`ip -s link`)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_has_its_reason_and_the_next_step() {
        let right = MulticastArrival {
            from: 0,
            to: 1,
            sent: 20,
            short: 20,
            long: 20,
            long_bytes: 9000,
            last: Duration::from_secs(1),
        };
        let endpoint = flexcast::Endpoint::udp(&flexcast::UdpOptions::default().interface("lo")).unwrap();
        let of = |arrival: MulticastArrival, seconds| {
            reason(&arrival, Duration::from_secs(seconds), endpoint.interface().unwrap()).unwrap_or_default()
        };
        assert_eq!(of(right, 1), "");
        let nothing = MulticastArrival { short: 0, long: 0, last: Duration::ZERO, ..right };
        assert!(of(nothing, 1).contains("querier"), "{}", of(nothing, 1));
        assert!(of(MulticastArrival { to: 0, ..nothing }, 1).contains("not even the own"));
        let short = MulticastArrival { long: 0, ..right };
        assert!(of(short, 1).contains("packets of 9000 bytes do not"), "{}", of(short, 1));
        let forgotten = MulticastArrival { short: 9, long: 9, last: Duration::from_secs(260), ..right };
        assert!(of(forgotten, 600).contains("after 260 s"), "{}", of(forgotten, 600));
        assert!(of(MulticastArrival { short: 9, long: 9, ..right }, 1).contains("9 of 20 short"));
    }
}

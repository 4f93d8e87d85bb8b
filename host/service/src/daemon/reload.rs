//! Reload: what SIGHUP changes, and what needs a restart.

use super::config::{Bounds, Config, MULTICAST, Times};

/// A configuration that takes from another one what can change while the daemon runs; and what of that needs a restart,
/// in words.
pub(super) fn merged(running: &Config, read: Config) -> (Config, Vec<String>) {
    let mut restart = Vec::new();
    let mut stays = |key: &str, is: String, wanted: String| {
        if is != wanted {
            restart.push(format!("`{key}` stays {is} until the daemon is restarted, and is not {wanted}"));
        }
    };
    let shown = |path: &Option<std::path::PathBuf>| {
        path.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string())
    };
    stays("device", running.device.clone(), read.device.clone());
    stays("libraries", shown(&running.libraries), shown(&read.libraries));
    stays("listen", running.listen.to_string(), read.listen.to_string());
    stays("port", running.port.to_string(), read.port.to_string());
    stays("processes", running.processes.to_string(), read.processes.to_string());
    stays("status_socket", running.status_socket.display().to_string(), read.status_socket.display().to_string());
    stays("lock_directory", running.lock_directory.display().to_string(), read.lock_directory.display().to_string());
    let metrics = |config: &Config| config.metrics.map_or_else(|| "none".to_owned(), |address| address.to_string());
    stays("metrics", metrics(running), metrics(&read));
    let multicast = |config: &Config| MULTICAST[usize::from(config.multicast)].to_owned();
    stays("multicast", multicast(running), multicast(&read));
    let numbers = Times::NUMBERS.iter().zip(running.times.values().into_iter().zip(read.times.values()));
    let limits = Bounds::NUMBERS.iter().zip(running.limits.values().into_iter().zip(read.limits.values()));
    for (number, (is, wanted)) in numbers.chain(limits).filter(|(number, _)| !number.reloads) {
        stays(number.key, is.to_string(), wanted.to_string());
    }
    let times = Times { busy_poll_ms: running.times.busy_poll_ms, ..read.times };
    let Bounds { keys, bound_keys, greetings, .. } = read.limits;
    let limits = Bounds { keys, bound_keys, greetings, ..running.limits };
    let merged = Config { secret: read.secret, log: read.log, times, limits, ..running.clone() };
    (merged, restart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn what_cannot_change_stays_and_is_named() {
        let parse = |more: &str| {
            let text = format!("device = \"mlx5_0\"\nlisten = \"127.0.0.1\"\nsecret = \"a\"\n{more}");
            Config::parse(Path::new("service.toml"), &text).expect("a configuration")
        };
        let running = parse("");
        let read = parse(
            "port = 99\nmulticast = \"auto\"\nlog = \"debug\"\n[times]\nheartbeat_ms = 20\nbusy_poll_ms = \
             5\n[limits]\nkeys = 9\ngroups = 7\ngreetings = 3",
        );
        let (merged, restart) = merged(&running, read);
        assert_eq!((merged.port, merged.limits.groups, merged.times.busy_poll_ms), (4870, 64, 1_000));
        assert_eq!(
            (merged.log.as_str(), merged.limits.keys, merged.limits.greetings, merged.times.heartbeat_ms),
            ("debug", 9, 3, 20)
        );
        assert_eq!((restart.len(), merged.multicast), (4, false), "{restart:?}");
        let line = "`multicast` stays off until the daemon is restarted, and is not auto";
        assert!(restart.iter().any(|other| other == line), "{restart:?}");
        assert!(restart[0].contains("`port` stays 4870 until the daemon is restarted, and is not 99"), "{restart:?}");
        assert_eq!(super::merged(&running, running.clone()), (running.clone(), vec![]));
    }

    /// Each number either changes or is named: none is forgotten.
    #[test]
    fn all_numbers_are_treated_as_their_table_says() {
        let text = |value: fn(&super::super::config::Number) -> u64| {
            let mut text = "device = \"mlx5_0\"\nlisten = \"127.0.0.1\"\nsecret = \"a\"\n".to_owned();
            for (table, numbers) in [("times", Times::NUMBERS), ("limits", Bounds::NUMBERS)] {
                text += &format!("[{table}]\n");
                for number in numbers {
                    text += &format!(
                        "{} = {}\n",
                        number.key.trim_start_matches(table).trim_start_matches('.'),
                        value(number)
                    );
                }
            }
            Config::parse(Path::new("service.toml"), &text).expect("within the bounds")
        };
        let (least, most) = (text(|number| number.least), text(|number| number.most));
        let (merged, restart) = merged(&least, most.clone());
        let after = merged.times.values().into_iter().chain(merged.limits.values());
        for (number, value) in Times::NUMBERS.iter().chain(Bounds::NUMBERS).zip(after) {
            let named = restart.iter().any(|line| line.starts_with(&format!("`{}` ", number.key)));
            assert_eq!(
                (value, named),
                if number.reloads { (number.most, false) } else { (number.least, true) },
                "{}",
                number.key
            );
        }
    }
}

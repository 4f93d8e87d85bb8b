//! Parameters of communicators by name and text, as configuration files and command lines have them.

use std::ffi::{OsString, c_char};

use flexcast_rust::{Config, Setting, SettingValue};

use crate::config::{FLEXCAST_BOUND_KEYS_NONE, FLEXCAST_DELIVERY_AUTO, flexcast_config};
use crate::fault::{Fault, call};
use crate::memory::{give, sized, text};
use crate::status::flexcast_status::{self, *};

/// A field of the structure.
enum Field<'c> {
    /// A number, or a word by its position.
    Small(&'c mut u32),
    /// A word by its position and this number.
    From(u32, &'c mut u32),
    Large(&'c mut u64),
    Real(&'c mut f32),
    Text(&'c mut *const c_char),
    /// Where 0 is none.
    Keys(&'c mut u32),
}

/// The field of a setting.
fn field<'c>(config: &'c mut flexcast_config, name: &str) -> Option<Field<'c>> {
    use Field::{From, Keys, Large, Real, Small, Text};
    Some(match name {
        "chunk_bytes" => Small(&mut config.chunk_bytes),
        "subgroups" => Small(&mut config.subgroups),
        "receive_threads" => Small(&mut config.receive_threads),
        "send_threads" => Small(&mut config.send_threads),
        "placement" => Small(&mut config.placement),
        "slots" => Small(&mut config.slots),
        "receive_batch" => Small(&mut config.receive_batch),
        "send_batch" => Small(&mut config.send_batch),
        "send_depth" => Small(&mut config.send_depth),
        "budget" => Small(&mut config.budget),
        "psn_bits" => Small(&mut config.psn_bits),
        "chains" => Small(&mut config.chains),
        "lookahead_chunks" => Small(&mut config.lookahead_chunks),
        "retry_exponent" => Small(&mut config.retry_exponent),
        "data_class" => Small(&mut config.data_class),
        "control_class" => Small(&mut config.control_class),
        "max_receive_bytes" => Large(&mut config.max_receive_bytes),
        "link_gbit_per_s" => Large(&mut config.link_gbit_per_s),
        "barrier_ns" => Large(&mut config.barrier_ns),
        "activation_ns" => Large(&mut config.activation_ns),
        "cutoff_slack_ns" => Large(&mut config.cutoff_slack_ns),
        "barrier_timeout_ns" => Large(&mut config.barrier_timeout_ns),
        "recovery_timeout_ns" => Large(&mut config.recovery_timeout_ns),
        "packet_lifetime_ns" => Large(&mut config.packet_lifetime_ns),
        "cache_bytes" => Large(&mut config.cache_bytes),
        "transport" => Small(&mut config.transport),
        "control" => Small(&mut config.control),
        "algorithm" => Small(&mut config.algorithm),
        "restarts" => Small(&mut config.restarts),
        "reproducible" => Small(&mut config.reproducible),
        "service.endpoints" => Text(&mut config.service_endpoints),
        "service.secret" => Text(&mut config.service_secret),
        "service.connect_ns" => Large(&mut config.service_connect_ns),
        "service.operation_ns" => Large(&mut config.service_operation_ns),
        "service.processes" => Small(&mut config.service_processes),
        "service.delivery" => From(FLEXCAST_DELIVERY_AUTO, &mut config.service_delivery),
        "service.buffers" => Small(&mut config.service_buffers),
        "service.bound_keys" => Keys(&mut config.service_bound_keys),
        "progress_thread" => Small(&mut config.progress_thread),
        "progress_cpu" => Small(&mut config.progress_cpu),
        "sparse.aggregators" => Text(&mut config.sparse_aggregators),
        "sparse.aggregation" => Small(&mut config.sparse_aggregation),
        "sparse.fixed_point" => Real(&mut config.sparse_fixed_point),
        _ => return None,
    })
}

impl Field<'_> {
    /// Where it ends, in bytes from an address before it.
    fn end(&self, base: usize) -> usize {
        let (address, bytes) = match self {
            Self::Small(field) | Self::From(_, field) | Self::Keys(field) => {
                (std::ptr::from_ref::<u32>(field).addr(), size_of::<u32>())
            }
            Self::Large(field) => (std::ptr::from_ref::<u64>(field).addr(), size_of::<u64>()),
            Self::Real(field) => (std::ptr::from_ref::<f32>(field).addr(), size_of::<f32>()),
            Self::Text(field) => (std::ptr::from_ref::<*const c_char>(field).addr(), size_of::<*const c_char>()),
        };
        address - base + bytes
    }

    /// Takes a value; `pointer` is a text's as the caller has it. The ranges of settings are those of the fields.
    fn set(self, value: SettingValue<'_>, pointer: *const c_char) {
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let position = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        match (self, value) {
            (Self::Small(field), SettingValue::Word(at)) => *field = position(at),
            (Self::From(first, field), SettingValue::Word(at)) => *field = first + position(at),
            (Self::Small(field), SettingValue::Whole(number)) => *field = small(number),
            (Self::Keys(field), SettingValue::Whole(number)) => {
                *field = Some(small(number)).filter(|keys| *keys > 0).unwrap_or(FLEXCAST_BOUND_KEYS_NONE);
            }
            (Self::Large(field), SettingValue::Whole(number)) => *field = number,
            (Self::Real(field), SettingValue::Real(number)) => *field = number,
            (Self::Text(field), SettingValue::Text(_)) => *field = pointer,
            // A test sets each field.
            _ => debug_assert!(false, "a setting whose field has another type"),
        }
    }
}

/// Takes parameters from the environment; texts are read later, for as long as they are needed.
pub(crate) fn take_variables(
    config: &mut flexcast_config,
    read: impl Fn(&str) -> Option<OsString>,
) -> Result<(), Fault> {
    let take = |setting: &Setting, value: SettingValue<'_>| {
        if let ("subgroups", SettingValue::Whole(number)) = (setting.name(), value) {
            // Threads go with them, unless variables of their own say otherwise, which come later.
            let fitting = Config::default().with_subgroups(u32::try_from(number).unwrap_or(u32::MAX));
            (config.receive_threads, config.send_threads) = (fitting.receive_threads, fitting.send_threads);
        }
        let field = field(config, setting.name()).filter(|_| !matches!(value, SettingValue::Text(_)));
        field.into_iter().for_each(|field| field.set(value, std::ptr::null()));
    };
    Setting::read_variables(read, take).map_err(Fault::from)
}

/// Sets a parameter by its name: that of the field, or service.endpoints, service.secret, sparse.aggregators and so on
/// for the fields that begin with service_ or sparse_. Numbers are decimal, `sparse.fixed_point` with a fraction or an
/// exponent if need be; `placement`, `transport`, `control`, `algorithm`, `service.delivery` and `sparse.aggregation`
/// take a word, such as "service", in the place of FLEXCAST_CONTROL_SERVICE. A `value` of service.endpoints,
/// service.secret or sparse.aggregators is not copied: it must stay until flexcast_comm_create() has returned.
/// FLEXCAST_ERROR_CONFIG for a name that there is not, or a value that it cannot have: the structure is as it was, and
/// flexcast_last_error() tells name, value and what it may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flexcast_config_set(
    config: *mut flexcast_config,
    name: *const c_char,
    value: *const c_char,
) -> flexcast_status {
    call(|| {
        if config.is_null() {
            return Err(Fault::null("config"));
        }
        // SAFETY: null or C strings of the caller.
        let (known, given) = unsafe { (text(name, "name")?, text(value, "value")?) };
        let known = known.ok_or_else(|| Fault::null("name"))?;
        let given = given.ok_or_else(|| Fault::null("value"))?;
        // SAFETY: a structure of the caller, as long as it says; all fields are numbers and pointers.
        let mut changed = unsafe { sized(config, flexcast_config::default(), "config") }?;
        let (base, size) = ((&raw const changed).addr(), changed.size);
        let refused = |reason: String| Fault::new(FLEXCAST_ERROR_CONFIG, reason);
        let unknown = || {
            let names: Vec<&str> = Setting::ALL.iter().map(Setting::name).collect();
            refused(format!("there is no parameter {known:?} (value {given:?}): must be one of {}", names.join(", ")))
        };
        let setting = Setting::named(known).ok_or_else(unknown)?;
        let field = field(&mut changed, known).ok_or_else(unknown)?;
        if field.end(base) > size {
            let text = format!(
                "{known} is not in a configuration of {size} bytes: compile against the header of this library"
            );
            return Err(Fault::new(FLEXCAST_ERROR_SIZE, text));
        }
        let parsed = setting.parse(given).map_err(|limit| refused(format!("{known} is {given:?}: must be {limit}")))?;
        field.set(parsed, value);
        // SAFETY: as many bytes as it says.
        unsafe { give(config, size, changed, "config") }
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, CString};

    use super::*;
    use crate::config::*;
    use crate::fault::flexcast_last_error;

    fn set(config: &mut flexcast_config, name: &str, value: &CStr) -> Result<(), String> {
        let name = CString::new(name).unwrap();
        // SAFETY: a whole structure and C strings.
        let status = unsafe { flexcast_config_set(config, name.as_ptr(), value.as_ptr()) };
        // SAFETY: a C string, until the next call.
        let told = || unsafe { CStr::from_ptr(flexcast_last_error()) }.to_string_lossy().into_owned();
        if status == FLEXCAST_OK { Ok(()) } else { Err(told()) }
    }

    #[test]
    fn every_name_sets_its_field() {
        let mut config = flexcast_config::default();
        for name in Setting::ALL.iter().map(Setting::name) {
            let words = Setting::named(name).unwrap().words();
            let value = match field(&mut config, name).unwrap() {
                Field::Small(_) | Field::From(..) if !words.is_empty() => words[words.len() - 1],
                Field::Small(_) => "7",
                Field::Large(_) => "77",
                Field::Real(_) => "1.5",
                Field::Text(_) => "here",
                Field::Keys(_) => "0",
                Field::From(..) => unreachable!("{name} takes words"),
            };
            let value = CString::new(value).unwrap();
            set(&mut config, name, &value).unwrap();
            let last = u32::try_from(words.len()).unwrap().wrapping_sub(1);
            match field(&mut config, name).unwrap() {
                Field::Small(field) if words.is_empty() => assert_eq!(*field, 7, "{name}"),
                Field::Small(field) => assert_eq!(*field, last, "{name}"),
                Field::From(first, field) => assert_eq!(*field, first + last, "{name}"),
                Field::Large(field) => assert_eq!(*field, 77, "{name}"),
                Field::Real(field) => assert_eq!(*field, 1.5, "{name}"),
                Field::Text(field) => assert_eq!(*field, value.as_ptr(), "{name}: the caller's text"),
                Field::Keys(field) => assert_eq!(*field, FLEXCAST_BOUND_KEYS_NONE),
            }
        }
        // All fields but the size have a name: none was left as it was.
        let debug = format!("{config:?}");
        assert_eq!(debug.matches(": ").count(), Setting::ALL.len() + 1, "{debug}");
    }

    /// Words are taken by their positions.
    #[test]
    fn every_word_has_its_number_in_the_header() {
        let mut config = flexcast_config::default();
        let mut number = |name: &str, word: &str| {
            set(&mut config, name, &CString::new(word).unwrap()).unwrap();
            match field(&mut config, name).unwrap() {
                Field::Small(field) | Field::From(_, field) => *field,
                _ => panic!("{name} takes words"),
            }
        };
        for (name, word, value) in [
            ("placement", "compact", FLEXCAST_PLACEMENT_COMPACT),
            ("placement", "spread", FLEXCAST_PLACEMENT_SPREAD),
            ("transport", "ud", FLEXCAST_TRANSPORT_UD),
            ("transport", "uc-unicast", FLEXCAST_TRANSPORT_UC_UNICAST),
            ("control", "host", FLEXCAST_CONTROL_HOST),
            ("control", "device", FLEXCAST_CONTROL_DEVICE),
            ("control", "service", FLEXCAST_CONTROL_SERVICE),
            ("algorithm", "automatic", FLEXCAST_ALGORITHM_AUTOMATIC),
            ("algorithm", "multicast", FLEXCAST_ALGORITHM_MULTICAST),
            ("algorithm", "ring", FLEXCAST_ALGORITHM_RING),
            ("algorithm", "linear", FLEXCAST_ALGORITHM_LINEAR),
            ("algorithm", "recursive-doubling", FLEXCAST_ALGORITHM_RECURSIVE_DOUBLING),
            ("algorithm", "bruck", FLEXCAST_ALGORITHM_BRUCK),
            ("restarts", "0", 0),
            ("restarts", "1", 1),
            ("service.delivery", "auto", FLEXCAST_DELIVERY_AUTO),
            ("service.delivery", "flat", FLEXCAST_DELIVERY_FLAT),
            ("service.delivery", "hierarchical", FLEXCAST_DELIVERY_HIERARCHICAL),
            ("service.delivery", "direct", FLEXCAST_DELIVERY_DIRECT),
            ("sparse.aggregation", "host", FLEXCAST_AGGREGATION_HOST),
            ("sparse.aggregation", "dpa", FLEXCAST_AGGREGATION_DPA),
        ] {
            assert_eq!(number(name, word), value, "{name} {word}");
        }
    }

    #[test]
    fn variables_are_taken_as_the_names_are() {
        let mut config = flexcast_config::default();
        let read = |name: &str| match name {
            "FLEXCAST_CHUNK_BYTES" => Some("1024".into()),
            "FLEXCAST_ALGORITHM" => Some("ring".into()),
            "FLEXCAST_PROGRESS_THREAD" => Some("1".into()),
            "FLEXCAST_CONTROL" => Some("device".into()),
            "FLEXCAST_SUBGROUPS" => Some("8".into()),
            "FLEXCAST_SEND_THREADS" => Some("3".into()),
            // Set, and empty: as if it were not set.
            "FLEXCAST_SLOTS" => Some("".into()),
            // Read elsewhere.
            "FLEXCAST_SERVICE_SECRET" | "FLEXCAST_SPARSE_AGGREGATORS" => Some("x".into()),
            _ => None,
        };
        take_variables(&mut config, read).unwrap();
        assert_eq!((config.chunk_bytes, config.algorithm, config.progress_thread), (1024, FLEXCAST_ALGORITHM_RING, 1));
        assert_eq!((config.subgroups, config.receive_threads, config.send_threads), (8, 8, 3));
        assert_eq!((config.control, config.slots), (FLEXCAST_CONTROL_DEVICE, flexcast_config::default().slots));
        assert!(config.service_secret.is_null() && config.sparse_aggregators.is_null());
        let fault = take_variables(&mut config, |name| (name == "FLEXCAST_SLOTS").then(|| "many".into())).unwrap_err();
        assert!(
            fault.status == FLEXCAST_ERROR_VARIABLE
                && fault.text.contains("FLEXCAST_SLOTS is \"many\": must be a whole number"),
            "{}",
            fault.text
        );
    }

    #[test]
    fn what_cannot_be_is_named_and_changes_nothing() {
        let mut config = flexcast_config::default();
        let before = format!("{config:?}");
        for (name, value, told) in [
            (
                "service.endpoint",
                c"x",
                "there is no parameter \"service.endpoint\" (value \"x\"): must be one of chunk_bytes, ",
            ),
            ("control", c"card", "control is \"card\": must be one of host, device, service"),
            ("transport", c"uc-multicast", "transport is \"uc-multicast\": must be one of ud, uc-unicast"),
            ("service.processes", c"0", "service.processes is \"0\": must be a whole number from 1 to 64"),
            ("service.processes", c"4x", "service.processes is \"4x\""),
            ("service.bound_keys", c"4097", "must be a whole number from 0 to 4096"),
            ("sparse.fixed_point", c"inf", "sparse.fixed_point is \"inf\": must be a finite number from 0 on"),
            ("sparse.fixed_point", c"-1", "sparse.fixed_point is \"-1\""),
            ("sparse.fixed_point", c"1,5", "sparse.fixed_point is \"1,5\""),
            ("service.secret", c"", "service.secret is \"\": must be a text"),
            (
                "max_receive_bytes",
                c"-1",
                "max_receive_bytes is \"-1\": must be a whole number from 0 to 18446744073709551615",
            ),
        ] {
            let error = set(&mut config, name, value).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        assert_eq!(format!("{config:?}"), before);
        // An older program's structure ends before the fields of service processes.
        config.size = std::mem::offset_of!(flexcast_config, service_endpoints);
        let error = set(&mut config, "service.secret", c"x").unwrap_err();
        assert!(error.starts_with("service.secret is not in a configuration of "), "{error}");
        set(&mut config, "control", c"service").unwrap();
        // SAFETY: null pointers, which are refused.
        let null = unsafe { flexcast_config_set(std::ptr::null_mut(), c"control".as_ptr(), c"host".as_ptr()) };
        assert_eq!(null, FLEXCAST_ERROR_NULL);
        // SAFETY: as above.
        let null = unsafe { flexcast_config_set(&raw mut config, c"control".as_ptr(), std::ptr::null()) };
        assert_eq!(null, FLEXCAST_ERROR_NULL);
    }
}

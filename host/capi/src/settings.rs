//! Parameters of communicators by name and text, as configuration files and command lines have them.

use std::ffi::{OsString, c_char};
use std::ops::RangeInclusive;

use crate::config::{
    FLEXCAST_AGGREGATION_DPA, FLEXCAST_AGGREGATION_HOST, FLEXCAST_ALGORITHM_AUTOMATIC, FLEXCAST_ALGORITHM_BRUCK,
    FLEXCAST_ALGORITHM_LINEAR, FLEXCAST_ALGORITHM_MULTICAST, FLEXCAST_ALGORITHM_RECURSIVE_DOUBLING,
    FLEXCAST_ALGORITHM_RING, FLEXCAST_BOUND_KEYS_NONE, FLEXCAST_CONTROL_DEVICE, FLEXCAST_CONTROL_HOST,
    FLEXCAST_CONTROL_SERVICE, FLEXCAST_DELIVERY_AUTO, FLEXCAST_DELIVERY_DIRECT, FLEXCAST_DELIVERY_FLAT,
    FLEXCAST_DELIVERY_HIERARCHICAL, FLEXCAST_PLACEMENT_COMPACT, FLEXCAST_PLACEMENT_SPREAD,
    FLEXCAST_TRANSPORT_UC_MULTICAST, FLEXCAST_TRANSPORT_UC_UNICAST, FLEXCAST_TRANSPORT_UD, flexcast_config,
};
use crate::fault::{Fault, call};
use crate::memory::{give, sized, text};
use crate::status::flexcast_status::{self, *};

type Words = &'static [(&'static str, u32)];

const PLACEMENTS: Words = &[("compact", FLEXCAST_PLACEMENT_COMPACT), ("spread", FLEXCAST_PLACEMENT_SPREAD)];
const TRANSPORTS: Words = &[
    ("ud", FLEXCAST_TRANSPORT_UD),
    ("uc-multicast", FLEXCAST_TRANSPORT_UC_MULTICAST),
    ("uc-unicast", FLEXCAST_TRANSPORT_UC_UNICAST),
];
const CONTROLS: Words =
    &[("host", FLEXCAST_CONTROL_HOST), ("device", FLEXCAST_CONTROL_DEVICE), ("service", FLEXCAST_CONTROL_SERVICE)];
const ALGORITHMS: Words = &[
    ("automatic", FLEXCAST_ALGORITHM_AUTOMATIC),
    ("multicast", FLEXCAST_ALGORITHM_MULTICAST),
    ("ring", FLEXCAST_ALGORITHM_RING),
    ("linear", FLEXCAST_ALGORITHM_LINEAR),
    ("recursive-doubling", FLEXCAST_ALGORITHM_RECURSIVE_DOUBLING),
    ("bruck", FLEXCAST_ALGORITHM_BRUCK),
];
const DELIVERIES: Words = &[
    ("auto", FLEXCAST_DELIVERY_AUTO),
    ("flat", FLEXCAST_DELIVERY_FLAT),
    ("hierarchical", FLEXCAST_DELIVERY_HIERARCHICAL),
    ("direct", FLEXCAST_DELIVERY_DIRECT),
];
const AGGREGATIONS: Words = &[("host", FLEXCAST_AGGREGATION_HOST), ("dpa", FLEXCAST_AGGREGATION_DPA)];
const SWITCHES: Words = &[("0", 0), ("1", 1)];
/// Numbers whose bounds are the communicator's.
const ANY: RangeInclusive<u32> = 0..=u32::MAX;
const BYTE: RangeInclusive<u32> = 0..=255;

/// A field, and what it may be.
enum Field<'c> {
    Word(&'c mut u32, Words),
    Small(&'c mut u32, RangeInclusive<u32>),
    Large(&'c mut u64),
    Real(&'c mut f32),
    Text(&'c mut *const c_char),
    /// Where 0 is none.
    Keys(&'c mut u32),
}

macro_rules! fields {
    ($config:ident; $($name:literal => $field:expr,)*) => {
        /// All names.
        const NAMES: &[&str] = &[$($name,)*];

        fn field<'c>($config: &'c mut flexcast_config, name: &str) -> Option<Field<'c>> {
            use Field::{Keys, Large, Real, Small, Text, Word};
            Some(match name {
                $($name => $field,)*
                _ => return None,
            })
        }
    };
}

fields! { config;
    "chunk_bytes" => Small(&mut config.chunk_bytes, ANY),
    "subgroups" => Small(&mut config.subgroups, ANY),
    "receive_threads" => Small(&mut config.receive_threads, ANY),
    "send_threads" => Small(&mut config.send_threads, ANY),
    "placement" => Word(&mut config.placement, PLACEMENTS),
    "slots" => Small(&mut config.slots, ANY),
    "receive_batch" => Small(&mut config.receive_batch, ANY),
    "send_batch" => Small(&mut config.send_batch, ANY),
    "send_depth" => Small(&mut config.send_depth, ANY),
    "budget" => Small(&mut config.budget, ANY),
    "psn_bits" => Small(&mut config.psn_bits, ANY),
    "chains" => Small(&mut config.chains, ANY),
    "lookahead_chunks" => Small(&mut config.lookahead_chunks, ANY),
    "retry_exponent" => Small(&mut config.retry_exponent, 0..=31),
    "data_class" => Small(&mut config.data_class, BYTE),
    "control_class" => Small(&mut config.control_class, BYTE),
    "max_receive_bytes" => Large(&mut config.max_receive_bytes),
    "link_gbit_per_s" => Large(&mut config.link_gbit_per_s),
    "barrier_ns" => Large(&mut config.barrier_ns),
    "activation_ns" => Large(&mut config.activation_ns),
    "cutoff_slack_ns" => Large(&mut config.cutoff_slack_ns),
    "barrier_timeout_ns" => Large(&mut config.barrier_timeout_ns),
    "recovery_timeout_ns" => Large(&mut config.recovery_timeout_ns),
    "packet_lifetime_ns" => Large(&mut config.packet_lifetime_ns),
    "cache_bytes" => Large(&mut config.cache_bytes),
    "transport" => Word(&mut config.transport, TRANSPORTS),
    "control" => Word(&mut config.control, CONTROLS),
    "algorithm" => Word(&mut config.algorithm, ALGORITHMS),
    "restarts" => Word(&mut config.restarts, SWITCHES),
    "reproducible" => Word(&mut config.reproducible, SWITCHES),
    "service.endpoints" => Text(&mut config.service_endpoints),
    "service.secret" => Text(&mut config.service_secret),
    "service.connect_ns" => Large(&mut config.service_connect_ns),
    "service.operation_ns" => Large(&mut config.service_operation_ns),
    "service.processes" => Small(&mut config.service_processes, 1..=64),
    "service.delivery" => Word(&mut config.service_delivery, DELIVERIES),
    "service.buffers" => Small(&mut config.service_buffers, 1..=1000),
    "service.bound_keys" => Keys(&mut config.service_bound_keys),
    "progress_thread" => Word(&mut config.progress_thread, SWITCHES),
    "progress_cpu" => Small(&mut config.progress_cpu, ANY),
    "sparse.aggregators" => Text(&mut config.sparse_aggregators),
    "sparse.aggregation" => Word(&mut config.sparse_aggregation, AGGREGATIONS),
    "sparse.fixed_point" => Real(&mut config.sparse_fixed_point),
}

impl Field<'_> {
    /// Where it ends, in bytes from an address before it.
    fn end(&self, base: usize) -> usize {
        let (address, bytes) = match self {
            Self::Word(field, _) | Self::Small(field, _) | Self::Keys(field) => {
                (std::ptr::from_ref::<u32>(field).addr(), size_of::<u32>())
            }
            Self::Large(field) => (std::ptr::from_ref::<u64>(field).addr(), size_of::<u64>()),
            Self::Real(field) => (std::ptr::from_ref::<f32>(field).addr(), size_of::<f32>()),
            Self::Text(field) => (std::ptr::from_ref::<*const c_char>(field).addr(), size_of::<*const c_char>()),
        };
        address - base + bytes
    }

    /// Takes a value; `pointer` is the same text as the caller has it. Else what it may be.
    fn set(self, value: &str, pointer: *const c_char) -> Result<(), String> {
        let small = |range: RangeInclusive<u32>| {
            let number = value.parse().ok().filter(|number| range.contains(number));
            number.ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
        };
        match self {
            Self::Word(field, words) => {
                let found = words.iter().find(|(word, _)| *word == value);
                let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                *field = found.ok_or_else(|| format!("one of {}", all.join(", ")))?.1;
            }
            Self::Small(field, range) => *field = small(range)?,
            Self::Keys(field) => {
                *field = Some(small(0..=4096)?).filter(|keys| *keys > 0).unwrap_or(FLEXCAST_BOUND_KEYS_NONE)
            }
            Self::Large(field) => {
                *field = value.parse().map_err(|_| format!("a whole number from 0 to {}", u64::MAX))?;
            }
            Self::Real(field) => {
                let number = value.parse().ok().filter(|number: &f32| number.is_finite() && *number >= 0.0);
                *field = number.ok_or("a finite number from 0 on, such as 1.5")?;
            }
            Self::Text(_) if value.is_empty() => return Err("a text of a byte at least".to_owned()),
            Self::Text(field) => *field = pointer,
        }
        Ok(())
    }
}

/// The variable of a parameter. Those of service processes and of sparse AllReduce have names of their own, which the library reads.
fn variable(name: &str) -> Option<String> {
    (!name.contains('.') && name != "control").then(|| format!("FLEXCAST_{}", name.to_ascii_uppercase()))
}

/// Takes parameters from the environment.
pub(crate) fn take_variables(
    config: &mut flexcast_config,
    read: impl Fn(&str) -> Option<OsString>,
) -> Result<(), Fault> {
    for name in NAMES {
        let Some((variable, value)) =
            variable(name).and_then(|variable| read(&variable).map(|value| (variable, value)))
        else {
            continue;
        };
        let value = value.to_string_lossy();
        let Some(field) = field(config, name) else { continue };
        field.set(&value, std::ptr::null()).map_err(|limit| {
            Fault::new(FLEXCAST_ERROR_VARIABLE, format!("{variable} is {value:?}: must be {limit}"))
        })?;
    }
    Ok(())
}

/// Sets a parameter by its name: that of the field, or service.endpoints, service.secret, sparse.aggregators and so on for the fields that begin with service_ or sparse_. Numbers are decimal, `sparse.fixed_point` with a fraction or an exponent if need be;
/// `placement`, `transport`, `control`, `algorithm`, `service.delivery` and `sparse.aggregation` take a word, such as "service", in the place of FLEXCAST_CONTROL_SERVICE. A `value` of
/// service.endpoints, service.secret or sparse.aggregators is not copied: it must stay until flexcast_comm_create() has returned. FLEXCAST_ERROR_CONFIG for a name that there is not,
/// or a value that it cannot have: the structure is as it was, and flexcast_last_error() tells name, value and what it may be.
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
        let field = field(&mut changed, known).ok_or_else(|| {
            refused(format!("there is no parameter {known:?} (value {given:?}): must be one of {}", NAMES.join(", ")))
        })?;
        if field.end(base) > size {
            let text = format!(
                "{known} is not in a configuration of {size} bytes: compile against the header of this library"
            );
            return Err(Fault::new(FLEXCAST_ERROR_SIZE, text));
        }
        field.set(given, value).map_err(|limit| refused(format!("{known} is {given:?}: must be {limit}")))?;
        // SAFETY: as many bytes as it says.
        unsafe { give(config, size, changed, "config") }
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, CString};

    use super::*;
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
        for name in NAMES {
            let value = match field(&mut config, name).unwrap() {
                Field::Word(_, words) => words[words.len() - 1].0.to_owned(),
                Field::Small(_, range) => range.end().to_string(),
                Field::Large(_) => "77".to_owned(),
                Field::Real(_) => "1.5".to_owned(),
                Field::Text(_) => "here".to_owned(),
                Field::Keys(_) => "0".to_owned(),
            };
            let value = CString::new(value).unwrap();
            set(&mut config, name, &value).unwrap();
            match field(&mut config, name).unwrap() {
                Field::Word(field, words) => assert_eq!(*field, words[words.len() - 1].1, "{name}"),
                Field::Small(field, range) => assert_eq!(field, range.end(), "{name}"),
                Field::Large(field) => assert_eq!(*field, 77, "{name}"),
                Field::Real(field) => assert_eq!(*field, 1.5, "{name}"),
                Field::Text(field) => assert_eq!(*field, value.as_ptr(), "{name}: the caller's text"),
                Field::Keys(field) => assert_eq!(*field, FLEXCAST_BOUND_KEYS_NONE),
            }
        }
        // All fields but the size have a name: none was left as it was.
        let debug = format!("{config:?}");
        assert_eq!(debug.matches(": ").count(), NAMES.len() + 1, "{debug}");
    }

    #[test]
    fn variables_are_taken_as_the_names_are() {
        let mut config = flexcast_config::default();
        let read = |name: &str| match name {
            "FLEXCAST_CHUNK_BYTES" => Some("1024".into()),
            "FLEXCAST_ALGORITHM" => Some("ring".into()),
            "FLEXCAST_PROGRESS_THREAD" => Some("1".into()),
            // Read elsewhere.
            "FLEXCAST_CONTROL" | "FLEXCAST_SERVICE_SECRET" => Some("x".into()),
            _ => None,
        };
        take_variables(&mut config, read).unwrap();
        assert_eq!((config.chunk_bytes, config.algorithm, config.progress_thread), (1024, FLEXCAST_ALGORITHM_RING, 1));
        assert!(config.service_secret.is_null());
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

//! Parameters of communicators by name and text, as configuration files and command lines have them.

use std::ffi::{CStr, c_char};

use flexcast_rust::{Setting, SettingValue};

use crate::config::{FLEXCAST_SETTINGS_BYTES, flexcast_config};
use crate::fault::{Fault, call};
use crate::memory::{give, sized, text};
use crate::status::flexcast_status::{self, *};

/// Room for settings: lines of `name=value`, and a NUL.
type Kept = [c_char; FLEXCAST_SETTINGS_BYTES];

/// A field of the structure.
enum Field<'c> {
    /// A number, or a word by its position.
    Small(&'c mut u32),
    Large(&'c mut u64),
}

/// The field of a setting; none if the structure has none.
fn field<'c>(config: &'c mut flexcast_config, name: &str) -> Option<Field<'c>> {
    use Field::{Large, Small};
    Some(match name {
        "algorithm" => Small(&mut config.algorithm),
        "control" => Small(&mut config.control),
        "transport" => Small(&mut config.transport),
        "reproducible" => Small(&mut config.reproducible),
        "progress_thread" => Small(&mut config.progress_thread),
        "progress_cpu" => Small(&mut config.progress_cpu),
        "data_class" => Small(&mut config.data_class),
        "control_class" => Small(&mut config.control_class),
        "max_receive_bytes" => Large(&mut config.max_receive_bytes),
        "barrier_timeout_ns" => Large(&mut config.barrier_timeout_ns),
        "recovery_timeout_ns" => Large(&mut config.recovery_timeout_ns),
        _ => return None,
    })
}

impl Field<'_> {
    /// Where it ends, in bytes from an address before it.
    fn end(&self, base: usize) -> usize {
        let (address, bytes) = match self {
            Self::Small(field) => (std::ptr::from_ref::<u32>(field).addr(), size_of::<u32>()),
            Self::Large(field) => (std::ptr::from_ref::<u64>(field).addr(), size_of::<u64>()),
        };
        address - base + bytes
    }

    fn set(self, value: SettingValue<'_>) {
        let number = match value {
            SettingValue::Word(at) => at as u64,
            SettingValue::Whole(number) => number,
            // Fields are numbers.
            SettingValue::Real(_) | SettingValue::Text(_) => return,
        };
        match self {
            Self::Small(field) => *field = u32::try_from(number).unwrap_or(u32::MAX),
            Self::Large(field) => *field = number,
        }
    }
}

/// Names and values that were kept.
pub(crate) fn named(kept: &Kept) -> Result<Vec<(&str, &str)>, Fault> {
    let damaged = || {
        let text = "config: its `settings` are none of flexcast_config_set(): begin with flexcast_config_default()";
        Fault::new(FLEXCAST_ERROR_CONFIG, text)
    };
    // SAFETY: of one size and alignment, and every byte is a `u8`.
    let bytes = unsafe { &*std::ptr::from_ref(kept).cast::<[u8; FLEXCAST_SETTINGS_BYTES]>() };
    let text = CStr::from_bytes_until_nul(bytes).ok().and_then(|text| text.to_str().ok()).ok_or_else(damaged)?;
    text.lines()
        .map(|line| line.split_once('=').filter(|(name, _)| Setting::named(name).is_some()).ok_or_else(damaged))
        .collect()
}

/// Keeps a setting in the place of what was kept of it before.
pub(crate) fn keep(kept: &mut Kept, name: &str, value: &str) -> Result<(), Fault> {
    let mut lines = String::new();
    let before = named(kept)?;
    for (name, value) in before.into_iter().filter(|(other, _)| *other != name).chain([(name, value)]) {
        lines.push_str(&format!("{name}={value}\n"));
    }
    if lines.len() >= FLEXCAST_SETTINGS_BYTES {
        let text = format!(
            "{name} (a value of {} bytes): all settings of a configuration together have {} bytes, and there is room \
             for {}; set it by its variable",
            value.len(),
            lines.len(),
            FLEXCAST_SETTINGS_BYTES - 1
        );
        return Err(Fault::new(FLEXCAST_ERROR_LIMIT, text));
    }
    *kept = [0; FLEXCAST_SETTINGS_BYTES];
    kept.iter_mut().zip(lines.bytes()).for_each(|(to, byte)| *to = byte as c_char);
    Ok(())
}

/// Sets a parameter by its name, such as "slots" or "service.endpoints", or by its variable, such as "FLEXCAST_SLOTS":
/// a field, or one that the structure keeps. docs/embed.md lists all. Numbers are decimal; `algorithm`, `control`,
/// `transport` and others take a word, such as "service", in the place of FLEXCAST_CONTROL_SERVICE. The value is
/// copied. FLEXCAST_ERROR_CONFIG for a name that there is not, or a value that it cannot have: the structure is as it
/// was, and flexcast_last_error() has the name, the value, and what it may be or the name that is most like it. A
/// setting that the endpoint's datapath does not use is refused when the communicator is made.
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
        // SAFETY: a structure of the caller, as long as it says; all fields are numbers.
        let mut changed = unsafe { sized(config, flexcast_config::default(), "config") }?;
        let refused = |reason: String| Fault::new(FLEXCAST_ERROR_CONFIG, reason);
        let (setting, value) = Setting::find(known, given).map_err(|error| refused(error.to_string()))?;
        let name = setting.name();
        if given.contains('\n') {
            return Err(refused(format!("{name} is {given:?}: must be one line")));
        }
        let (base, size) = ((&raw const changed).addr(), changed.size);
        let whole = size_of::<flexcast_config>();
        let end = field(&mut changed, name).map_or(whole, |field| field.end(base));
        if end > size {
            let text =
                format!("{name} is not in a configuration of {size} bytes: compile against the header of this library");
            return Err(Fault::new(FLEXCAST_ERROR_SIZE, text));
        }
        match field(&mut changed, name) {
            Some(field) => field.set(value),
            None => keep(&mut changed.settings, name, given)?,
        }
        // SAFETY: as many bytes as it says.
        unsafe { give(config, size, changed, "config") }
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;
    use crate::config::*;
    use crate::fault::flexcast_last_error;

    fn set(config: &mut flexcast_config, name: &str, value: &CStr) -> Result<(), String> {
        let name = CString::new(name).unwrap();
        // SAFETY: a whole structure and C strings.
        let status = unsafe { flexcast_config_set(config, name.as_ptr(), value.as_ptr()) };
        // SAFETY: a C string, until the next call.
        let last_error = || unsafe { CStr::from_ptr(flexcast_last_error()) }.to_string_lossy().into_owned();
        if status == FLEXCAST_OK { Ok(()) } else { Err(last_error()) }
    }

    #[test]
    fn every_name_sets_its_field_or_is_kept() {
        let mut config = flexcast_config::default();
        let mut fields = 0;
        for setting in Setting::ALL {
            let name = setting.name();
            let words = setting.words();
            let value = CString::new(words.last().copied().unwrap_or("7")).unwrap();
            set(&mut config, name, &value).unwrap();
            let number = words.len().checked_sub(1).unwrap_or(7) as u64;
            match field(&mut config, name) {
                Some(Field::Small(field)) => assert_eq!(u64::from(*field), number, "{name}"),
                Some(Field::Large(field)) => assert_eq!(*field, number, "{name}"),
                None => assert!(named(&config.settings).unwrap().contains(&(name, value.to_str().unwrap())), "{name}"),
            }
            fields += usize::from(field(&mut config, name).is_some());
        }
        assert_eq!(fields, 11);
        // Once more: in the place of the first.
        let before = named(&config.settings).unwrap().len();
        set(&mut config, "FLEXCAST_SLOTS", c"8").unwrap();
        let now = named(&config.settings).unwrap();
        assert_eq!((now.len(), now.last()), (before, Some(&("slots", "8"))));
    }

    #[test]
    fn the_document_lists_all_names_with_their_datapaths() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/embed.md");
        let text = std::fs::read_to_string(path).unwrap();
        for setting in Setting::ALL {
            let used = match setting.datapaths() {
                [] => "all".to_owned(),
                some => format!("`{}`", some.join("`, `")),
            };
            let listed =
                |line: &&str| line.contains(&format!("`{}`", setting.name())) && line.ends_with(&format!("| {used} |"));
            assert_eq!(text.lines().filter(listed).count(), 1, "{} of {used}", setting.name());
        }
    }

    /// Words are taken by their positions.
    #[test]
    fn every_word_has_its_number_in_the_header() {
        let mut config = flexcast_config::default();
        let mut number = |name: &str, word: &str| {
            set(&mut config, name, &CString::new(word).unwrap()).unwrap();
            match field(&mut config, name).unwrap() {
                Field::Small(field) => *field,
                Field::Large(_) => panic!("{name} takes words"),
            }
        };
        for (name, word, value) in [
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
            ("reproducible", "0", 0),
            ("reproducible", "1", 1),
        ] {
            assert_eq!(number(name, word), value, "{name} {word}");
        }
    }

    #[test]
    fn what_cannot_be_is_named_and_changes_nothing() {
        let mut config = flexcast_config::default();
        set(&mut config, "service.secret", c"before").unwrap();
        let before = config.settings;
        for (name, value, expected) in [
            (
                "service.endpoint",
                c"x",
                "there is no setting \"service.endpoint\" (value \"x\"): the nearest name is \"service.endpoints\"",
            ),
            ("interface", c"lo", "interface (value \"lo\") is an option of the endpoint with the datapath udp"),
            ("control", c"card", "control is \"card\": must be one of host, device, service"),
            ("transport", c"uc-multicast", "transport is \"uc-multicast\": must be one of ud, uc-unicast"),
            ("service.processes", c"0", "service.processes is \"0\": must be a whole number from 1 to 64"),
            ("service.processes", c"4x", "service.processes is \"4x\""),
            ("service.bound_keys", c"4097", "must be a whole number from 0 to 4096"),
            (
                "sparse.fixed_point",
                c"inf",
                "sparse.fixed_point is \"inf\": must be 0, or a number from 1.2e-38 to 3.4e38, such as 1.5",
            ),
            ("sparse.fixed_point", c"1,5", "sparse.fixed_point is \"1,5\""),
            ("service.secret", c"", "service.secret is \"\": must be a text"),
            ("service.secret", c"a\nslots=8", "must be one line"),
            (
                "max_receive_bytes",
                c"-1",
                "max_receive_bytes is \"-1\": must be a whole number from 0 to 18446744073709551615",
            ),
        ] {
            let error = set(&mut config, name, value).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let long = CString::new("x".repeat(FLEXCAST_SETTINGS_BYTES)).unwrap();
        let error = set(&mut config, "sparse.aggregators", &long).unwrap_err();
        assert!(error.contains("there is room for 4095; set it by its variable"), "{error}");
        assert_eq!(config.settings, before);
        // Another program's structure ends before the settings.
        config.size = std::mem::offset_of!(flexcast_config, settings);
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

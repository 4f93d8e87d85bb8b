//! Command lines of programs.

use core::ffi::{c_char, c_int, c_void};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doca_sys::*;
use emu_libibverbs::handle::{self, Object};

use crate::failure::{Failure, Result, bad_state, invalid, put, run_without_card, text, unsupported};
use crate::log;

/// Most parameters of a program.
const MAX_PARAMETERS: usize = 256;

/// What a parameter is, as its setters leave it.
#[derive(Clone, Debug, Default)]
struct Description {
    short: Option<String>,
    long: Option<String>,
    arguments: String,
    description: String,
    callback: doca_argp_param_cb_t,
    kind: doca_argp_type,
    is_mandatory: bool,
    is_multiple: bool,
}

impl Description {
    fn is_named(&self, name: &str, is_long: bool) -> bool {
        (if is_long { &self.long } else { &self.short }).as_deref() == Some(name)
    }

    /// As a user writes it.
    fn label(&self) -> String {
        let short = self.short.as_ref().map(|name| format!("-{name}"));
        let long = self.long.as_ref().map(|name| format!("--{name}"));
        [short, long].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

struct Param(Mutex<Description>);

impl Object for Param {
    const KIND: &'static str = "parameter";
    type C = doca_argp_param;
    fn c_address(&self) -> *mut doca_argp_param {
        (self as *const Self).cast_mut().cast()
    }
}

/// The parser of this program, between `doca_argp_init` and `doca_argp_destroy`.
#[derive(Clone)]
struct Parser {
    program: Option<String>,
    /// The program's configuration, of which only its own callbacks know what it is.
    config: usize,
    parameters: Vec<Description>,
    validation: doca_argp_validation_cb_t,
    version: doca_argp_param_cb_t,
}

static PARSER: Mutex<Option<Parser>> = Mutex::new(None);

fn parser() -> MutexGuard<'static, Option<Parser>> {
    PARSER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_parser<T>(f: impl FnOnce(&mut Parser) -> Result<T>) -> Result<T> {
    match &mut *parser() {
        Some(parser) => f(parser),
        None => Err(bad_state("doca_argp_init was not called, or doca_argp_destroy was")),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_init(
    program_name: *const c_char,
    program_config: *mut c_void,
) -> doca_error_t {
    run_without_card("doca_argp_init", || {
        let program = if program_name.is_null() {
            None
        } else {
            // SAFETY: not null; terminated as the caller promises.
            Some(unsafe { text(program_name, "program_name") }?)
        };
        let mut parser = parser();
        if parser.is_some() {
            return Err(bad_state("it was called before; call doca_argp_destroy first"));
        }
        let config = program_config.expose_provenance();
        *parser = Some(Parser { program, config, parameters: Vec::new(), validation: None, version: None });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_destroy() -> doca_error_t {
    run_without_card("doca_argp_destroy", || {
        with_parser(|_| Ok(()))?;
        *parser() = None;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_param_create(param: *mut *mut doca_argp_param) -> doca_error_t {
    run_without_card("doca_argp_param_create", || {
        with_parser(|_| Ok(()))?;
        if param.is_null() {
            return Err(invalid("param is null"));
        }
        let object = Arc::new(Param(Mutex::default()));
        // SAFETY: not null, and writable as the caller promises.
        unsafe { put(param, "param", handle::publish(&object)) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_param_destroy(param: *mut doca_argp_param) -> doca_error_t {
    run_without_card("doca_argp_param_destroy", || Ok(handle::retire::<Param>(param).map(drop)?))
}

fn change(call: &str, param: *mut doca_argp_param, f: impl FnOnce(&mut Description) -> Result<()>) {
    run_without_card(call, || f(&mut handle::get::<Param>(param)?.0.lock().unwrap_or_else(PoisonError::into_inner)));
}

/// Changes a text of a parameter.
///
/// # Safety
/// `value` must be null or a terminated string.
unsafe fn change_text(
    call: &str,
    param: *mut doca_argp_param,
    value: *const c_char,
    f: impl FnOnce(&mut Description, String),
) {
    change(call, param, |description| {
        // SAFETY: as this function's.
        f(description, unsafe { text(value, "the text") }?);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_param_set_short_name(param: *mut doca_argp_param, name: *const c_char) {
    // SAFETY: null, or terminated as the caller promises.
    unsafe { change_text("doca_argp_param_set_short_name", param, name, |to, text| to.short = Some(text)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_param_set_long_name(param: *mut doca_argp_param, name: *const c_char) {
    // SAFETY: as above.
    unsafe { change_text("doca_argp_param_set_long_name", param, name, |to, text| to.long = Some(text)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_param_set_arguments(param: *mut doca_argp_param, arguments: *const c_char) {
    // SAFETY: as above.
    unsafe { change_text("doca_argp_param_set_arguments", param, arguments, |to, text| to.arguments = text) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_param_set_description(
    param: *mut doca_argp_param,
    description: *const c_char,
) {
    // SAFETY: as above.
    unsafe { change_text("doca_argp_param_set_description", param, description, |to, text| to.description = text) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_param_set_callback(
    param: *mut doca_argp_param,
    callback: doca_argp_param_cb_t,
) {
    change("doca_argp_param_set_callback", param, |description| {
        description.callback = callback;
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_param_set_type(param: *mut doca_argp_param, kind: doca_argp_type) {
    change("doca_argp_param_set_type", param, |description| {
        description.kind = kind;
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_param_set_mandatory(param: *mut doca_argp_param) {
    change("doca_argp_param_set_mandatory", param, |description| {
        description.is_mandatory = true;
        Ok(())
    });
}

/// There is no other place than the command line.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_param_set_cli_only(param: *mut doca_argp_param) {
    change("doca_argp_param_set_cli_only", param, |_| Ok(()));
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_param_set_multiplicity(param: *mut doca_argp_param) {
    change("doca_argp_param_set_multiplicity", param, |description| {
        description.is_multiple = true;
        Ok(())
    });
}

/// Names that every program has: short, long, whether a value follows, and what it does.
const OWN: [(&str, &str, &str, &str); 4] = [
    ("h", "help", "", "Print a help synopsis"),
    ("v", "version", "", "Print program version information"),
    ("l", "log-level", "<level>", "Level of the program's messages: 10 (disabled), 20 (critical) to 70 (trace)"),
    ("", "sdk-log-level", "<level>", "Level of the libraries' messages, as above"),
];

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_register_param(input_param: *mut doca_argp_param) -> doca_error_t {
    run_without_card("doca_argp_register_param", || {
        let object = handle::retire::<Param>(input_param)?;
        let parameter = object.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let label = if parameter.label().is_empty() { "without a name".to_owned() } else { parameter.label() };
        let missing = |what: &str| Err(Failure(DOCA_ERROR_INITIALIZATION, format!("parameter {label} has no {what}")));
        if parameter.short.is_none() && parameter.long.is_none() {
            return missing("name, short or long");
        }
        if parameter.description.is_empty() {
            return missing("description");
        }
        if parameter.callback.is_none() {
            return missing("callback");
        }
        match parameter.kind {
            DOCA_ARGP_TYPE_STRING | DOCA_ARGP_TYPE_INT | DOCA_ARGP_TYPE_BOOLEAN | DOCA_ARGP_TYPE_DOUBLE => {}
            DOCA_ARGP_TYPE_DEVICE | DOCA_ARGP_TYPE_DEVICE_REP => {
                return Err(unsupported(format!(
                    "parameter {label} is a device, which is not emulated: take its name"
                )));
            }
            _ => return missing("type"),
        }
        let own = OWN.iter().any(|(short, long, ..)| {
            (!short.is_empty() && parameter.is_named(short, false)) || parameter.is_named(long, true)
        });
        with_parser(|parser| {
            let taken = parser.parameters.iter().any(|other| {
                (other.short.is_some() && other.short == parameter.short)
                    || (other.long.is_some() && other.long == parameter.long)
            });
            if own || taken {
                return Err(bad_state(format!("there is a parameter {label} already")));
            }
            if parser.parameters.len() >= MAX_PARAMETERS {
                return Err(invalid(format!("there are {MAX_PARAMETERS} parameters already")));
            }
            parser.parameters.push(parameter);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_register_validation_callback(
    callback: doca_argp_validation_cb_t,
) -> doca_error_t {
    run_without_card("doca_argp_register_validation_callback", || {
        with_parser(|parser| {
            parser.validation = callback;
            callback.map(drop).ok_or_else(|| invalid("callback is null"))
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_register_version_callback(callback: doca_argp_param_cb_t) -> doca_error_t {
    run_without_card("doca_argp_register_version_callback", || {
        with_parser(|parser| {
            parser.version = callback;
            callback.map(drop).ok_or_else(|| invalid("callback is null"))
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_set_dpdk_program(_callback: doca_argp_dpdk_cb_t) {
    run_without_card("doca_argp_set_dpdk_program", || Err(unsupported("programs of DPDK are not emulated")));
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_cmd_create(_cmd: *mut *mut doca_argp_cmd) -> doca_error_t {
    run_without_card("doca_argp_cmd_create", || Err(unsupported("commands below the program's own are not emulated")))
}

fn usage(parser: &Parser) -> String {
    let program = parser.program.as_deref().unwrap_or("program");
    let mut out = format!("Usage: {program} [DOCA Flags] [Program Flags]\n\nDOCA Flags:\n");
    let mut line = |label: &str, text: &str| {
        let _ = writeln!(out, "  {label:<34}{text}");
    };
    for (short, long, value, text) in OWN {
        let short = if short.is_empty() { String::new() } else { format!("-{short}, ") };
        line(&format!("{short}--{long} {value}"), text);
    }
    line("", "");
    line("Program Flags:", "");
    for parameter in &parser.parameters {
        line(&format!("{} {}", parameter.label(), parameter.arguments), &parameter.description);
    }
    out
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_usage() {
    run_without_card("doca_argp_usage", || {
        let text = with_parser(|parser| Ok(usage(parser)))?;
        log::streams()[0].write(text.as_bytes());
        Ok(())
    });
}

/// A step that a command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Help,
    Version,
    LogLevel(u32),
    SdkLogLevel(u32),
    /// A parameter of the program by its number, and its value.
    Parameter(usize, String),
}

fn level(name: &str, value: &str) -> Result<u32> {
    value.parse().map_err(|_| invalid(format!("{name} is {value:?}: a number from 10 to 70 is needed")))
}

/// Reads a command line, without the program's name.
fn steps(parameters: &[Description], arguments: &[String]) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let (option, is_long) = match (argument.strip_prefix("--"), argument.strip_prefix('-')) {
            (Some(option), _) => (option, true),
            (None, Some(option)) if !option.is_empty() => (option, false),
            _ => return Err(invalid(format!("{argument:?} is no flag; --help lists them"))),
        };
        let (name, behind) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (option, None),
        };
        let is_own = |at: usize| name == if is_long { OWN[at].1 } else { OWN[at].0 };
        let mut value = || {
            let value = behind.clone().or_else(|| rest.next().cloned());
            value.ok_or_else(|| invalid(format!("{argument} has no value")))
        };
        let number = parameters.iter().position(|parameter| parameter.is_named(name, is_long));
        steps.push(if is_own(0) {
            Step::Help
        } else if is_own(1) {
            Step::Version
        } else if is_own(2) {
            Step::LogLevel(level(argument, &value()?)?)
        } else if is_own(3) && is_long {
            Step::SdkLogLevel(level(argument, &value()?)?)
        } else if name == if is_long { "json" } else { "j" } {
            return Err(unsupported("parameters in a JSON file are not emulated: give them on the command line"));
        } else if let Some(number) = number {
            let twice = steps.iter().any(|step| matches!(step, Step::Parameter(other, _) if *other == number));
            if twice && !parameters[number].is_multiple {
                return Err(invalid(format!("{argument} is given twice")));
            }
            if parameters[number].kind == DOCA_ARGP_TYPE_BOOLEAN {
                Step::Parameter(number, behind.unwrap_or_else(|| "true".to_owned()))
            } else {
                Step::Parameter(number, value()?)
            }
        } else {
            return Err(invalid(format!("{argument} is no flag of this program; --help lists them")));
        });
    }
    let asks = steps.iter().any(|step| matches!(step, Step::Help | Step::Version));
    let missing = (0..).zip(parameters).find(|(number, parameter)| {
        parameter.is_mandatory && !steps.iter().any(|step| matches!(step, Step::Parameter(given, _) if given == number))
    });
    match missing {
        Some((_, parameter)) if !asks => Err(invalid(format!("{} is mandatory and is not given", parameter.label()))),
        _ => Ok(steps),
    }
}

fn check(code: doca_error_t, what: &str) -> Result<()> {
    if code == DOCA_SUCCESS { Ok(()) } else { Err(Failure(code, format!("the program's own callback refuses {what}"))) }
}

/// Hands a value to the program, whose callback may change it.
fn hand_over(parameter: &Description, value: &str, config: *mut c_void) -> Result<()> {
    let Some(callback) = parameter.callback else { return Ok(()) };
    let what = format!("{} {value}", parameter.label());
    let wrong = |wanted: &str| invalid(format!("{what}: {wanted} is needed"));
    let call = |value: *mut c_void| {
        // SAFETY: the callback gets a value of the parameter's type, and the configuration that the program gave.
        check(unsafe { callback(value, config) }, &what)
    };
    match parameter.kind {
        DOCA_ARGP_TYPE_INT => {
            let mut number: c_int = value.parse().map_err(|_| wrong("an integer of 32 bits"))?;
            call((&raw mut number).cast())
        }
        DOCA_ARGP_TYPE_DOUBLE => {
            let mut number: f64 = value.parse().map_err(|_| wrong("a number"))?;
            call((&raw mut number).cast())
        }
        DOCA_ARGP_TYPE_BOOLEAN => {
            let mut truth: bool = value.parse().map_err(|_| wrong("true or false"))?;
            call((&raw mut truth).cast())
        }
        _ => {
            let mut text = [value.as_bytes(), &[0]].concat();
            call(text.as_mut_ptr().cast())
        }
    }
}

/// Ends the program well, with a text for its user.
fn answer(text: &str) -> ! {
    log::streams()[0].write(text.as_bytes());
    std::process::exit(0)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_start(argc: c_int, argv: *mut *mut c_char) -> doca_error_t {
    run_without_card("doca_argp_start", || {
        let count = usize::try_from(argc).ok().filter(|count| *count >= 1 && !argv.is_null());
        let count = count.ok_or_else(|| invalid(format!("argc is {argc}, or argv null: give those of main")))?;
        // SAFETY: not null; `argc` texts as the caller promises.
        let arguments = unsafe { core::slice::from_raw_parts(argv, count) };
        let mut texts = Vec::new();
        for (number, argument) in arguments.iter().enumerate() {
            // SAFETY: terminated, if not null, as the caller promises.
            texts.push(unsafe { text(*argument, &format!("argv[{number}]")) }?);
        }
        // Callbacks may call the parser: they get a copy of it.
        let parser = with_parser(|parser| {
            let program = texts[0].rsplit('/').next().unwrap_or_default().to_owned();
            parser.program.get_or_insert(program);
            Ok(parser.clone())
        })?;
        let config = std::ptr::with_exposed_provenance_mut(parser.config);
        for step in steps(&parser.parameters, &texts[1..])? {
            match step {
                Step::Help => answer(&usage(&parser)),
                Step::Version => match parser.version {
                    // SAFETY: the program gave both the function and the configuration for it.
                    Some(version) => check(unsafe { version(core::ptr::null_mut(), config) }, "--version")?,
                    None => answer(&format!("DOCA of the emulated card: Flexcast {}\n", env!("CARGO_PKG_VERSION"))),
                },
                Step::LogLevel(level) => log::set_lower_limit(level)?,
                Step::SdkLogLevel(level) => log::set_sdk_limit(level)?,
                Step::Parameter(number, value) => hand_over(&parser.parameters[number], &value, config)?,
            }
        }
        match parser.validation {
            // SAFETY: as above.
            Some(validate) => check(unsafe { validate(config) }, "the configuration"),
            None => Ok(()),
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_get_log_level(log_level: *mut c_int) -> doca_error_t {
    run_without_card("doca_argp_get_log_level", || {
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(log_level, "log_level", log::doca_log_level_get_global_lower_limit() as c_int) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn doca_argp_get_sdk_log_level(log_level: *mut c_int) -> doca_error_t {
    run_without_card("doca_argp_get_sdk_log_level", || {
        // SAFETY: null, or writable as the caller promises.
        unsafe { put(log_level, "log_level", log::doca_log_level_get_global_sdk_limit() as c_int) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> [Description; 3] {
        let named = |short: &str, long: &str, kind| Description {
            short: Some(short.to_owned()),
            long: Some(long.to_owned()),
            kind,
            ..Description::default()
        };
        let mut device = named("pf_dev", "pf-device", DOCA_ARGP_TYPE_STRING);
        device.is_mandatory = true;
        [device, named("g", "gid-index", DOCA_ARGP_TYPE_INT), named("q", "quiet", DOCA_ARGP_TYPE_BOOLEAN)]
    }

    fn read(line: &[&str]) -> std::result::Result<Vec<Step>, (doca_error_t, String)> {
        let line: Vec<String> = line.iter().map(|text| (*text).to_owned()).collect();
        steps(&parameters(), &line).map_err(|Failure(code, reason)| (code, reason))
    }

    #[test]
    fn flags_have_long_and_short_names_and_values() {
        let parameter = |number, value: &str| Step::Parameter(number, value.to_owned());
        assert_eq!(
            read(&["-pf_dev", "mlx5_0", "--gid-index=-3", "-q", "--log-level", "60", "--sdk-log-level=20"]),
            Ok(vec![
                parameter(0, "mlx5_0"),
                parameter(1, "-3"),
                parameter(2, "true"),
                Step::LogLevel(60),
                Step::SdkLogLevel(20)
            ])
        );
        assert_eq!(read(&["-h"]), Ok(vec![Step::Help]));
        assert_eq!(read(&["--version"]), Ok(vec![Step::Version]));
    }

    #[test]
    fn bad_lines_are_refused_with_the_flag() {
        for (line, code, named) in [
            (&[][..], DOCA_ERROR_INVALID_VALUE, "-pf_dev, --pf-device is mandatory"),
            (&["--pf-device"], DOCA_ERROR_INVALID_VALUE, "--pf-device has no value"),
            (&["-pf_dev", "a", "--pf-device=b"], DOCA_ERROR_INVALID_VALUE, "given twice"),
            (&["--none"], DOCA_ERROR_INVALID_VALUE, "--none is no flag"),
            (&["word"], DOCA_ERROR_INVALID_VALUE, "\"word\" is no flag"),
            (&["-"], DOCA_ERROR_INVALID_VALUE, "\"-\" is no flag"),
            (&["-l", "much"], DOCA_ERROR_INVALID_VALUE, "a number from 10 to 70"),
            (&["--json", "file"], DOCA_ERROR_NOT_SUPPORTED, "JSON"),
        ] {
            let (found, reason) = read(line).unwrap_err();
            assert_eq!(found, code, "{reason}");
            assert!(reason.contains(named), "{reason}");
        }
    }
}

//! Options of flexcast_endpoint_open() as read, with the environment for those that the program leaves open.

use std::ffi::{OsString, c_char};
use std::path::Path;

use flexcast_rust::{Endpoint, Firmware};
use flexio::Provider;

use crate::endpoint::{ENDPOINT_DEFAULTS, OpenEndpoint, flexcast_endpoint_options};
use crate::fault::Fault;
use crate::memory::{sized, text};
use crate::status::flexcast_status::*;

const LIBRARIES: &str = "FLEXCAST_LIBRARIES";
const DEVICE: &str = "FLEXCAST_DEVICE";
const FIRMWARE: &str = "FLEXCAST_FIRMWARE";
const SPARSE_FIRMWARE: &str = "FLEXCAST_SPARSE_FIRMWARE";

/// What moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Datapath {
    Dpa,
    Verbs,
    Udp,
    Auto,
}

impl Datapath {
    /// By its name in the options, or else in the environment.
    fn choose(named: Option<&str>, variable: Option<&str>, names_a_card: bool) -> Result<Self, Fault> {
        let (name, from) = match named {
            Some(name) => (name, "datapath"),
            None => (variable.unwrap_or_default(), "FLEXCAST_DATAPATH"),
        };
        match name {
            "dpa" => Ok(Self::Dpa),
            "verbs" => Ok(Self::Verbs),
            "udp" => Ok(Self::Udp),
            "auto" => Ok(Self::Auto),
            "" if names_a_card => Ok(Self::Dpa),
            "" => Ok(Self::Udp),
            other => {
                let text = format!("{from} is {other:?}: must be dpa, verbs, udp or auto");
                Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text))
            }
        }
    }
}

/// Whether memory is watched, by the options or else the environment.
fn is_watched(named: Option<&str>, variable: Option<&str>) -> Result<bool, Fault> {
    match (named.or(variable), named.is_some()) {
        (None | Some("" | "off"), _) => Ok(false),
        (Some("userfaultfd"), _) => Ok(true),
        (Some(other), named) => {
            let (what, code) = match named {
                true => ("memory_watch", FLEXCAST_ERROR_ARGUMENT),
                false => ("FLEXCAST_MEMORY_WATCH", FLEXCAST_ERROR_VARIABLE),
            };
            Err(Fault::new(code, format!("{what} is {other:?}: must be off or userfaultfd")))
        }
    }
}

/// A value of the options, or else of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    value: String,
    /// The field, or the variable.
    from: &'static str,
}

impl Given {
    /// An error about it names the variable: the program has not given it.
    fn blame(given: Option<&Self>, mut fault: Fault) -> Fault {
        if let Some(Self { value, from }) = given.filter(|given| given.from.starts_with("FLEXCAST_")) {
            fault.text.push_str(&format!(" ({from} is {value:?})"));
        }
        fault
    }

    fn text(given: Option<&Self>) -> Option<&str> {
        given.map(|given| &*given.value)
    }
}

/// A variable; none if it is not set, or empty.
fn variable(name: &str, read: &impl Fn(&str) -> Option<OsString>) -> Result<Option<String>, Fault> {
    let Some(value) = read(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    value.into_string().map(Some).map_err(|value| {
        Fault::new(FLEXCAST_ERROR_VARIABLE, format!("{name} is {value:?}: must be UTF-8; give another path or name"))
    })
}

/// What is to be opened, with texts and firmware of its own: the program's need not stay.
pub(crate) struct Asked {
    libraries: Option<Given>,
    device: Option<Given>,
    path: Option<Given>,
    firmware: Option<Vec<u8>>,
    sparse: Option<Given>,
    interface: Option<String>,
    datapath: Datapath,
    watched: bool,
}

impl Asked {
    /// # Safety
    /// Null or options as long as they say, whose pointers are null or what their fields' comments say.
    pub(crate) unsafe fn read(
        options: *const flexcast_endpoint_options,
        read: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Fault> {
        // SAFETY: null, or a structure that begins with its size.
        let options = unsafe { sized(options, ENDPOINT_DEFAULTS, "options") }?;
        let owned = |pointer: *const c_char, what| {
            // SAFETY: null or a C string, for the duration of the call.
            unsafe { text(pointer, what) }.map(|text| text.map(str::to_owned))
        };
        let given = |pointer, field, name| {
            let (value, from) = match owned(pointer, field)? {
                Some(value) => (Some(value), field),
                None => (variable(name, &read)?, name),
            };
            Ok::<_, Fault>(value.map(|value| Given { value, from }))
        };
        let libraries = given(options.libraries, "libraries", LIBRARIES)?;
        let device = given(options.device, "device", DEVICE)?;
        let firmware = (!options.firmware.is_null()).then(|| {
            // SAFETY: the caller gives as many bytes as it says, and leaves them alone during the call.
            unsafe { std::slice::from_raw_parts(options.firmware.cast::<u8>(), options.firmware_bytes) }.to_vec()
        });
        let path = match &firmware {
            // The file's name is its name, if it has one.
            Some(_) => {
                owned(options.firmware_path, "firmware_path")?.map(|value| Given { value, from: "firmware_path" })
            }
            None => given(options.firmware_path, "firmware_path", FIRMWARE)?,
        };
        let sparse = given(options.sparse_firmware_path, "sparse_firmware_path", SPARSE_FIRMWARE)?;
        let named = owned(options.datapath, "datapath")?;
        let names_a_card = firmware.is_some() || [&path, &libraries, &device].iter().any(|given| given.is_some());
        let by_variable = variable("FLEXCAST_DATAPATH", &read)?;
        let datapath = Datapath::choose(named.as_deref(), by_variable.as_deref(), names_a_card)?;
        let interface = owned(options.interface_name, "interface_name")?;
        let watch = owned(options.memory_watch, "memory_watch")?;
        let watched = is_watched(watch.as_deref(), variable("FLEXCAST_MEMORY_WATCH", &read)?.as_deref())?;
        Ok(Self { libraries, device, path, firmware, sparse, interface, datapath, watched })
    }

    pub(crate) fn open(&self) -> Result<OpenEndpoint, Fault> {
        let interface = self.interface.as_deref();
        match self.datapath {
            Datapath::Dpa => self.dpa(),
            Datapath::Verbs => self.verbs(),
            Datapath::Udp => OpenEndpoint::udp(interface),
            Datapath::Auto => self
                .dpa()
                .inspect_err(|fault| tracing::info!(reason = fault.text, "no DPA with the firmware"))
                .or_else(|_| self.verbs())
                .inspect_err(|fault| tracing::info!(reason = fault.text, "no RDMA card"))
                .or_else(|_| OpenEndpoint::udp(interface)),
        }
    }

    /// An RDMA card, without firmware on its DPA.
    fn verbs(&self) -> Result<OpenEndpoint, Fault> {
        let provider = self.provider(if self.sparse.is_some() { Provider::system } else { Provider::rdma })?;
        let device = self.device(&provider)?;
        let endpoint = Endpoint::verbs(&provider, &device)
            .map_err(|error| Given::blame(self.device.as_ref(), Fault::from(error)))?;
        self.opened(endpoint)
    }

    /// A card that is open; starts image `sparse` on its DPA, if that is given.
    fn opened(&self, endpoint: Endpoint) -> Result<OpenEndpoint, Fault> {
        if let Some(given) = &self.sparse {
            let name = &given.value;
            let blame = |fault| Given::blame(Some(given), fault);
            let elf = flexcast_files::bytes(name.as_ref(), flexcast_files::IMAGE).map_err(|error| {
                blame(Fault::new(FLEXCAST_ERROR_FIRMWARE, format!("firmware {name} cannot be read: {error}")))
            })?;
            endpoint.start_aggregators(Firmware { name, elf: &elf }).map_err(|error| blame(Fault::from(error)))?;
        }
        OpenEndpoint::of(endpoint, self.watched)
    }

    /// A card whose DPA runs the firmware.
    fn dpa(&self) -> Result<OpenEndpoint, Fault> {
        let path = Given::text(self.path.as_ref());
        let read;
        let (name, elf) = match &self.firmware {
            Some(elf) => (path.unwrap_or("allgather"), &**elf),
            None => {
                let missing = "neither firmware nor firmware_path nor FLEXCAST_FIRMWARE is given: name the image \
                    `allgather` that was installed with this library (pkg-config --variable=firmware flexcast)";
                let path = path.ok_or_else(|| Fault::new(FLEXCAST_ERROR_FIRMWARE, missing))?;
                read = flexcast_files::bytes(path.as_ref(), flexcast_files::IMAGE).map_err(|error| {
                    let text = format!("firmware {path} cannot be read: {error}");
                    Given::blame(self.path.as_ref(), Fault::new(FLEXCAST_ERROR_FIRMWARE, text))
                })?;
                (path, &*read)
            }
        };
        let provider = self.provider(Provider::system)?;
        let device = self.device(&provider)?;
        let endpoint = Endpoint::open(&provider, &device, Firmware { name, elf }).map_err(|error| {
            let fault = Fault::from(error);
            // Which of the two is wrong, the text says.
            Given::blame(self.path.as_ref(), Given::blame(self.device.as_ref(), fault))
        })?;
        self.opened(endpoint)
    }

    /// The libraries in a folder, or those that `installed` finds.
    fn provider(&self, installed: fn() -> flexio::Result<Provider>) -> Result<Provider, Fault> {
        let provider = match &self.libraries {
            Some(folder) => Provider::from_folder(Path::new(&folder.value)),
            None => installed(),
        };
        provider.map_err(|error| {
            let mut fault = Fault::from(flexcast_rust::Error::from(error));
            fault
                .text
                .push_str(" (`libraries` in flexcast_endpoint_options, or FLEXCAST_LIBRARIES, names a folder of them)");
            fault
        })
    }

    /// The RDMA device that is named, or the first there is.
    fn device(&self, provider: &Provider) -> Result<String, Fault> {
        if let Some(device) = &self.device {
            return Ok(device.value.clone());
        }
        let first = provider.devices().map(|devices| devices.into_iter().next().map(|device| device.name));
        first.map_err(flexcast_rust::Error::from)?.ok_or_else(|| {
            Fault::new(FLEXCAST_ERROR_NO_DEVICE, "no RDMA device here: see whether a card and its driver are there")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn the_datapath_is_what_is_named_or_what_the_firmware_says() {
        let choose =
            |named, variable, firmware| Datapath::choose(named, variable, firmware).map_err(|fault| fault.text);
        assert_eq!(choose(None, None, true), Ok(Datapath::Dpa));
        assert_eq!(choose(None, None, false), Ok(Datapath::Udp));
        assert_eq!(choose(None, Some("udp"), true), Ok(Datapath::Udp));
        assert_eq!(choose(Some("dpa"), Some("udp"), false), Ok(Datapath::Dpa));
        assert_eq!(choose(None, Some("verbs"), true), Ok(Datapath::Verbs));
        assert_eq!(choose(Some("auto"), None, false), Ok(Datapath::Auto));
        assert_eq!(
            (is_watched(None, None).ok(), is_watched(None, Some("userfaultfd")).ok()),
            (Some(false), Some(true))
        );
        assert_eq!(is_watched(Some("off"), Some("userfaultfd")).ok(), Some(false));
        assert!(is_watched(None, Some("on")).unwrap_err().text.contains("FLEXCAST_MEMORY_WATCH is \"on\""));
        assert!(choose(Some("tcp"), None, false).unwrap_err().contains("datapath is \"tcp\""));
        assert!(choose(None, Some("x"), false).unwrap_err().contains("FLEXCAST_DATAPATH is \"x\""));
    }

    /// What is asked for by options and an environment of one's own.
    fn asked(options: flexcast_endpoint_options, variables: &[(&str, &str)]) -> Asked {
        let read = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        // SAFETY: whole options with C strings.
        unsafe { Asked::read(&raw const options, read) }.map_err(|fault| fault.text).unwrap()
    }

    #[test]
    fn variables_stand_in_for_what_the_options_leave_open() {
        let none = asked(ENDPOINT_DEFAULTS, &[(DEVICE, ""), (LIBRARIES, ""), (FIRMWARE, "")]);
        assert_eq!((none.device, none.libraries, none.path, none.datapath), (None, None, None, Datapath::Udp));
        let all = [(DEVICE, "mlx5_1"), (LIBRARIES, "/l"), (FIRMWARE, "/f.elf"), (SPARSE_FIRMWARE, "/s.elf")];
        let by_variable = asked(ENDPOINT_DEFAULTS, &all);
        let given = |value: &str, from| Some(Given { value: value.to_owned(), from });
        assert_eq!(by_variable.device, given("mlx5_1", DEVICE));
        assert_eq!(by_variable.libraries, given("/l", LIBRARIES));
        assert_eq!((by_variable.path, by_variable.datapath), (given("/f.elf", FIRMWARE), Datapath::Dpa));
        let options = flexcast_endpoint_options {
            device: c"mlx5_7".as_ptr(),
            libraries: c"/mine".as_ptr(),
            firmware_path: c"mine.elf".as_ptr(),
            datapath: c"verbs".as_ptr(),
            sparse_firmware_path: c"sparse.elf".as_ptr(),
            ..ENDPOINT_DEFAULTS
        };
        assert_eq!(by_variable.sparse, given("/s.elf", SPARSE_FIRMWARE));
        let by_option = asked(options, &all);
        assert_eq!(by_option.device, given("mlx5_7", "device"));
        assert_eq!(by_option.sparse, given("sparse.elf", "sparse_firmware_path"));
        assert_eq!(by_option.libraries, given("/mine", "libraries"));
        assert_eq!((by_option.path, by_option.datapath), (given("mine.elf", "firmware_path"), Datapath::Verbs));
        // An image in memory has no file.
        let image = [1u8, 2];
        let options =
            flexcast_endpoint_options { firmware: image.as_ptr().cast(), firmware_bytes: 2, ..ENDPOINT_DEFAULTS };
        let in_memory = asked(options, &all);
        assert_eq!((in_memory.path, in_memory.firmware.as_deref()), (None, Some(&image[..])));
    }

    #[test]
    fn errors_name_the_variable_that_they_come_from() {
        let failure = |asked: Asked| asked.open().map(drop).unwrap_err();
        let fault = failure(asked(ENDPOINT_DEFAULTS, &[(FIRMWARE, "/no/such.elf")]));
        assert_eq!(fault.status, FLEXCAST_ERROR_FIRMWARE);
        assert!(
            fault.text.contains("cannot be read") && fault.text.contains("(FLEXCAST_FIRMWARE is \"/no/such.elf\")"),
            "{}",
            fault.text
        );
        let options = flexcast_endpoint_options { firmware_path: c"/no/such.elf".as_ptr(), ..ENDPOINT_DEFAULTS };
        let fault = failure(asked(options, &[(FIRMWARE, "/another.elf")]));
        assert!(fault.text.contains("/no/such.elf") && !fault.text.contains("FLEXCAST_FIRMWARE"), "{}", fault.text);
        let fault =
            failure(asked(ENDPOINT_DEFAULTS, &[("FLEXCAST_DATAPATH", "verbs"), (LIBRARIES, "/no/such/folder")]));
        assert_eq!(fault.status, FLEXCAST_ERROR_NOT_INSTALLED);
        assert!(fault.text.contains("/no/such/folder") && fault.text.contains("FLEXCAST_LIBRARIES"), "{}", fault.text);
        let fault = failure(asked(ENDPOINT_DEFAULTS, &[("FLEXCAST_DATAPATH", "dpa")]));
        assert!(
            fault.status == FLEXCAST_ERROR_FIRMWARE && fault.text.contains("nor FLEXCAST_FIRMWARE is given"),
            "{}",
            fault.text
        );
        let wrong = |name: &str| (name == DEVICE).then(|| OsString::from_vec(vec![b'm', 0xFF]));
        let options = ENDPOINT_DEFAULTS;
        // SAFETY: whole options without texts.
        let fault = unsafe { Asked::read(&raw const options, wrong) }.map(drop).unwrap_err();
        assert!(
            fault.status == FLEXCAST_ERROR_VARIABLE
                && fault.text.contains("FLEXCAST_DEVICE is \"m\\xFF\": must be UTF-8"),
            "{}",
            fault.text
        );
    }
}

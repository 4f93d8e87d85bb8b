//! Release of FlexIO that the program names for itself.

use std::sync::Mutex;

use flexio_sys::*;

use crate::status::{Result, failed, status};

/// Release that the process has named, and whether it is too late for that.
struct Program {
    version: Option<u64>,
    has_process: bool,
}

static PROGRAM: Mutex<Program> = Mutex::new(Program { version: None, has_process: false });

/// The last release whose interface is known: 26.4.
const NEWEST: u64 = version(26, 4);

/// `FLEXIO_VER_LATEST` of flexio_ver.h: that of the library, whatever it is.
const LATEST: u64 = 0xFFFF_FFFF;

const fn version(major: u64, minor: u64) -> u64 {
    (major << FLEXIO_VER_MAJOR_OFFS) | (minor << FLEXIO_VER_MINOR_OFFS)
}

fn text(version: u64) -> String {
    let (major, minor) = (version >> FLEXIO_VER_MAJOR_OFFS, (version >> FLEXIO_VER_MINOR_OFFS) & 0xff);
    format!("{major}.{minor}.{}", version & 0xffff)
}

impl Program {
    fn set(&mut self, version: u64) -> Result<()> {
        // Corrections of a release change no interface.
        if version >> FLEXIO_VER_MINOR_OFFS > NEWEST >> FLEXIO_VER_MINOR_OFFS && version != LATEST {
            let (asked, newest) = (text(version), text(NEWEST));
            return Err(failed(format!(
                "version {asked} is newer than this library, which knows programs up to {newest}: build the program \
                 with FLEXIO_VER_USED FLEXIO_VER({})",
                newest.replace('.', ", ")
            )));
        }
        if let Some(before) = self.version.filter(|before| *before != version) {
            return Err(failed(format!(
                "version {} after {}: all parts of a program need the same FLEXIO_VER_USED",
                text(version),
                text(before)
            )));
        }
        if self.version.is_none() && self.has_process {
            return Err(failed(format!(
                "version {} after flexio_process_create: call flexio_version_set first, as structures depend on it",
                text(version)
            )));
        }
        self.version = Some(version);
        Ok(())
    }
}

/// From now on it is too late to name a version.
pub(crate) fn has_process() {
    PROGRAM.lock().unwrap_or_else(std::sync::PoisonError::into_inner).has_process = true;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn flexio_version_set(version: u64) -> flexio_status {
    status("flexio_version_set", || PROGRAM.lock().unwrap_or_else(std::sync::PoisonError::into_inner).set(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> Program {
        Program { version: None, has_process: false }
    }

    fn reason(result: Result<()>) -> String {
        result.expect_err("it is refused").reason
    }

    #[test]
    fn a_program_names_one_version_before_it_makes_a_process() {
        let mut program = new();
        program.set(version(24, 10)).expect("an older release");
        program.has_process = true;
        program.set(version(24, 10)).expect("the same again");
        assert!(reason(program.set(version(26, 1))).contains("version 26.1.0 after 24.10.0"));
        let mut late = Program { has_process: true, ..new() };
        assert!(reason(late.set(NEWEST)).contains("after flexio_process_create"));
    }

    #[test]
    fn versions_of_the_future_are_refused_and_corrections_are_not() {
        assert!(
            reason(new().set(version(26, 5))).contains("newer than this library, which knows programs up to 26.4.0")
        );
        new().set(NEWEST + 7).expect("a correction");
        new().set(LATEST).expect("the latest");
    }
}

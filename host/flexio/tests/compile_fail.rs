//! Misuse that must not compile: using bytes that a card may write, copying them on two threads at a time, using a
//! bound key that was given back.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use flexio::*;

/// The library that this test is linked with, or one that was built of the same sources after it: cargo keeps them
/// next to the test.
fn library(folder: &Path) -> PathBuf {
    let entries = std::fs::read_dir(folder).expect("the folder of this program");
    let libraries = entries.map(|entry| entry.expect("an entry").path()).filter(|path| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.starts_with("libflexio-") && name.ends_with(".rlib")
    });
    let time = |path: &PathBuf| path.metadata().and_then(|file| file.modified()).expect("a time");
    libraries.max_by_key(time).expect("libflexio-*.rlib next to this program")
}

/// What the compiler says of a case, and whether it accepts it.
fn compiled(case: &Path) -> (String, bool) {
    let program = std::env::current_exe().expect("this program");
    let folder = program.parent().expect("its folder");
    let pair = |name: &str, path: &Path| {
        let mut argument = OsString::from(name);
        argument.push(path);
        argument
    };
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.args(["--edition=2024", "--crate-type=bin", "--emit=metadata=/dev/null", "--color=never"]);
    command.args(["--diagnostic-width=140", "--allow=dead_code", "--extern"]).arg(pair("flexio=", &library(folder)));
    command.arg("-L").arg(pair("dependency=", folder)).arg(case).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().expect("rustc starts");
    (String::from_utf8(output.stderr).expect("a text"), output.status.success())
}

/// What the compiler says, line by line, without what depends on where its library and ours lie, and on their lines.
fn said(text: &str, case: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut elsewhere = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("error: aborting") || line.starts_with("For more information") {
            continue;
        }
        let shown = line.starts_with(|first: char| first == '|' || first.is_ascii_digit());
        let Some(place) = line.strip_prefix("--> ") else {
            if !(elsewhere && shown) {
                elsewhere = false;
                lines.push(line.to_owned());
            }
            continue;
        };
        let file = place.split(':').next().expect("a part");
        elsewhere = file != case;
        lines.push(match file.split_once("/library/") {
            _ if !elsewhere => line.to_owned(),
            Some((_, standard)) => format!("--> $RUST/{standard}"),
            None => format!("--> {}", file.strip_prefix("host/flexio/").unwrap_or(file)),
        });
    }
    while lines.pop_if(|line| line.is_empty()).is_some() {}
    lines
}

/// The compiler is called by itself: cargo would compile all crates below once more for it.
#[test]
fn misuse_does_not_compile() {
    for name in
        ["binding_used_after_it_was_given_back", "buffer_used_while_registered", "region_shared_between_threads"]
    {
        let case = format!("tests/compile-fail/{name}.rs");
        let (text, accepted) = compiled(case.as_ref());
        assert!(!accepted, "{case} compiles\n{text}");
        let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join(&case).with_extension("stderr");
        let recorded = std::fs::read_to_string(recorded).expect("what the compiler is to say");
        assert_eq!(said(&text, &case), said(&recorded, &case), "{case}:\n{text}");
    }
}

/// Compiles only if objects of this type may go to another thread.
fn goes<T: Send + 'static>() {}

/// And only if several threads may use one of them.
fn is_shared<T: Send + Sync + 'static>() {}

#[test]
fn objects_go_from_thread_to_thread() {
    goes::<MemoryRegion>();
    goes::<MsgStream>();
    is_shared::<Provider>();
    is_shared::<Device>();
    is_shared::<ProtectionDomain>();
    is_shared::<CompletionQueue>();
    is_shared::<QueuePair>();
    is_shared::<AddressHandle>();
    is_shared::<MulticastMembership>();
    is_shared::<Application>();
    is_shared::<Process>();
    is_shared::<Window>();
    is_shared::<Outbox>();
    is_shared::<DeviceBuffer>();
    is_shared::<MemoryKey>();
    is_shared::<EventHandler>();
    is_shared::<DpaCompletionQueue>();
    is_shared::<DpaQueuePair>();
    is_shared::<GroupKey>();
    goes::<ExportedRegion>();
    goes::<Binding>();
    is_shared::<AliasKey>();
    is_shared::<BindingPool>();
    is_shared::<AliasPool>();
    is_shared::<BoundAlias>();
    is_shared::<AliasQueue>();
}

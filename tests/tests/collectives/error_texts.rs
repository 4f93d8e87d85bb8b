//! Error texts of the libraries where a program shows them: through `main`, `unwrap` and the C interface.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use flexcast::bootstrap::{CallbackExchange, Exchange as _, StoreError, SubgroupError};
use flexcast::{Failed, Report, p2p, registration};
use flexcast_image::{Image, ImageError};
use flexcast_isa::Isa;
use flexcast_lab::model::fabric::FatTree;
use flexcast_lab::model::traffic::TrafficError;
use flexcast_proto::RankInfo;
use flexcast_tests::examples::{allgather, compile, compiler};
use flexcast_tests::{image_path, workspace_root};

/// Crates whose errors reach programs.
const LIBRARIES: [&str; 11] = [
    "shared/isa/src",
    "image/src",
    "host/cuda/src",
    "host/verbs-sys/src",
    "host/flexio-sys/src",
    "host/doca-sys/src",
    "host/flexio/src",
    "host/bootstrap/src",
    "host/flexcast/src",
    "host/capi/src",
    "lab/src/model",
];

/// `Debug` begins with the sentence, and goes on with its causes at most.
#[track_caller]
fn says_its_sentence<E: Debug + Display>(error: &E, sentence: &str) {
    let (debug, display) = (format!("{error:?}"), error.to_string());
    assert!(debug.starts_with(&display) && debug.contains(sentence), "{debug}");
    assert!(!debug.contains(" { "), "{debug}");
    assert!(format!("{:?}", Err::<(), _>(error)).contains(sentence), "nested in another value");
}

#[test]
fn errors_of_images_say_their_sentence_in_debug() {
    let text = Image::parse(b"# no ELF").map(drop).expect_err("a text");
    says_its_sentence(&text, "not an ELF file: it starts with [23, 20, 6e, 6f] instead of 7f 45 4c 46");
    says_its_sentence(&Isa::parse("x86").expect_err("another ISA"), "ISA string `x86` does not start with rv64");
    let hash = ImageError::AbiHash { found: 1, wanted: 2 };
    says_its_sentence(&hash, "rebuild both from one source");
    assert_eq!(hash, hash.clone(), "and can be compared as before");
}

#[test]
fn errors_of_cards_say_their_sentence_and_their_cause_in_debug() {
    let missing = verbs_missing();
    says_its_sentence(&missing, "no/such/folder");
    let debug = format!("{missing:?}");
    assert!(
        debug.contains("DOCA not installed") && debug.contains("libflexio.so.2 cannot be loaded (no/such/folder/"),
        "{debug}"
    );
    let cause = ImageError::NoSymbols;
    let image = flexio::Error::Image { image: "hello".to_owned(), source: cause.clone() };
    assert_eq!(format!("{image:?}"), format!("{image}: {cause}"));
    // Each cause on a line of its own, where a reader asks for more than a line.
    assert_eq!(format!("{image:#?}"), format!("{image}\n  because {cause}"));
}

fn verbs_missing() -> flexio::Error {
    flexio::Provider::from_folder(Path::new("no/such/folder")).map(drop).expect_err("no such folder")
}

#[test]
fn errors_of_the_collective_library_say_their_sentence_in_debug() {
    // What a newcomer meets first: `Error: RankInfo(Rank { rank: 5, ranks: 2 })` before.
    let place = RankInfo::new(5, 2).expect_err("no such rank");
    let error = flexcast::Error::from(place);
    says_its_sentence(&error, "rank 5");
    // As `main` shows it.
    let boxed: Box<dyn std::error::Error> = error.into();
    assert!(format!("Error: {boxed:?}").contains(&place.to_string()));

    let image = flexcast::Error::BringUp { image: "old".to_owned(), answer: 1, expected: 2 };
    says_its_sentence(
        &Failed { error: image, send: None, receive: None, report: Report::default() },
        "build it with this library's version",
    );
    let mut alone = CallbackExchange::new(0, 1, |_: &[u8], _: &mut [u8]| Err("the line is busy".into())).expect("one");
    says_its_sentence(&alone.exchange("hello", b"x").expect_err("refused"), "the line is busy");
    says_its_sentence(&StoreError::Unset { name: "FLEXCAST_RANK", wanted: "a number" }, "FLEXCAST_RANK is not set");
    let waited = Duration::from_secs(1);
    let (address, reason) = ("a:1".to_owned(), "refused".to_owned());
    let first = StoreError::Unreachable { address, waited, reason, is_loopback: false };
    says_its_sentence(&StoreError::Broken { earlier: Box::new(first) }, "was not found at a:1 within 1.0 s");
    says_its_sentence(&SubgroupError::Twice { rank: 3 }, "rank 3 is twice a member");
    says_its_sentence(&registration::Range::new(16, 0).expect_err("no bytes"), "no bytes at 0x10");
    says_its_sentence(&FatTree::new(1, 2, 3).expect_err("no tree"), "1 ranks on 2 leaf switches in 3 pods");
    says_its_sentence(&TrafficError::from(place), "rank 5");
    let busy = p2p::Error::Busy { operation: 7 };
    says_its_sentence(&busy, "operation 7 is not complete");
    let source = flexio::Error::Foreign { what: "application", parent: "provider" };
    let broke = p2p::Error::Connection { peer: 1, source };
    says_its_sentence(&broke, "application belongs to another provider");
    // A cause that the sentence names already is not given twice.
    let refusal = flexio::Error::Foreign { what: "key", parent: "card" };
    let lacks = flexcast::Error::Unsupported { what: "group keys", next: "take UD", refusal };
    assert_eq!(format!("{lacks:?}").matches("key belongs to another card").count(), 1, "{lacks:?}");
}

/// Sources of a folder, and what is in them before their tests.
fn sources(folder: &Path, visit: &mut dyn FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(folder).expect("a folder of the tree") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source");
            visit(&path, text.split("#[cfg(test)]").next().expect("the whole"));
        }
    }
}

/// So that the next error type is no exception.
#[test]
fn no_error_type_of_the_libraries_derives_debug() {
    let mut types = 0;
    for library in LIBRARIES {
        sources(&workspace_root().join(library), &mut |path, text| {
            for derive in text.lines().filter(|line| line.starts_with("#[derive(") && line.contains("Error)")) {
                assert!(!derive.contains("Debug"), "{}: {derive}: use flexcast_error", path.display());
                types += 1;
            }
        });
    }
    assert!(types >= 10, "{types} found: are the sources still read right?");
}

/// The libraries serve programs, which have no options of the command-line tool.
#[test]
fn no_text_of_the_libraries_names_an_option_of_the_tool() {
    for library in LIBRARIES {
        sources(&workspace_root().join(library), &mut |path, text| {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            for line in code {
                for option in ["--provider", "--device", "--topology", "--libs", "flexcast run", "flexcast tput"] {
                    assert!(!line.contains(option), "{}: {line}", path.display());
                }
            }
        });
    }
}

#[test]
fn programs_in_c_can_distinguish_what_is_not_installed_from_what_is_no_image() {
    let Some(compiler) = compiler() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (program, libraries) = (compile(compiler, "open", folder.path()), &allgather(true).libraries);
    let say = |arguments: &[&Path]| {
        let mut command = Command::new(&program);
        let output = command.args(arguments).env_remove("LD_LIBRARY_PATH").output().expect("it starts");
        String::from_utf8(output.stdout).expect("a text")
    };
    let image = image_path("allgather");
    // On a machine with DOCA there is something else to say.
    let nowhere = folder.path().join("nowhere");
    for arguments in [&[&*image][..], &[&*image, &*nowhere]] {
        let said = say(arguments);
        if arguments.len() > 1 || !said.starts_with("opened") {
            assert!(said.starts_with("117: the libraries of the card are not installed: DOCA not installed"), "{said}");
            for next in ["LD_LIBRARY_PATH", "flexcast_endpoint_options", "build-emu-libs", "install"] {
                assert!(said.contains(next), "{said}");
            }
            assert!(!said.contains("--"), "{said}");
        }
    }
    let text = workspace_root().join("tests/c/open.c");
    let said = say(&[&text, libraries]);
    assert!(
        said.starts_with("120: the firmware is no image that the library can use: ") && said.contains("not an ELF")
    );
    let said = say(&[&nowhere, libraries]);
    assert!(said.starts_with("6: no firmware is given, or its file cannot be read: "), "{said}");
    assert_eq!(say(&[&image, libraries]), "opened\n");
    // A device of the environment, which the program knows nothing of.
    let mut command = Command::new(&program);
    command.arg(&image).env_remove("LD_LIBRARY_PATH").env("FLEXCAST_LIBRARIES", libraries);
    let output = command.env("FLEXCAST_DEVICE", "mlx5_9").output().expect("it starts");
    let said = String::from_utf8(output.stdout).expect("a text");
    assert!(said.contains("mlx5_0, mlx5_1") && said.contains("(FLEXCAST_DEVICE is \"mlx5_9\")"), "{said}");
    let opened = command.env("FLEXCAST_DEVICE", "mlx5_1").output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&opened.stdout), "opened\n");
}

//! A program of somebody else: a cargo project outside this workspace that keeps card and communicator in one structure
//! and waits on other threads.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use flexcast_tests::harness::{is_long, skipped};
use flexcast_tests::libs::libraries;
use flexcast_tests::{image_path, workspace_root};

const PROGRAM: &str = r#"
use std::error::Error;
use std::path::Path;
use std::thread;

use flexcast::{Endpoint, Communicator, Config, Firmware, Pending, Request};
use flexio::Provider;

struct Rank {
    request: Option<Request>,
    communicator: Communicator,
    card: Endpoint,
}

impl Rank {
    fn begin(&mut self, bytes: usize) -> flexcast::Result<()> {
        let mut send = self.card.buffer(bytes)?;
        send.fill(self.communicator.rank() as u8 + 1);
        let receive = self.card.buffer(bytes * self.communicator.size() as usize)?;
        self.request = Some(self.communicator.allgather(send, receive)?);
        Ok(())
    }

    fn end(mut self) -> flexcast::Result<Vec<u8>> {
        let request = self.request.take().expect("begun");
        request.wait()?.receive.to_vec()
    }
}

fn ranks(libraries: &Path, image: &Path) -> Result<Vec<Rank>, Box<dyn Error>> {
    let provider = Provider::from_folder(libraries)?;
    let elf = std::fs::read(image)?;
    let cards = provider.devices()?.into_iter().map(|device| {
        Endpoint::open(&provider, &device.name, Firmware { name: "allgather", elf: &elf })
    });
    let cards = cards.collect::<Result<Vec<Endpoint>, _>>()?;
    let ranks = cards.len() as u32;
    let make = |(rank, card): (u32, &Endpoint)| Pending::new(card, rank, ranks, Config::for_endpoint(card));
    let pending = (0..).zip(&cards).map(make).collect::<Result<Vec<_>, _>>()?;
    let infos: Vec<_> = pending.iter().map(Pending::connect_info).collect();
    let connected = pending.into_iter().zip(&cards).map(|(pending, card)| {
        Ok(Rank { request: None, communicator: pending.connect(&infos)?, card: card.clone() })
    });
    connected.collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [libraries, image] = &arguments[..] else { return Err("usage: outside LIBRARIES IMAGE".into()) };
    // Nothing but the ranks comes back.
    let mut ranks = ranks(libraries.as_ref(), image.as_ref())?;
    for rank in &mut ranks {
        rank.begin(3000)?;
    }
    let threads: Vec<_> = ranks.into_iter().map(|rank| thread::spawn(move || rank.end())).collect();
    for thread in threads {
        let gathered = thread.join().expect("no panic")?;
        let right = gathered.chunks(3000).zip(1..).all(|(block, value)| block.iter().all(|byte| *byte == value));
        println!("{} bytes, {}", gathered.len(), if right { "equal" } else { "different" });
    }
    Ok(())
}
"#;

/// Makes the project, with crates of this tree by their paths, and the same versions of all others.
fn project(folder: &Path) {
    let root = workspace_root();
    let mut manifest =
        String::from("[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n");
    for name in ["flexcast", "flexio"] {
        writeln!(manifest, "{name} = {{ path = {:?} }}", root.join("host").join(name)).expect("a text");
    }
    manifest.push_str("\n[profile.dev]\ndebug = false\n\n[workspace]\n");
    fs::create_dir(folder.join("src")).expect("a folder");
    fs::write(folder.join("Cargo.toml"), manifest).expect("written");
    fs::write(folder.join("src/main.rs"), PROGRAM).expect("written");
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).expect("a lock file");
}

fn build(folder: &Path) -> std::path::PathBuf {
    // Kept between runs, separate from what this workspace builds with other features.
    let target = workspace_root().join("target/outside");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--offline", "--manifest-path"])
        .arg(folder.join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", &target)
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target.join("debug/outside")
}

#[test]
fn a_program_outside_the_workspace_keeps_card_and_communicator_in_one_structure() {
    if !is_long() {
        skipped("it compiles the library once more; `cargo xtask test --long` runs it");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    project(folder.path());
    let program = build(folder.path());
    let run = |image: &Path| {
        let mut command = Command::new(&program);
        let output = command.arg(libraries()).arg(image).output().expect("the program starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (success, said, errors) = run(&image_path("allgather"));
    assert!(success, "{errors}");
    assert_eq!(said, "6000 bytes, equal\n6000 bytes, equal\n");
    // What goes wrong is a sentence, as `main` prints errors in Debug.
    let (success, _, errors) = run(&folder.path().join("Cargo.toml"));
    assert!(!success && errors.contains("Cargo.toml") || errors.contains("not an ELF"), "{errors}");
}

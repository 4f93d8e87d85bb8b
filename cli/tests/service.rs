//! `flexcast service`: the status of a daemon as a table and as a document, its absence, and configuration files.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use flexcast_service::daemon::status::Status;
use flexcast_service::{ProcessStatus, Reason};

fn flexcast(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flexcast")).arg("service").args(args).output().expect("the tool starts")
}

fn refused(args: &[&str], words: &[&str]) {
    let output = flexcast(args);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
    assert!(output.stdout.is_empty() && words.iter().all(|word| text.contains(word)), "{args:?}: {text}");
}

/// The output of a command while somebody answers it at a socket.
fn answered(path: &Path, answer: &str, args: &[&str]) -> Output {
    _ = std::fs::remove_file(path);
    let socket = UnixListener::bind(path).expect("a socket");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = socket.accept().expect("a question");
            stream.write_all(answer.as_bytes()).expect("answered");
        });
        flexcast(args)
    })
}

#[test]
fn a_status_is_a_table_or_a_document() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("status");
    let socket = path.to_str().expect("UTF-8");
    refused(&["status", "--socket", socket], &["no flexcast-service answers at", socket, "start it"]);
    let mut process = ProcessStatus { address: "192.0.2.7:4870".to_owned(), ..ProcessStatus::default() };
    (process.now.programs, process.now.groups, process.now.active_reads, process.counts.read_bytes) = (3, 2, 1, 4096);
    process.net.refused[Reason::Secret as usize] = 5;
    let status =
        Status { pid: 77, device: "mlx5_3".to_owned(), uptime_s: 9, processes: vec![process], ..Status::default() };
    let answer = serde_json::to_string(&status).expect("a document");
    let output = answered(&path, &answer, &["status", "--socket", socket]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for words in [
        "process 77: serving mlx5_3",
        "192.0.2.7:4870",
        "1 of 4",
        "4096",
        "peers 1152",
        "process 0 has refused connections: secret 5",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    let output = answered(&path, &answer, &["status", "--json", "--socket", socket]);
    assert_eq!(serde_json::from_slice::<Status>(&output.stdout).expect("the document"), status);
    let output = answered(&path, "{}", &["status", "--socket", socket]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("no flexcast-service of this release"), "{text}");
}

#[test]
fn a_configuration_is_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, secret) = (folder.path().join("service.toml"), folder.path().join("secret"));
    let name = file.to_str().expect("UTF-8");
    refused(&["check", name], &[name, "No such file"]);
    let text = format!("device = \"mlx5_0\"\nlisten = \"192.0.2.1\"\nsecret = \"{}\"\n", secret.display());
    std::fs::write(&file, &text).expect("written");
    refused(&["check", name], &["the secret in", "No such file"]);
    std::fs::write(&secret, "ab".repeat(32)).expect("written");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("set");
    let output = flexcast(&["check", name]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("4 service processes for mlx5_0, ports 4870"));
    std::fs::write(&file, text + "processes = 65\n").expect("written");
    refused(&["check", name], &["line 4", "`processes` is 65", "1 to 64"]);
}

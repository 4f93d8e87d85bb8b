//! `cargo xtask deploy --to`: deployments by OpenSSH to an sshd that the test starts on this computer, with host key,
//! accepted keys and configuration of its own. Without sshd these tests are skipped, and say so on stderr.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use flexcast_tests::harness::{is_long, skipped};
use flexcast_tests::tree::{build_tool, copied_tree};

/// An sshd and what a client needs to log in.
struct Server {
    folder: tempfile::TempDir,
    port: u16,
    daemon: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

const SFTP: &str = "/usr/lib/openssh/sftp-server";

impl Server {
    /// Starts one; `None` where this machine has none. `sftp`: what serves copies.
    fn start(more: &str, sftp: &str) -> Option<Self> {
        let sshd = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].into_iter().find(|path| Path::new(path).is_file());
        let (Some(sshd), true) = (sshd, Path::new(SFTP).is_file()) else {
            skipped("sshd is not installed (Debian: openssh-server)");
            return None;
        };
        // An sshd of root keeps its children in this folder; the system's own makes it, too.
        if nix::unistd::geteuid().is_root() && fs::create_dir_all("/run/sshd").is_err() {
            skipped("sshd needs /run/sshd where root starts it, and it cannot be made");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for key in ["host_key", "user_key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path(key));
            assert!(keygen.status().expect("ssh-keygen starts").success());
        }
        fs::copy(path("user_key.pub"), path("accepted")).expect("the accepted key");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {at}/host_key\nAuthorizedKeysFile {at}/accepted\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin yes\nPidFile none\nSubsystem sftp {sftp}\n{more}\n",
            at = folder.path().display()
        );
        fs::write(path("sshd_config"), config).expect("the server's configuration");
        let host_key = fs::read_to_string(path("host_key.pub")).expect("the host's key");
        fs::write(path("known_hosts"), format!("[127.0.0.1]:{port} {host_key}")).expect("the known hosts");
        fs::write(path("nobody"), "").expect("an empty file");
        client(&folder, "client", "known_hosts", "user_key");
        client(&folder, "stranger", "nobody", "user_key");
        client(&folder, "keyless", "known_hosts", "host_key");
        let log = fs::File::create(path("log")).expect("a log");
        let mut command = Command::new(sshd);
        let daemon = command.args(["-D", "-e", "-f"]).arg(path("sshd_config")).stderr(log).spawn().expect("sshd");
        let server = Self { folder, port, daemon };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = || fs::read_to_string(server.folder.path().join("log")).unwrap_or_default();
            assert!(start.elapsed() < Duration::from_secs(20), "sshd does not listen: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(server)
    }

    /// Where deployments go.
    fn home(&self) -> PathBuf {
        self.folder.path().join("deployed")
    }

    /// Deploys an image from the tree at `root`, as a client with this configuration.
    fn deploy_as(&self, root: Option<&Path>, client: &str, image: &str, options: &[&str]) -> Output {
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().expect("a user").name;
        let mut command = build_tool();
        if let Some(root) = root {
            command.env("FLEXCAST_ROOT", root);
        }
        command.args(["deploy", image, "--profile", "dev"]);
        command.args(["--to", &format!("ssh://{user}@127.0.0.1:{}", self.port)]);
        command.arg("--ssh-config").arg(self.folder.path().join(client));
        if !options.contains(&"--folder") {
            command.arg("--folder").arg(self.home());
        }
        command.args(options).output().expect("the build tool starts")
    }

    fn deploy(&self, options: &[&str]) -> Output {
        self.deploy_as(None, "client", "pingpong", options)
    }

    /// What counts there.
    fn current(&self) -> PathBuf {
        fs::read_link(self.home().join("current")).expect("a deployment")
    }

    /// Names in the folder of deployments.
    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.home()).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// Writes a client's configuration.
fn client(folder: &tempfile::TempDir, name: &str, known: &str, key: &str) {
    let at = folder.path().display();
    let config = format!(
        "Host *\nIdentityFile {at}/{key}\nIdentitiesOnly yes\nIdentityAgent none\nUserKnownHostsFile {at}/{known}\n\
         GlobalKnownHostsFile /dev/null\n"
    );
    fs::write(folder.path().join(name), config).expect("a client's configuration");
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What a command that succeeds says.
fn done(output: &Output) -> String {
    let said = text(output);
    assert!(output.status.success(), "{said}");
    said
}

/// What a command that fails says, with all of these words.
fn refused(output: &Output, words: &[&str]) {
    let said = text(output);
    assert!(!output.status.success(), "{said}");
    for word in words {
        assert!(said.contains(word), "no {word:?} in\n{said}");
    }
}

#[test]
fn an_image_is_copied_started_and_its_logs_come_back() {
    let Some(server) = Server::start("", SFTP) else { return };
    // What would be done, and nothing is.
    let said = done(&server.deploy(&["--dry-run"]));
    for part in ["scp -F", "BatchMode=yes", "sha256sum", "mv -T", "bin/flexcast deploy", "nothing was run"] {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }
    assert!(!server.home().exists());

    let said = done(&server.deploy(&[]));
    for part in ["0 failed", "on emulated card mlx5_0", "as the ABI demands", "device: ", "Brought"] {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }
    let first = server.current();
    let library = server.home().join("current/lib/libflexcast.so");
    assert!(library.is_file(), "programs in C link with the name without a number");

    // A folder of somebody else's, whose name looks like that of a deployment.
    fs::create_dir(server.home().join("2024-archives")).expect("a folder");

    // Only signed images: refused before anything is built or copied, and a command that does not sign does not help.
    fs::write(server.home().join("require-signatures"), "").expect("a wish");
    refused(&server.deploy(&[]), &["takes signed images alone", "--sign"]);
    refused(&server.deploy(&["--sign", "true"]), &["left the image as it was", "nothing is deployed"]);
    refused(&server.deploy(&["--sign", "echo >"]), &["left no ELF file", "nothing is deployed"]);
    assert_eq!(server.current(), first);

    // A program of the old deployment still runs: the process is named.
    let program = server.home().join("current/bin/sleeper");
    fs::copy("/bin/sleep", &program).expect("a program");
    let mut running = Command::new(&program).arg("600").stdout(Stdio::null()).spawn().expect("started");
    let holder = format!("in use by process {} (sleeper)", running.id());
    let sign = ["--sign", "printf signed >>"];
    refused(&server.deploy(&sign), &[&holder, "--replace-running"]);
    assert_eq!(server.current(), first);
    refused(&server.deploy(&[&sign[..], &["--drain", "1"]].concat()), &["waiting 1 s for process", &holder]);
    assert_eq!(server.current(), first);
    // One that ends is waited for.
    let mut short = Command::new(&program).arg("5").stdout(Stdio::null()).spawn().expect("started");
    running.kill().and_then(|()| running.wait()).expect("ended");
    done(&server.deploy(&[&sign[..], &["--drain", "600"]].concat()));
    short.wait().expect("it has ended");
    let drained = server.current();
    assert_ne!(drained, first);
    let program = server.home().join("current/bin/sleeper");
    fs::copy("/bin/sleep", &program).expect("a program");
    let mut running = Command::new(&program).arg("600").stdout(Stdio::null()).spawn().expect("started");
    done(&server.deploy(&[&sign[..], &["--replace-running"]].concat()));
    running.kill().and_then(|()| running.wait()).expect("ended");
    let second = server.current();
    assert_ne!(second, drained);
    let image = fs::read(server.home().join("current/share/flexcast/pingpong.elf")).expect("an image");
    assert!(image.ends_with(b"signed"));
    // The one before stays; what was refused is gone.
    let mut expected = ["2024-archives", "current", "require-signatures"].map(str::to_owned).to_vec();
    expected.extend([drained, second].map(|path| path.to_string_lossy().into_owned()));
    expected.sort();
    assert_eq!(server.names(), expected);
}

#[test]
fn who_is_not_known_is_refused_with_the_next_step() {
    let Some(server) = Server::start("", SFTP) else { return };
    let with = |client: &str| server.deploy_as(None, client, "pingpong", &[]);
    refused(&with("stranger"), &["host key is not known", "log in once by hand", "fingerprint"]);
    refused(&with("keyless"), &["Permission denied", "no password is asked for", "ssh-copy-id"]);
    refused(&server.deploy(&["--folder", "/proc/flexcast"]), &["looking around", "/proc/flexcast"]);
    refused(&server.deploy(&["--to", "host"]), &["ssh://[USER@]HOST[:PORT]"]);
    assert!(!server.home().exists());
    drop(server);
}

#[test]
fn a_copy_that_is_not_whole_leaves_the_old_deployment() {
    if !is_long() {
        skipped("it deploys several times; `cargo xtask test --long` runs it");
        return;
    }
    let tools = tempfile::tempdir().expect("a folder");
    let df = tools.path().join("df");
    // A full disk to whoever asks; the file decides.
    let full = tools.path().join("full");
    let script =
        format!("#!/bin/sh\n[ -e {} ] && exec echo \"h\n/dev/x 9 9 12 9% /\"\nexec /bin/df \"$@\"\n", full.display());
    fs::write(&df, script).expect("a program");
    let executable = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(&df, executable.clone()).expect("a program");
    // Copies die behind so many blocks while a file is there, as by a connection that ends; or writing fails.
    let [dies, fails] = ["dies", "fails"].map(|name| tools.path().join(name));
    let sftp = tools.path().join("sftp");
    let script = format!(
        "#!/bin/sh\n[ -e {} ] && ulimit -f 4000\n[ -e {} ] && {{ trap '' XFSZ; ulimit -f 4000; }}\nexec {SFTP}\n",
        dies.display(),
        fails.display()
    );
    fs::write(&sftp, script).expect("a program");
    fs::set_permissions(&sftp, executable).expect("a program");
    let path = format!("SetEnv PATH={}:/usr/local/bin:/usr/bin:/bin", tools.path().display());
    let Some(server) = Server::start(&path, &sftp.display().to_string()) else { return };

    done(&server.deploy(&[]));
    let (current, names) = (server.current(), server.names());
    let cases: [(&Path, &[&str]); 3] = [
        (&full, &["12 KiB are free", "make room", "--folder"]),
        (&dies, &["copying at ssh://", "not whole", "was not put in place"]),
        (&fails, &["copying at ssh://", "not whole", "was not put in place"]),
    ];
    for (trouble, words) in cases {
        fs::write(trouble, "").expect("trouble");
        refused(&server.deploy(&[]), words);
        fs::remove_file(trouble).expect("no trouble");
        assert_eq!((server.current(), server.names()), (current.clone(), names.clone()), "{}", trouble.display());
    }
}

#[test]
fn a_crash_record_comes_back() {
    if !is_long() {
        skipped("it builds an image of its own; `cargo xtask test --long` runs it");
        return;
    }
    let Some(server) = Server::start("", SFTP) else { return };
    let scratch = copied_tree();
    let root = scratch.path();
    let created = build_tool().args(["new", "crashes"]).env("FLEXCAST_ROOT", root).output().expect("started");
    assert!(created.status.success(), "{}", text(&created));
    let main = root.join("device/images/crashes/src/main.rs");
    let source = fs::read_to_string(&main).expect("a source");
    let wrong = source.replace("dpa::abi::bring_up_answer(argument)", "dpa::fatal(7 + (argument % 2) as u8)");
    assert_ne!(wrong, source);
    fs::write(&main, wrong).expect("another source");
    let output = server.deploy_as(Some(root), "client", "crashes", &[]);
    refused(&output, &["the bring-up failed (ended 1)", "crash records are in"]);
    let brought = root.join("target/deployments").join(server.current());
    let names: Vec<String> = fs::read_dir(&brought)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    for end in [".core", ".crash"] {
        assert!(names.iter().any(|name| name.ends_with(end)), "{names:?}");
    }
}

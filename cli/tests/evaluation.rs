//! `flexcast report` and `flexcast plan`, through the tool. `cargo xtask build` makes the images; without them these
//! tests fail and say so.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use flexcast_lab::evaluate::point::Point;
use flexcast_lab::evaluate::spec;
use serde_json::Value;

use crate::harness::skipped;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn images() -> PathBuf {
    let images = std::env::var_os("FLEXCAST_IMAGES").map_or_else(|| root().join("target/device/emu"), PathBuf::from);
    assert!(images.join("allgather.elf").exists(), "no images in {}: run `cargo xtask build` first", images.display());
    images
}

fn tool(command: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flexcast"))
        .current_dir(root())
        .arg(command)
        .arg("--images")
        .arg(images())
        .args(arguments)
        .output()
        .expect("the tool starts")
}

fn report(arguments: &[&str]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let text = report_to(folder.path(), arguments);
    (folder, text)
}

fn report_to(folder: &Path, arguments: &[&str]) -> String {
    let out = folder.to_string_lossy();
    let output = tool("report", &[&["--reduced", "--out", &out], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The reduced evaluation, run once for all tests.
fn evaluated() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reduced-evaluation");
        let text = report_to(&folder, &["--jobs", "2"]);
        assert!(text.contains("no calibration was given"), "{text}");
        folder
    })
}

/// Whether the compiler that exact figures are recorded for built the images; says so where it was another.
fn compiled_as_recorded() -> bool {
    let table = std::fs::read_to_string(root().join("docs/hot-loops.toml")).expect("docs/hot-loops.toml");
    let table: toml::Table = table.parse().expect("docs/hot-loops.toml is TOML");
    let recorded = format!("{}.", table["compiler"].as_str().expect("a compiler"));
    let elf = std::fs::read(images().join("allgather.elf")).expect("an image");
    let compiler = flexcast_image::Image::parse(&elf).expect("a valid image").compiler().map(str::to_owned);
    let same = compiler.as_ref().is_some_and(|compiler| compiler.starts_with(&recorded));
    if !same {
        eprintln!(
            "images were built by rustc {compiler:?}; virtual times are recorded for {recorded} and not compared"
        );
    }
    same
}

/// Virtual times are what they were; `UPDATE_GOLDEN=1` records them anew.
#[test]
fn the_reduced_evaluation_has_not_drifted() {
    let folder = evaluated();
    let times = std::fs::read_to_string(folder.join("times.txt")).expect("times");
    let golden = root().join("lab/experiments/reduced.golden");
    if std::env::var_os("UPDATE_GOLDEN").is_some() && std::env::var_os("CI").is_none() {
        std::fs::write(&golden, &times).expect("the golden file");
    }
    let recorded = std::fs::read_to_string(&golden).expect("the golden file; UPDATE_GOLDEN=1 records it");
    if compiled_as_recorded() {
        for (now, before) in times.lines().zip(recorded.lines()) {
            assert_eq!(now, before, "virtual time has drifted; if that is meant, record it with UPDATE_GOLDEN=1");
        }
    }
    assert_eq!(times.lines().count(), recorded.lines().count());
    // Every plot's data are in the page, and every experiment has its files.
    let page = std::fs::read_to_string(folder.join("index.html")).expect("the page");
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<script src"));
    let plots = page.matches("<figure class=\"plot\">").count();
    assert_eq!(page.matches("<script type=\"application/json\"").count(), plots);
    for entry in std::fs::read_dir(root().join("lab/experiments")).expect("experiments") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let id = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let json = std::fs::read_to_string(folder.join(format!("{id}.json"))).expect("its JSON");
            let json: Value = serde_json::from_str(&json).expect("JSON");
            assert!(json["failures"].as_array().is_some_and(Vec::is_empty), "{id}: {}", json["failures"]);
            assert!(folder.join(format!("{id}.csv")).exists());
            assert!(page.contains(&format!("id=\"{id}\"")), "{id} is not on the page");
        }
    }
}

/// An expectation of the least number that reaches something fails only if each number that would do has been tried.
#[test]
fn the_reduced_evaluation_fails_nothing_for_want_of_a_run() {
    let (mut failed, mut not_run) = (0, 0);
    for experiment in spec::read_folder(&root().join("lab/experiments"), true).expect("experiments") {
        let text = std::fs::read_to_string(evaluated().join(format!("{}.json", experiment.id))).expect("its JSON");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        let whole = experiment.whole.as_ref().expect("the whole sweep");
        for (expect, verdict) in experiment.expect.iter().zip(json["verdicts"].as_array().expect("verdicts")) {
            let Some(first) = &expect.first else { continue };
            not_run += u32::from(verdict["verdict"] == "not-run");
            if verdict["verdict"] != "failed" {
                continue;
            }
            failed += 1;
            let would_do = Point::all(whole).into_iter().filter_map(|point| {
                let asked = point.asked();
                let place = asked.number(first).filter(|place| expect.at_most.is_none_or(|most| *place <= most))?;
                asked.fits(&expect.filter).then_some(place)
            });
            let rows = json["rows"].as_array().expect("rows");
            for place in would_do {
                let ran = rows.iter().any(|row| row["kind"] == "emulated" && row[first].as_f64() == Some(place));
                assert!(ran, "{}: {verdict}: {first} = {place} has not been run", experiment.id);
            }
        }
    }
    // Of the sweep over threads little is left.
    assert!(not_run >= 5, "{not_run} not run, {failed} failed");
}

/// A browser in PATH.
fn browser() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let starts = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    let found = names.into_iter().find(starts);
    if found.is_none() {
        skipped("no browser is installed to open the page with (Debian: chromium)");
    }
    found
}

/// The document as the browser has it after loading, and what its console said.
fn opened(browser: &str, page: &Path, dark: bool) -> (String, String) {
    let home = tempfile::tempdir().expect("a folder");
    let mut child = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,1000"])
        .args(["--virtual-time-budget=5000", "--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--user-data-dir={}", home.path().display()))
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)))
        .arg(format!("file://{}", page.display()))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the browser starts");
    // It must not hang this test.
    let (id, (ended, wait)) = (child.id().to_string(), std::sync::mpsc::channel::<()>());
    let guard = std::thread::spawn(move || {
        let timed_out = wait.recv_timeout(Duration::from_secs(120)) == Err(RecvTimeoutError::Timeout);
        if timed_out {
            let _ = Command::new("kill").arg(id).status();
        }
        timed_out
    });
    let read = |from: Option<&mut dyn Read>| {
        let mut bytes = Vec::new();
        from.expect("a pipe").read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
    };
    let mut errors = child.stderr.take();
    let console = std::thread::spawn(move || read(errors.as_mut().map(|pipe| pipe as &mut dyn Read)));
    let mut output = child.stdout.take();
    let document = read(output.as_mut().map(|pipe| pipe as &mut dyn Read)).expect("its output");
    let status = child.wait().expect("the browser ends");
    let console = console.join().expect("no panic").expect("its messages");
    drop(ended);
    assert!(!guard.join().expect("no panic"), "the browser did not end within 120 s: {console}");
    assert!(status.success(), "{status}: {console}");
    (document, console)
}

/// Every plot must be drawn with as many marks as its data have points, and have some, in both colour schemes; nothing
/// may go wrong on the way.
#[test]
fn a_browser_shows_every_plot_with_its_data() {
    let Some(browser) = browser() else { return };
    let (page, rows) = (evaluated().join("index.html"), rows_of_plots());
    for dark in [false, true] {
        let (document, console) = opened(browser, &page, dark);
        let wrong =
            |line: &&str| line.contains("CONSOLE") || line.contains("Uncaught") || line.contains("Failed to load");
        assert_eq!(console.lines().find(wrong), None);
        let figures: Vec<&str> = document.split("<figure class=\"plot\">").skip(1).collect();
        assert_eq!(figures.len(), rows.len(), "plots in the browser: {console}");
        for (figure, (id, rows)) in figures.iter().zip(&rows) {
            let (drawn, rest) = figure.split_once("</svg>").expect("a drawing");
            let data =
                rest.split(&format!("data-of=\"{id}\"")).nth(1).and_then(|rest| rest.split_once('>')).expect(id).1;
            let data: Value = serde_json::from_str(data.split("</script>").next().unwrap_or_default()).expect(id);
            let series = data["series"].as_array().expect("series");
            let count = |bound: bool| -> usize {
                let of = series.iter().filter(|series| series["bound"] == bound);
                of.map(|series| series["points"].as_array().map_or(0, Vec::len)).sum()
            };
            let (results, bounds) = (count(false), count(true));
            assert!(results > 0, "{id} has no data");
            // The data are those of the files, and each point of them is drawn.
            assert_eq!(results, *rows, "{id}: points of its data, and rows of its experiment");
            assert_eq!(drawn.matches("class=\"mark\"").count(), results, "{id}: marks that are drawn");
            assert!(drawn.contains(&format!("data-points=\"{}\"", results + bounds)), "{id}");
            assert!(!drawn.contains("NaN") && !drawn.contains("undefined"), "{id}");
        }
    }
}

/// Plots by their ids in the order of the page, with the number of rows that are to be seen in each, by the
/// experiments' files alone.
fn rows_of_plots() -> Vec<(String, usize)> {
    let experiments = spec::read_folder(&root().join("lab/experiments"), true).expect("experiments");
    let of = |experiment: &spec::Experiment| {
        let text = std::fs::read_to_string(evaluated().join(format!("{}.json", experiment.id))).expect("its JSON");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        let rows = json["rows"].as_array().expect("rows").clone();
        let count = |plot: &spec::Plot| {
            let fits = |row: &&Value| {
                let has = |(column, wanted): (&String, &toml::Value)| match wanted {
                    toml::Value::String(wanted) => row[column] == **wanted,
                    wanted => {
                        row[column].as_f64() == wanted.as_float().or(wanted.as_integer().map(|value| value as f64))
                    }
                };
                plot.filter.iter().all(has) && !row[&plot.x].is_null() && row[&plot.y].is_number()
            };
            rows.iter().filter(fits).count()
        };
        let named =
            (1..).zip(&experiment.plot).map(|(number, plot)| (format!("{}-{number}", experiment.id), count(plot)));
        named.collect::<Vec<_>>()
    };
    experiments.iter().flat_map(of).collect()
}

#[test]
fn one_experiment_and_no_such_experiment() {
    let (folder, text) = report(&["--only", "models"]);
    assert!(text.contains("Cost models") && !text.contains("one-thread"), "{text}");
    assert!(folder.path().join("models.csv").exists() && !folder.path().join("threads.csv").exists());
    for (arguments, words) in [
        (vec!["--only", "modles"], vec!["--only modles", "models", "threads"]),
        (vec!["--model", "m9"], vec!["m9"]),
        (vec!["--jobs", "0"], vec!["'0' for '--jobs"]),
        (vec!["--experiments", "no/such"], vec!["no/such"]),
        (vec!["--calibration", "Cargo.toml"], vec!["Cargo.toml", "calibrate --json"]),
    ] {
        let output = tool("report", &arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?}");
        for word in words {
            assert!(text.contains(word), "{text:?} lacks {word:?}");
        }
    }
}

#[test]
fn plans_and_what_does_not_fit() {
    let output = tool("plan", &["--link", "200", "--transport", "uc", "--json"]);
    let plan: Value = serde_json::from_slice(&output.stdout).expect("one JSON object on stdout");
    assert!(plan["receive_threads"].as_u64().is_some_and(|threads| threads <= 2), "{plan}");
    assert_eq!(
        (&plan["cost_kind"], &plan["kind"], &plan["cost"]["model"]),
        (&"emulated".into(), &"computed".into(), &"M.2".into())
    );
    for (arguments, words) in [
        (vec!["--chunk", "100"], vec!["--chunk 100", "128"]),
        (vec!["--chunk", "8192"], vec!["'8192' for '--chunk", "4096"]),
        (vec!["--link", "0"], vec!["'0' for '--link", "3200"]),
        (vec!["--link", "3200", "--chunk", "64"], vec!["threads", "--link", "--chunk"]),
        (vec!["--ranks", "188", "--buffer", "1073741824"], vec!["cache", "--buffer"]),
        (vec!["--ranks", "9999"], vec!["'9999' for '--ranks", "1024"]),
    ] {
        let output = tool("plan", &arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        for word in words {
            assert!(text.contains(word), "{text:?} lacks {word:?}");
        }
    }
}

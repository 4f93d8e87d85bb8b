//! `flexcast report` and `flexcast plan`, through the tool. `cargo xtask build` makes the images; without them these tests fail and say so.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn images() -> PathBuf {
    let images = std::env::var_os("FLEXCAST_IMAGES").map_or_else(|| root().join("target/device/emu"), PathBuf::from);
    assert!(images.join("receive.elf").exists(), "no images in {}: run `cargo xtask build` first", images.display());
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
    let out = folder.path().to_string_lossy().into_owned();
    let output = tool("report", &[&["--reduced", "--out", &out], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    (folder, text)
}

/// Virtual times are what they were; `UPDATE_GOLDEN=1` records them anew.
#[test]
fn the_reduced_evaluation_has_not_drifted() {
    let (folder, text) = report(&["--jobs", "2"]);
    assert!(text.contains("no calibration was given"), "{text}");
    let times = std::fs::read_to_string(folder.path().join("times.txt")).expect("times");
    let golden = root().join("experiments/reduced.golden");
    if std::env::var_os("UPDATE_GOLDEN").is_some() && std::env::var_os("CI").is_none() {
        std::fs::write(&golden, &times).expect("the golden file");
    }
    let recorded = std::fs::read_to_string(&golden).expect("the golden file; UPDATE_GOLDEN=1 records it");
    for (now, before) in times.lines().zip(recorded.lines()) {
        assert_eq!(now, before, "virtual time has drifted; if that is meant, record it with UPDATE_GOLDEN=1");
    }
    assert_eq!(times.lines().count(), recorded.lines().count());
    // Every plot's data are in the page, and every experiment has its files.
    let page = std::fs::read_to_string(folder.path().join("index.html")).expect("the page");
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<script src"));
    let plots = page.matches("<figure class=\"plot\">").count();
    assert_eq!(page.matches("<script type=\"application/json\"").count(), plots);
    for entry in std::fs::read_dir(root().join("experiments")).expect("experiments") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let id = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let json = std::fs::read_to_string(folder.path().join(format!("{id}.json"))).expect("its JSON");
            let json: Value = serde_json::from_str(&json).expect("JSON");
            assert!(json["failures"].as_array().is_some_and(Vec::is_empty), "{id}: {}", json["failures"]);
            assert!(folder.path().join(format!("{id}.csv")).exists());
            assert!(page.contains(&format!("id=\"{id}\"")), "{id} is not on the page");
        }
    }
    in_a_browser(&folder.path().join("index.html"), plots);
}

/// Opens the page: every plot must have as many marks as points, and be drawn.
fn in_a_browser(page: &Path, plots: usize) {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let opened = names.iter().find_map(|name| {
        Command::new(name)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--window-size=1280,1000",
                "--virtual-time-budget=5000",
                "--dump-dom",
            ])
            .arg(format!("file://{}", page.display()))
            .output()
            .ok()
    });
    let Some(opened) = opened else {
        println!("skipped in part: no browser (chromium) to open the page with");
        return;
    };
    let dom = String::from_utf8_lossy(&opened.stdout).into_owned();
    let figures: Vec<&str> = dom.split("<figure class=\"plot\">").skip(1).collect();
    assert_eq!(figures.len(), plots, "the browser shows as many plots: {}", String::from_utf8_lossy(&opened.stderr));
    for figure in figures {
        let svg = figure.split("</svg>").next().unwrap_or_default();
        let data = figure.split("data-of=").nth(1).and_then(|rest| rest.split_once('>')).expect("data").1;
        let data: Value =
            serde_json::from_str(data.split("</script>").next().unwrap_or_default()).expect("JSON in the page");
        let series = data["series"].as_array().expect("series");
        let points: usize = series.iter().map(|series| series["points"].as_array().map_or(0, Vec::len)).sum();
        let marks: usize = series
            .iter()
            .filter(|series| series["bound"] == false)
            .map(|series| series["points"].as_array().map_or(0, Vec::len))
            .sum();
        assert!(points > 0, "a plot without data: {svg}");
        assert!(svg.contains(&format!("data-points=\"{points}\"")), "{svg}");
        assert_eq!(svg.matches("class=\"mark\"").count(), marks, "{svg}");
    }
}

#[test]
fn one_experiment_and_no_such_experiment() {
    let (folder, text) = report(&["--only", "models"]);
    assert!(text.contains("Cost models") && !text.contains("one-thread"), "{text}");
    assert!(folder.path().join("models.csv").exists() && !folder.path().join("threads.csv").exists());
    for (arguments, words) in [
        (vec!["--only", "modles"], vec!["--only modles", "models", "threads"]),
        (vec!["--model", "m9"], vec!["m9"]),
        (vec!["--jobs", "0"], vec!["--jobs 0"]),
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
        (&"emulated".into(), &"computed".into(), &"M.1".into())
    );
    for (arguments, words) in [
        (vec!["--chunk", "100"], vec!["--chunk 100", "128"]),
        (vec!["--chunk", "8192"], vec!["--chunk 8192", "4096"]),
        (vec!["--link", "0"], vec!["--link 0", "3200"]),
        (vec!["--link", "3200", "--chunk", "64"], vec!["threads", "--link", "--chunk"]),
        (vec!["--ranks", "188", "--buffer", "1073741824"], vec!["cache", "--buffer"]),
        (vec!["--ranks", "9999"], vec!["--ranks 9999", "1024"]),
    ] {
        let output = tool("plan", &arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        for word in words {
            assert!(text.contains(word), "{text:?} lacks {word:?}");
        }
    }
}

//! The timing model held against what it is made of: the fitted number, and the micro-benchmarks as kernels on the
//! emulated card.

use emu_machine::timing::Parameters;
use flexcast_lab::calibrate::fit::fit;
use flexcast_lab::calibrate::{Images, micro_benchmarks};
use flexcast_lab::tput::run::ImageFile;
use flexcast_tests::{compiled_as_recorded, image_bytes};

fn images() -> Images {
    let image = |name: &str| ImageFile { name: name.to_owned(), elf: image_bytes(name) };
    Images { reference: image("reference"), calibration: image("calibration") }
}

/// The one fitted number: a change of the model, of the machine or of image `reference` that moves it needs a new name
/// for the model and a full `flexcast calibrate`.
#[test]
fn the_fit_finds_the_models_own_gap() {
    let fit = fit(&images().reference, &Parameters::m2()).expect("the runs succeed");
    println!("{fit:?}");
    if !compiled_as_recorded("reference") {
        return;
    }
    assert_eq!(fit.gap_millicycles, Some(3631));
    assert!(fit.agrees() && (fit.cycles_at_66 - 598.0).abs() < 0.1, "{fit:?}");
}

#[test]
fn a_model_that_no_gap_can_save_is_rejected() {
    let slow = Parameters::m2().with("stores", "hit_cycles", 300).expect("a model all the same");
    let fit = fit(&images().reference, &slow).expect("the runs succeed");
    assert_eq!((fit.gap_millicycles, fit.agrees(), fit.runs), (None, false, 2));
    assert!(fit.cycles_at_66 > 598.0, "even at the least gap: {fit:?}");
}

#[test]
fn the_kernels_return_the_published_latencies_and_bandwidths() {
    let rows = micro_benchmarks(&images(), &Parameters::m2(), 2, &|_, _, _, _| ()).expect("the runs succeed");
    assert_eq!(rows.len(), 21);
    for row in &rows {
        println!(
            "{}: {:.3} {}, published {} ({:+.1} %)",
            row.what, row.predicted, row.unit, row.published, row.error_percent
        );
    }
    let bad: Vec<_> = rows.iter().filter(|row| !row.ok).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

/// A check that cannot fail checks nothing: with another L2 and another way to Arm memory these two chases, and no
/// others, are off.
#[test]
fn a_wrong_level_shows_in_its_own_chase() {
    let wrong = Parameters::m2().with("loads", "l2_cycles", 90);
    let wrong = wrong.and_then(|wrong| wrong.with("loads", "arm_window_cycles", 574)).expect("a model all the same");
    let rows = micro_benchmarks(&images(), &wrong, 2, &|_, _, _, _| ()).expect("the runs succeed");
    let bad: Vec<&str> = rows.iter().filter(|row| !row.ok).map(|row| row.what.as_str()).collect();
    assert_eq!(bad, ["chase in 1 MiB: L2", "chase in 4 MiB of the Arm cores: their cache"]);
}

//! A run whose firmware fails ends with the reason, however the firmware fails: the harness neither hangs nor guesses.

use flexcast_image::Image;
use flexcast_lab::reference::{Params, Transport};
use flexcast_lab::tput::TputError;
use flexcast_tests::code::{ECALL, ILLEGAL, RET, SPIN, addi, reg};
use flexcast_tests::{assert_mentions, image_bytes, run};
use flexio::{Error, ErrorState};

/// The image `reference` with other instructions at the start of a function.
fn patched(function: &str, code: &[u32]) -> Vec<u8> {
    let mut elf = image_bytes("reference");
    let image = Image::parse(&elf).expect("a valid image");
    let addr = image.symbol(function).expect("a function of the image");
    let segment = image
        .segments()
        .iter()
        .find(|segment| (segment.vaddr..segment.vaddr + segment.bytes.len() as u64).contains(&addr))
        .expect("the segment of the function");
    // Enough of the code to be found in the file only there.
    let original = segment.bytes[(addr - segment.vaddr) as usize..][..64].to_vec();
    let places: Vec<usize> = elf.windows(64).enumerate().filter(|(_, w)| *w == original).map(|(at, _)| at).collect();
    assert_eq!(places.len(), 1, "{function} is there once");
    for (index, word) in code.iter().enumerate() {
        elf[places[0] + 4 * index..][..4].copy_from_slice(&word.to_le_bytes());
    }
    elf
}

fn fails(transport: Transport, elf: Vec<u8>) -> TputError {
    let params = Params { transport, threads: 2, ..Params::default() };
    run::reference(emu_provider::lossy(0, 1), elf, params, 1 << 20).expect_err("the run must fail")
}

#[test]
fn a_handler_that_crashes_ends_the_run_with_its_record() {
    for (transport, entry) in [(Transport::Uc, "uc_receive"), (Transport::Ud, "ud_receive")] {
        let error = fails(transport, patched(entry, &[ILLEGAL]));
        let TputError::Flexio(Error::DeviceFault { state: ErrorState::Fatal, .. }) = &error else { panic!("{error}") };
        assert_mentions(&error, &["illegal instruction", entry, "execution unit 1"]);
    }
}

#[test]
fn a_handler_that_never_ends_ends_the_run_at_its_bound() {
    let error = fails(Transport::Uc, patched("uc_receive", &[SPIN]));
    assert!(matches!(error, TputError::Stalled { .. }), "{error}");
    assert_mentions(&error, &["nothing has moved for 20000 us"]);
}

#[test]
fn a_handler_that_reports_an_error_is_reported_by_its_code() {
    let code = [addi(reg::A0, 0, 0x77), addi(reg::A7, 0, 10), ECALL];
    let error = fails(Transport::Uc, patched("uc_receive", &code));
    let TputError::Flexio(Error::DeviceFault { state: ErrorState::User, .. }) = &error else { panic!("{error}") };
    assert_mentions(&error, &["error raised by the image", "0x77"]);
}

#[test]
fn an_image_that_answers_the_bring_up_wrongly_is_refused() {
    let error = fails(Transport::Uc, patched("bring_up", &[addi(reg::A0, 0, 5), RET]));
    assert!(matches!(error, TputError::BringUp { answer: 5, .. }), "{error}");
    assert_mentions(&error, &["answered 0x5", "rebuild image and host from one source"]);
}

#[test]
fn an_image_that_refuses_its_context_is_reported_by_the_fault() {
    let error = fails(Transport::Uc, patched("prepare", &[addi(reg::A0, 0, 1), RET]));
    assert!(matches!(error, TputError::Context { worker: 0, code: 1 }), "{error}");
    assert_mentions(&error, &["worker 0", "refused its context", "fault 1"]);
}

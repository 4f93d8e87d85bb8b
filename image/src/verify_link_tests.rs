//! Tests of link maps: the vendor's code, sections, log strings.

use crate::Image;
use crate::callgraph::Foreign;
use crate::testing::{TEXT, TestElf, attributes, section};
use crate::verify::{Outcome, Policy, Vendor, verify};
use crate::verify_tests::{
    C_JALR_A0, C_RET, FRAME_64, call, failure, failure_under, findings, good, passed, policy, report,
};

/// `handler` calls `vendor`, which executes a custom instruction, what has the form of a panic, and a call through a
/// register.
fn with_vendor_code() -> (TestElf, Policy) {
    let mut elf = TestElf::image(&[
        ("handler", &[FRAME_64, call(6), C_RET]),
        ("vendor", &[0x0000_000b, 0xffff_ffff, C_JALR_A0, C_RET]),
        ("ping", &[C_RET]),
        ("ping__unpack", &[C_RET]),
    ]);
    elf.section_mut(".riscv.attributes").bytes = attributes("rv64i2p0_m2p0_a2p0_c2p0_zbb1p0_zbs1p0_xfenceheap1p0");
    let range = TEXT + 10..TEXT + 22;
    let vendor = Vendor {
        extensions: vec!["xfenceheap".into()],
        code: Foreign { code: vec![range], stack_bytes: 2048 },
        sections: vec![],
        files: vec!["libvendor.a".into()],
    };
    (elf, Policy { vendor, ..policy() })
}

#[test]
fn code_of_the_vendor_is_not_read_and_takes_its_allowance() {
    let (elf, policy) = with_vendor_code();
    let text = passed(&elf, "stack", &policy);
    assert!(text.contains("handler 2112 B, ping 0 B"), "{text}");
    let text = passed(&elf, "instructions", &policy);
    assert!(text.ends_with("not read: 12 bytes of the vendor's (libvendor.a)"), "{text}");
    let tight = Policy { stack_bytes: 2111, ..policy };
    assert_eq!(failure_under(&elf, "stack", &tight), "handler takes 2112 of 2111 bytes: handler → vendor");
}

#[test]
fn own_code_must_follow_the_rules_that_vendor_code_need_not() {
    let (elf, policy) = with_vendor_code();
    // One instruction of what was the vendor's is our own: `.insn 0xffffffff`.
    let start = TEXT + 14;
    let code = Foreign { code: vec![TEXT + 10..start, start + 4..start + 8], ..policy.vendor.code.clone() };
    let strict = Policy { vendor: Vendor { code, ..policy.vendor.clone() }, ..policy.clone() };
    let text = failure_under(&elf, "instructions", &strict);
    assert!(text.contains("ffffffff is no instruction") && text.contains("0x4000000e in vendor+0x4"), "{text}");
    let none = Policy { vendor: Vendor { extensions: vec![], ..policy.vendor.clone() }, ..policy.clone() };
    assert!(failure_under(&elf, "ISA attribute", &none).contains("the image needs `xfenceheap`"));
    // Without a word on whose it is, all of it is our own.
    let report = verify(&Image::parse(&elf.bytes()).expect("parses"), &crate::verify_tests::policy());
    assert_eq!(report.counts().1, 4, "ISA attribute, instructions, stack, panics: {report}");
}

#[test]
fn sections_that_are_loaded_unasked_fail() {
    let mut elf = good();
    elf.sections.push(section(".eh_frame", 1, 2, 0x4000_4000, vec![0; 40]));
    let text = failure(&elf, "loaded sections");
    assert!(text.starts_with(".eh_frame: 40 bytes at 0x40004000; may be loaded: .text, .rodata"), "{text}");
    let vendor = Vendor { sections: vec![".eh_frame".into()], ..Vendor::default() };
    passed(&elf, "loaded sections", &Policy { vendor, ..policy() });
    // Not loaded, or empty.
    elf.sections.last_mut().expect("pushed").flags = 0;
    elf.sections.push(section(".got", 1, 2, 0x4000_5000, vec![]));
    assert!(report(&elf).passed());
}

#[test]
fn log_strings_are_not_loaded_and_have_an_index_each() {
    const STRING: &str = "{\"package\":\"receive\",\"tag\":\"defmt_info\",\"data\":\"one\"}";
    const OTHER: &str = "{\"package\":\"receive\",\"tag\":\"defmt_info\",\"data\":\"two\"}";
    let with = |flags, first, second| {
        let mut elf = good();
        elf.sections.push(section(".defmt", 1, flags, 0, vec![0; 8]));
        elf.symbols.push((STRING, first, 1, 1, 6));
        elf.symbols.push((OTHER, second, 1, 1, 6));
        elf
    };
    assert_eq!(passed(&with(0, 1, 2), "log strings", &policy()), "2, none loaded");
    assert!(failure(&with(0, 0, 2), "log strings").contains("index 0x0 of {\"package\""));
    assert!(failure(&with(0, 1, 0x4000_3001), "log strings").contains("index 0x40003001"));
    assert!(failure(&with(0, 3, 3), "log strings").contains("have one index"));
    let report = report(&with(2, 1, 2));
    assert!(findings(&report, "log strings").contains(".defmt is loaded"), "{report}");
    let mut movable = with(0, 1, 2).bytes();
    movable[16] = 3;
    let report = verify(&Image::parse(&movable).expect("parses"), &policy());
    assert!(matches!(report.check("log strings"), Some(Outcome::Unknown(_))), "{report}");
}

#[test]
fn what_lies_outside_of_code_of_others() {
    let foreign = Foreign { code: vec![10..20, 20..30, 40..50], stack_bytes: 0 };
    assert_eq!(foreign.outside(0, 60), [0..10, 30..40, 50..60]);
    assert_eq!(foreign.outside(15, 55), [30..40, 50..55]);
    assert_eq!(foreign.outside(10, 20), []);
    let middle = 30..40;
    assert_eq!(foreign.outside(30, 40), [middle]);
    let inside: Vec<u64> = [9, 10, 29, 30, 39, 40, 49, 50].into_iter().filter(|addr| foreign.contains(*addr)).collect();
    assert_eq!(inside, [10, 29, 40, 49]);
}

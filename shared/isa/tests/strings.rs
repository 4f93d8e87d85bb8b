//! ISA strings.

use flexcast_isa::{Extension, Isa, IsaError, names};
use proptest::prelude::*;

fn isa(text: &str) -> Isa {
    Isa::parse(text).expect("an ISA string")
}

#[test]
fn both_spellings_are_the_same_set() {
    let short = isa("rv64imac_zicsr_zbb_zbs");
    assert_eq!(isa("rv64i2p1_m2p0_a2p1_c2p0_zicsr2p0_zbb1p0_zbs1p0"), short);
    assert!(short.has(Extension::Zbb) && !short.has(Extension::Zba) && !short.has(Extension::D));
    assert_eq!(isa("RV64IMAC_Zicsr_Zbb_Zbs"), short);
    assert!(Isa::parse("rv32imac").is_err());
}

#[test]
fn versions_and_names_need_no_underscores_where_none_is_ambiguous() {
    let expected = isa("rv64imac_zicsr_zbb_zbs");
    for text in ["rv64i2p1m2p0a2p1c2p0_zicsr_zbb_zbs", "rv64i2m2a2c2_zicsr2_zbb1_zbs1", "RV64IMACZicsr_Zbb_Zbs"] {
        assert_eq!(Isa::parse(text), Ok(expected), "{text}");
    }
    let of = |text| names(text).expect("an ISA string").collect::<Vec<_>>();
    assert_eq!(of("rv64i2p0_zbp0p93_xfenceheap1p0"), ["i", "zbp", "xfenceheap"]);
    assert_eq!(of("rv64ip_m2p"), ["i", "p", "m", "p"], "a `p` without digits on both sides is no version");
    assert_eq!(of("rv64g__ü_zé1_"), ["g", "ü", "zé"]);
    assert_eq!(of("rv64"), [""; 0]);
}

#[test]
fn what_rustc_writes_is_within_imac_zbb_zbs() {
    let set = isa("rv64imac_zbb_zbs");
    let rustc = "rv64i2p1_m2p0_a2p1_c2p0_zmmul1p0_zaamo1p0_zalrsc1p0_zca1p0_zbb1p0_zbs1p0";
    assert!(names(rustc).expect("names").all(|name| set.runs(name)));
    assert_eq!(isa(rustc), set);
    let card = "rv64i2p0_m2p0_a2p0_c2p0_zbb1p0_zbp0p93_zbr0p93_zbs1p0_xfenceheap1p0";
    let lacking: Vec<_> = names(card).expect("names").filter(|name| !set.runs(name)).collect();
    assert_eq!(lacking, ["zbp", "zbr", "xfenceheap"]);
}

#[test]
fn parts_run_where_the_whole_does() {
    for (part, whole) in
        [("zmmul", "m"), ("zaamo", "a"), ("zalrsc", "a"), ("zca", "c"), ("zicntr", "zicsr"), ("zihintpause", "i")]
    {
        let text = if whole == "i" { "rv64i".to_owned() } else { format!("rv64i_{whole}") };
        assert!(isa(&text).runs(part) && isa(&text).runs(&part.to_uppercase()), "{part}");
        assert_eq!(isa(&format!("{text}_{part}")), isa(&text));
        assert_eq!(Isa::RV64I.runs(part), whole == "i");
    }
}

#[test]
fn sets_print_as_isa_strings() {
    assert_eq!(isa("rv64imac_zbb_zmmul_zaamo_zalrsc_zca").to_string(), "rv64imac_zbb");
    assert_eq!(isa("rv64i"), Isa::RV64I);
    assert_eq!(Isa::ALL.to_string(), "rv64imac_zicsr_zifencei_zba_zbb_zbs_zbp_zbr");
    assert_eq!(isa(&Isa::ALL.to_string()), Isa::ALL);
    assert_eq!(format!("{:?}", Isa::RV64I), "rv64i");
    assert_eq!(Isa::ALL.without(Extension::Zba), Isa::BLUEFIELD_3);
    assert_eq!(Isa::RV64I.without(Extension::I), Isa::RV64I, "the base stays");
    assert_eq!(Isa::default(), Isa::BLUEFIELD_3);
}

#[test]
fn what_is_no_known_set_is_named() {
    let error = |text| Isa::parse(text).expect_err("refused").to_string();
    assert_eq!(error("x86"), "ISA string `x86` does not start with rv64; write it as in `rv64imac_zbb_zbs`");
    assert!(error("rv64id").contains("`d` is not known; the known ones are those of rv64imac_zicsr"));
    assert!(error("rv64gc").contains("`g` is not known"));
    assert!(error("rv64i_privileged").contains("`p` is not known"));
    assert!(error("rv64i_zmmul").contains("`zmmul` is known as a part of `m` only; name `m` too"));
    assert!(error("rv64m").contains("rv64i"));
    assert_eq!(Isa::parse("rv64"), Err(IsaError::NoBase));
    assert_eq!(format!("{:?}", IsaError::NoBase), IsaError::NoBase.to_string());
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(rv64)?[imacgpzxs0-9_ ü]{0,12}") {
        match Isa::parse(&text) {
            Ok(set) => {
                prop_assert!(names(&text).expect("names").all(|name| set.runs(name)));
                let printed = set.to_string();
                prop_assert_eq!(Isa::parse(&printed), Ok(set));
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

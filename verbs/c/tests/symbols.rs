//! The symbols that `libibverbs.so.1` exports, compared with those of the libraries of Debian 12 and 13 (`libibverbs.symbols`: each
//! `name@version`, `@@` the default). The linker checks in `scripts/build` that each name is defined.

mod common;

use std::collections::BTreeSet;

/// Versions that are left out, with the reason. No program of Debian requires them.
const LEFT_OUT: [(&str, &str); 1] =
    [("@IBVERBS_1.0", "functions of libibverbs 1.0 (2006), whose structures were others")];

/// Symbols that neither library has, with the reason.
const ADDED: [(&str, &str); 1] =
    [("verbs_register_driver_33@IBVERBS_PRIVATE_33", "libmlx5 of rdma-core 33 (Debian 11) requires it")];

/// Returns each `name@version` of the version script, except those of Ferroce's own functions.
fn ours() -> BTreeSet<String> {
    common::exported(include_str!("../libibverbs.map"))
        .filter(|(_, version)| !version.starts_with("FERROCE"))
        .map(|(name, version)| format!("{name}@{version}"))
        .collect()
}

#[test]
fn every_symbol_of_debian_is_exported_or_has_a_reason() {
    let ours = ours();
    let (mut found, mut left_out) = (0, 0);
    for symbol in include_str!("libibverbs.symbols").lines() {
        if ours.contains(&symbol.replace("@@", "@")) {
            found += 1;
        } else {
            let known =
                LEFT_OUT.iter().any(|(version, _)| symbol.ends_with(version) && !symbol.contains("@@"));
            assert!(known, "{symbol} is missing");
            left_out += 1;
        }
    }
    let mut debian = ours.clone();
    for (symbol, reason) in ADDED {
        assert!(debian.remove(symbol), "{symbol} is missing: {reason}");
    }
    assert_eq!(
        found,
        debian.len(),
        "nothing is exported that Debian's library has not, and no reason is given for"
    );
    assert_eq!((found, left_out), (149, 33));
}

//! Sets `FERROCE_VERSION`: the version, and the commit if it is known.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!line.is_empty()).then_some(line)
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=FERROCE_COMMIT");
    // A package sets `FERROCE_COMMIT`; in a clone, git knows the commit.
    let given = std::env::var("FERROCE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| {
        let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
        println!("cargo:rerun-if-changed={log}");
        git(&["rev-parse", "--short=12", "HEAD"])
    });
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let version = commit.map_or(version.clone(), |commit| format!("{version} ({commit})"));
    println!("cargo:rustc-env=FERROCE_VERSION={version}");
}

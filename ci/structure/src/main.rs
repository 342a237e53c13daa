//! Checks the structure of the source files: circles of files, tunnels between crates, and names that several types of a crate share.
//!
//! `ci/layers` runs this program in the root of the repository. Every figure has a limit. A figure above its limit fails. A figure below
//! its limit fails, too, so that a change that lowers the figure also lowers the limit. Circles and names exclude tests (`#[cfg(test)]`,
//! `tests/`).

#![forbid(unsafe_code)]

mod circles;
mod names;
mod tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use tree::Crate;

struct Limit {
    /// The folder that contains `src/` or `lib.rs`, or the root file of a program in a package with several.
    folder: &'static str,
    /// The number of files in the largest circle, in which each file depends on every other, directly or indirectly. 0 if no circle has
    /// more than [`SMALL_CIRCLE`] files.
    circle: usize,
    /// The number of names that at least two types have.
    shared_names: usize,
}

/// The largest accepted circle: a type, a part of it, and the code that creates them.
const SMALL_CIRCLE: usize = 3;

const LIMITS: [Limit; 16] = [
    Limit { folder: "cc", circle: 0, shared_names: 0 },
    Limit { folder: "roce", circle: 0, shared_names: 11 },
    Limit { folder: "datapath", circle: 4, shared_names: 5 },
    Limit { folder: "datapath/dpdk-sys", circle: 0, shared_names: 0 },
    Limit { folder: "fabric", circle: 9, shared_names: 13 },
    Limit { folder: "verbs", circle: 16, shared_names: 1 },
    Limit { folder: "verbs/c", circle: 21, shared_names: 0 },
    Limit { folder: "verbs/c/libibverbs", circle: 0, shared_names: 0 },
    Limit { folder: "apps", circle: 5, shared_names: 16 },
    Limit { folder: "apps/bench", circle: 9, shared_names: 3 },
    Limit { folder: "apps/congestion", circle: 0, shared_names: 0 },
    Limit { folder: "testkit", circle: 0, shared_names: 2 },
    Limit { folder: "ci/fixtures/src/bin/injured.rs", circle: 0, shared_names: 0 },
    Limit { folder: "ci/fixtures/src/bin/loss.rs", circle: 0, shared_names: 0 },
    Limit { folder: "ci/jobs", circle: 0, shared_names: 0 },
    Limit { folder: "ci/structure", circle: 0, shared_names: 0 },
];

/// Lines with `#[path`, which compile a file of another crate.
const PATH_ATTRIBUTES: usize = 2;
/// Paths that begin with `super::super::super`.
const TUNNELS: usize = 0;

fn main() -> ExitCode {
    match check(Path::new(".")) {
        Ok(wrong) if wrong.is_empty() => ExitCode::SUCCESS,
        Ok(wrong) => {
            wrong.iter().for_each(|line| eprintln!("layers: {line}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("layers: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns a line for each figure that differs from its limit.
fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for limit in &LIMITS {
        let source = Crate::read(&root.join(limit.folder))?;
        let circles = circles::of(&source);
        let largest = circles.first().map_or(0, Vec::len);
        let largest = if largest > SMALL_CIRCLE { largest } else { 0 };
        let files = || circles.first().map(|files| files.join(", ")).unwrap_or_default();
        let circle = format!("{}: largest circle of files", limit.folder);
        wrong.extend(compare(&circle, largest, limit.circle, files));
        let shared = names::shared(&source);
        let list = || {
            shared
                .iter()
                .map(|(name, files)| format!("{name} ({})", files.join(", ")))
                .collect::<Vec<_>>()
                .join("; ")
        };
        let names = format!("{}: names of several types", limit.folder);
        wrong.extend(compare(&names, shared.len(), limit.shared_names, list));
    }
    let tracked = tracked_sources(root)?;
    wrong.extend(crates_without_limit(root, &tracked).map(|file| {
        format!(
            "{}: no limits for this crate; add a row to LIMITS in ci/structure/src/main.rs",
            file.display()
        )
    }));
    for (what, pattern, limit) in [
        ("#[path] attributes", "#[path", PATH_ATTRIBUTES),
        ("paths through super::super::super", "super::super::super", TUNNELS),
    ] {
        let found = lines_with(&tracked, pattern)?;
        let list =
            || found.iter().map(|(file, count)| format!("{file}: {count}")).collect::<Vec<_>>().join(", ");
        wrong.extend(compare(what, found.values().sum(), limit, list));
    }
    Ok(wrong)
}

fn compare(what: &str, found: usize, limit: usize, list: impl Fn() -> String) -> Option<String> {
    match found.cmp(&limit) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => {
            Some(format!("{what}: {found}, above the limit of {limit}: {}", list()))
        }
        std::cmp::Ordering::Less => {
            Some(format!("{what}: {found}; lower the limit of {limit} in ci/structure/src/main.rs"))
        }
    }
}

/// Returns the root files of crates that are not in [`LIMITS`]. Tests, examples and fuzz targets need no limit.
fn crates_without_limit<'a>(root: &Path, tracked: &'a [PathBuf]) -> impl Iterator<Item = &'a PathBuf> {
    let listed: Vec<_> = LIMITS.iter().flat_map(|limit| tree::roots(&root.join(limit.folder))).collect();
    let is_root = |file: &Path| {
        let folder = file.parent().and_then(Path::file_name);
        file.ends_with("lib.rs") || file.ends_with("main.rs") || folder.is_some_and(|name| name == "bin")
    };
    let is_apart = |file: &Path| {
        file.components()
            .any(|part| ["tests", "examples", "fuzz"].iter().any(|name| part.as_os_str() == *name))
    };
    tracked.iter().filter(move |file| is_root(file) && !is_apart(file) && !listed.contains(file))
}

fn tracked_sources(root: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("git").args(["ls-files", "*.rs"]).current_dir(root).output();
    let output = output.map_err(|error| format!("git ls-files: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(|line| root.join(line)).collect())
}

/// Returns the number of lines outside comments that contain `pattern`, for each file with such lines. Excludes this program.
fn lines_with(files: &[PathBuf], pattern: &str) -> Result<BTreeMap<String, usize>, String> {
    let mut found = BTreeMap::new();
    for file in files.iter().filter(|file| !file.starts_with("./ci/structure")) {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        let count = text.lines().filter(is_code).filter(|line| line.contains(pattern)).count();
        if count > 0 {
            found.insert(file.display().to_string(), count);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_without_a_row_is_found_and_tests_and_examples_are_not() {
        let tracked = [
            "cc/src/lib.rs",
            "ci/fixtures/src/bin/loss.rs",
            "ci/fixtures/src/bin/new.rs",
            "verbs/c/libibverbs/lib.rs",
            "verbs/new/lib.rs",
            "apps/new/src/main.rs",
            "roce/tests/main.rs",
            "verbs/c/examples/sideway-crate/src/main.rs",
            "roce/src/wheel.rs",
        ]
        .map(|file| Path::new(".").join(file));
        let found: Vec<_> = crates_without_limit(Path::new("."), &tracked).collect();
        assert_eq!(found, [&tracked[2], &tracked[4], &tracked[5]]);
    }

    #[test]
    fn every_crate_of_the_workspace_has_a_row() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let tracked = tracked_sources(&root).unwrap();
        assert_eq!(crates_without_limit(&root, &tracked).collect::<Vec<_>>(), Vec::<&PathBuf>::new());
    }
}

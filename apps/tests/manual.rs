//! The man pages are complete, and the generated pages of `docs/reference` match the code.

use std::fs;
use std::path::Path;

fn pages() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut ferroce = assert_cmd::Command::cargo_bin("ferroce").unwrap();
    // Help includes the values of variables, which must not be in the reference.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FERROCE_")) {
        ferroce.env_remove(name);
    }
    ferroce.arg("manual").arg(folder.path()).assert().success();
    folder
}

#[test]
fn every_command_has_a_page_with_its_examples() {
    let folder = pages();
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let main = read("ferroce.1");
    for command in ["write-bw", "run", "env", "doctor", "switch", "completions"] {
        assert!(main.contains(&format!("ferroce\\-{}(1)", command.replace('-', "\\-"))), "{command}: {main}");
        assert!(read(&format!("ferroce-{command}.1")).starts_with(".ie"), "{command}");
    }
    assert!(!folder.path().join("ferroce-manual.1").exists() && !main.contains("manual"), "{main}");
    assert!(read("ferroce-write-bw.1").contains("memif:/tmp/x.sock,server"));
    assert!(
        read("ferroce.h.3").contains("ferroce_set_congestion") && read("ferroce.toml.5").contains("base_rtt")
    );
}

#[test]
fn files_that_help_texts_name_are_installed() {
    let page = fs::read_to_string(pages().path().join("commands.md")).unwrap();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let named: Vec<_> = page.split("/usr/share/ferroce/").skip(1).collect();
    assert!(named.len() >= 4, "{named:?}");
    for text in named {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"/.-".contains(c)).unwrap_or(text.len());
        let file = text[..end].trim_end_matches('.');
        // As scripts/lib/files copies them.
        let source = match file.split_once('/').unwrap_or((file, "")) {
            ("book", page) => format!("docs/{page}"),
            ("grafana.json", _) => "docs/grafana.json".into(),
            ("scenarios", scenario) => format!("fabric/scenarios/{scenario}"),
            _ => panic!("scripts/lib/files does not copy {file}"),
        };
        assert!(repository.join(&source).exists(), "{source}");
    }
}

#[test]
fn the_reference_pages_equal_the_generated_ones() {
    let pages = pages();
    for name in ["commands.md", "counters.md", "ferroce-toml.md", "scenarios.md"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(name);
        let page = fs::read_to_string(pages.path().join(name)).unwrap();
        if std::env::var_os("FERROCE_WRITE_REFERENCE").is_some() {
            fs::write(&file, &page).unwrap();
        }
        let written = fs::read_to_string(&file).unwrap_or_default();
        assert!(
            written == page,
            "docs/reference/{name} is out of date: run FERROCE_WRITE_REFERENCE=1 cargo test -p ferroce --test manual"
        );
    }
}

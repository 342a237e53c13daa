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
            ("bpftrace", script) => format!("scripts/bpftrace/{script}"),
            ("grafana.json", _) => "docs/grafana.json".into(),
            ("scenarios", scenario) => format!("fabric/scenarios/{scenario}"),
            _ => panic!("scripts/lib/files does not copy {file}"),
        };
        assert!(repository.join(&source).exists(), "{source}");
    }
}

#[test]
fn help_names_the_files_beside_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let [bin, share] = ["bin", "share/ferroce"].map(|name| folder.path().join(name));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&share).unwrap();
    let program = bin.join("ferroce");
    fs::copy(env!("CARGO_BIN_EXE_ferroce"), &program).unwrap();
    let help = std::process::Command::new(&program).args(["sim", "--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    assert!(help.contains(&format!("cd {}/scenarios", share.display())), "{help}");
    assert!(!help.contains("/usr/share/ferroce"), "{help}");
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

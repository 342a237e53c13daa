//! `eval "$(ferroce env)"` prepares a shell correctly for any values.

use assert_cmd::cargo::cargo_bin;
use std::process::Command;

/// Returns the output of `script` in a POSIX shell. `$ferroce` is the program. The name of the folder of its libraries contains special
/// characters.
fn shell(script: &str) -> String {
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("it's a $(folder)");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("libibverbs.so.1"), "").unwrap();
    let mut sh = Command::new("sh");
    sh.args(["-euc", script]).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    sh.env("ferroce", cargo_bin("ferroce")).env("FERROCE_LIB", &folder).env("FOLDER", &folder);
    let output = sh.current_dir(above.path()).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn env_sets_the_variables_of_a_shell() {
    let said = shell(
        r#"eval "$("$ferroce" env --port eth0 --ip 10.0.0.1/24 --cc hpcc,line_rate=1G,base_rtt=2ms)"
           [ "$LD_LIBRARY_PATH" = "$FOLDER" ] && echo "$FERROCE_PORT $FERROCE_IP $FERROCE_CC""#,
    );
    assert_eq!(said, "eth0 10.0.0.1/24 hpcc,line_rate=1G,base_rtt=2ms\n");
}

#[test]
fn env_is_idempotent_and_keeps_other_library_folders() {
    let said = shell(
        r#"export LD_LIBRARY_PATH=/opt/other
           eval "$("$ferroce" env)"; eval "$("$ferroce" env)"
           [ "$LD_LIBRARY_PATH" = "$FOLDER:/opt/other" ] && echo same"#,
    );
    assert_eq!(said, "same\n");
}

#[test]
fn preload_puts_the_library_before_others() {
    let said = shell(
        r#""$ferroce" env | grep -c PRELOAD || true
           LD_PRELOAD=/opt/other.so "$ferroce" env --plain --preload 2>/dev/null | sed -n "s|$(realpath "$FOLDER")||g; /^LD_PRELOAD/p""#,
    );
    assert_eq!(said, "0\nLD_PRELOAD=/libibverbs.so.1:/librdmacm.so.1:/opt/other.so\n");
}

#[test]
fn plain_output_has_no_quotes_and_no_expansion() {
    let said =
        shell(r#""$ferroce" env --plain --port eth0 | grep -v UCX; echo "LD_LIBRARY_PATH=$FOLDER" >&2"#);
    assert!(
        said.starts_with("LD_LIBRARY_PATH=/") && said.ends_with("$(folder)\nFERROCE_PORT=eth0\n"),
        "{said}"
    );
}

#[test]
fn a_wrong_setting_prepares_nothing() {
    let said = shell(r#""$ferroce" env --cc bogus && echo prepared || echo "status $?""#);
    assert_eq!(said, "status 2\n");
}

#[test]
fn a_program_without_a_port_is_warned_of() {
    let said = shell(
        r#"warned() { "$ferroce" run "$@" -- true 2>&1 | grep -c 'no port is named' || true; }
           warned; warned --port eth0; FERROCE_PORT=eth0 warned
           "$ferroce" env 2>&1 >/dev/null | grep -c 'no port is named'
           echo "port = 'eth0'" > ferroce.toml; warned; "$ferroce" env 2>&1 >/dev/null"#,
    );
    assert_eq!(said, "1\n0\n0\n1\n0\n");
}

#[test]
fn devices_of_the_file_in_the_current_folder_have_one_name_each() {
    let said = shell(
        r#"printf '[[device]]\nport = "eth0"\n[[device]]\nport = "eth1"\n' > ferroce.toml
           "$ferroce" env --name mlx5_0 && echo prepared || echo "status $?"
           FERROCE_NAME= "$ferroce" env >/dev/null && echo prepared"#,
    );
    assert_eq!(said, "status 2\nprepared\n");
}

//! `ferroce run` passes its capabilities, which setcap(8) set, to its program, and the program can still load injected libraries. A Linux
//! interface needs only CAP_NET_RAW.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const NET_RAW: u64 = 1 << 13;

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn mask(status: &str, name: &str) -> u64 {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_else(|| panic!("no {name} in {status}"));
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn run_passes_its_capabilities_to_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ferroce");
    fs::copy(assert_cmd::cargo::cargo_bin("ferroce"), &program).unwrap();
    fs::write(folder.path().join("libibverbs.so.1"), "").unwrap();
    for path in [folder.path(), &program] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let given = succeeds(Command::new("setcap").arg("cap_net_raw+ep").arg(&program));
    let nobody = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).current_dir("/");
        command
    };
    if !given || !succeeds(nobody().arg("true")) {
        return; // Not root, or one of the two programs is missing.
    }
    let mut run = nobody();
    run.arg(&program).args(["run", "--", "cat", "/proc/self/status"]).env("FERROCE_LIB", folder.path());
    let output = run.output().unwrap();
    let (status, error) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{error}");
    assert_eq!(mask(&status, "CapEff:") & NET_RAW, NET_RAW, "{status}");
    assert_eq!(mask(&status, "CapAmb:"), NET_RAW, "nothing else: {status}");
    // In secure-execution mode, the loader would ignore LD_LIBRARY_PATH and remove it from the environment (ld.so(8)).
    let mut environment = nobody();
    environment.arg(&program).args(["run", "--", "env"]).env("FERROCE_LIB", folder.path());
    let environment = String::from_utf8(environment.output().unwrap().stdout).unwrap();
    assert!(environment.contains("LD_LIBRARY_PATH="), "{environment}");
}

/// The default capabilities of a container, which include CAP_NET_RAW.
const OF_A_CONTAINER: &str = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,\
                              +sys_chroot,+mknod,+audit_write,+setfcap";

#[test]
fn an_interface_opens_with_the_capabilities_of_a_container() {
    let Some(report) = doctor_of_an_interface(OF_A_CONTAINER) else { return };
    assert!(
        report.contains("lacks CAP_NET_ADMIN") && report.contains("near0 by packet socket (large datagrams)"),
        "{report}"
    );
}

#[test]
fn an_interface_opens_by_udp_sockets_without_any_capability() {
    let Some(report) = doctor_of_an_interface("-all") else { return };
    assert!(report.contains("near0 by UDP sockets"), "{report}");
}

/// Returns what `ferroce doctor` reports with the capabilities `bounding` about the port of a veth, `near0`. Returns `None` if this user
/// may not create it.
fn doctor_of_an_interface(bounding: &str) -> Option<String> {
    if !succeeds(Command::new("unshare").args(["--net", "true"])) {
        return None; // Not root.
    }
    let script =
        "ip link add near0 type veth peer name far0 && ip link set near0 up && ip link set far0 up &&
        ip address add 10.9.9.1/24 dev near0 && exec setpriv --bounding-set=$0 --inh-caps=-all \"$@\"";
    let ferroce = assert_cmd::cargo::cargo_bin("ferroce");
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", script, bounding]).arg(ferroce);
    let output = command.args(["doctor", "--port", "near0"]).output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{report}");
    Some(report)
}

/// A container may not mount, so the device files are links in its `/dev`.
#[test]
fn a_container_without_the_right_to_mount_gets_device_files() {
    if !succeeds(Command::new("unshare").args(["--mount", "true"])) {
        return; // Not root.
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libibverbs.so.1"), "").unwrap();
    let script = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec setpriv --bounding-set=$0 --inh-caps=-all \"$@\"";
    let ferroce = assert_cmd::cargo::cargo_bin("ferroce");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script, OF_A_CONTAINER])
        .arg(ferroce)
        .env("FERROCE_LIB", folder.path());
    let program = "test -c /dev/infiniband/ferroce0 && test -w /dev/infiniband/ferroce7";
    let output = command.args(["run", "--port", "null", "--", "sh", "-c", program]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

//! `ferroce run` does not change the mounts and device files of the machine, even if its start fails (mount_namespaces(7)). Needs root.

use std::fs;
use std::process::Command;

/// Prepares a `/dev` with the files of a real device in a mount namespace of the test. `start NAME COMMAND` prints the output of the
/// command, its status, and whether the mounts or the files changed.
const STAGE: &str = r#"
mkdir "$work/dev" && mount -t tmpfs real "$work/dev"
: >"$work/dev/null" && mount --bind /dev/null "$work/dev/null"
mkdir "$work/dev/infiniband" && : >"$work/dev/infiniband/uverbs0" >"$work/dev/infiniband/rdma_cm"
mount --move "$work/dev" /dev
state() {
  cat /proc/self/mountinfo
  find /sys/class /dev -maxdepth 1 -printf '%p %y %m %i\n' | sort
  find /dev/infiniband -mindepth 1 \( -name 'ferroce*' -o -name uverbs0 -o -name rdma_cm -o -name .class \) -printf '%p %y %m %i %l\n' | sort
}
start() {
  local name=$1 before after said status=0
  shift
  before=$(state)
  said=$("$@" 2>&1) || status=$?
  after=$(state)
  [ "$before" = "$after" ] && after=unchanged || after=changed
  echo "$name: $status, $after: $said"
}
files='test -c /dev/infiniband/ferroce0 && test -w /dev/infiniband/ferroce7 && test -d /sys/class/infiniband &&
  ! test -e /dev/infiniband/uverbs0 && echo placed || echo ran'
"#;

/// Runs the stage and `script` in new namespaces: a mount namespace, and the namespaces that `words` select. Returns their output.
fn staged(words: &[&str], script: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libibverbs.so.1"), "").unwrap();
    let mut command = Command::new("unshare");
    command.args(words).args(["--mount", "--propagation", "private", "bash", "-euc"]);
    command.arg([STAGE, script].concat()).env("work", folder.path()).env("FERROCE_LIB", folder.path());
    command.env("ferroce", assert_cmd::cargo::cargo_bin("ferroce")).env_remove("FERROCE_LOG");
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "this test creates a mount namespace, so it needs root: {error}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_program_sees_device_files_that_the_machine_does_not() {
    let said = staged(&[], r#"start run "$ferroce" run --port null -- sh -c "$files""#);
    assert_eq!(said, "run: 0, unchanged: placed\n");
}

/// The test has its own network namespace, because it creates an interface with a fixed name and address.
#[test]
fn a_program_finds_its_device_described_when_it_starts() {
    let said = staged(
        &["--net"],
        r#"ip link add eth7 address 02:00:00:00:00:07 type veth peer name eth8
           ip address add 10.79.0.1/24 dev eth7 && ip link set eth7 up && ip link set eth8 up
           "$ferroce" run --port eth7 -- sh -c 'cd /sys/class/infiniband/ferroce0 &&
             cat node_guid ports/1/state ports/1/link_layer ports/1/gids/1 ports/1/gid_attrs/ndevs/1'
           "$ferroce" run --port eth7 --name mlx5_0 -- sh -c 'test -c /dev/infiniband/mlx5_0 && cat /sys/class/infiniband/mlx5_0/node_desc'"#,
    );
    let gid = "0000:0000:0000:0000:0000:ffff:0a4f:0001";
    assert_eq!(said, format!("0000:00ff:fe00:0007\n4: ACTIVE\nEthernet\n{gid}\neth7\nmlx5_0\n"));
}

#[test]
fn no_program_in_path_is_needed() {
    let said = staged(
        &[],
        r#"mkdir "$work/bin" && for tool in sh mount mkdir ln; do ln -s "$(command -v $tool)" "$work/bin"; done
           start 'without unshare' env PATH="$work/bin" "$ferroce" run --port null -- /bin/sh -c "$files"
           start 'without any' env PATH= "$ferroce" run --port null -- /bin/sh -c "$files""#,
    );
    assert_eq!(said, "without unshare: 0, unchanged: placed\nwithout any: 0, unchanged: placed\n");
}

#[test]
fn device_files_are_placed_with_eight_descriptors() {
    let said =
        staged(&[], r#"ulimit -n 8; start run "$ferroce" run --port null -- sh -c "ulimit -n 64; $files""#);
    assert!(said.starts_with("run: 0, unchanged: ") && said.ends_with("placed\n"), "{said}");
}

#[test]
fn beyond_the_mount_namespace_limit_a_program_runs_with_one_warning() {
    // The limit belongs to the user namespace, and ends with it.
    let said = staged(
        &["--user", "--map-root-user"],
        r#"echo 0 >/proc/sys/user/max_mnt_namespaces
           start run "$ferroce" run --port null -- sh -c "$files""#,
    );
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].starts_with("run: 0, unchanged: warning: private mounts: "), "{said}");
    assert!(lines[0].contains("sysctl -w user.max_mnt_namespaces"), "{said}");
    assert_eq!(lines[1..], ["ran"], "{said}");
}

#[test]
fn without_the_right_to_mount_the_machines_devtmpfs_stays_as_it_is() {
    let said = staged(
        &[],
        r#"mount -t devtmpfs devtmpfs /dev/infiniband
           trap 'find /dev/infiniband -maxdepth 1 -type l -name "ferroce[0-7]" -delete' EXIT
           deprived="setpriv --bounding-set=-sys_admin --inh-caps=-all"
           start run $deprived "$ferroce" run --port null -- echo ran
           start ucx $deprived "$ferroce" run --port null -- echo ucx_info"#,
    );
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "run: 0, unchanged: ran", "{said}");
    assert!(lines[1].starts_with("ucx: 0, unchanged: warning: private mounts: "), "{said}");
    assert!(lines[1].contains("mknod"), "{said}");
    assert_eq!(lines[2..], ["ucx_info"], "{said}");
}

#[test]
fn without_the_right_to_mount_a_container_gets_links_and_device_files() {
    let said = staged(
        &[],
        r#"mounts=$(cat /proc/self/mountinfo)
           setpriv --bounding-set=-sys_admin --inh-caps=-all "$ferroce" run --port null -- true
           [ "$mounts" = "$(cat /proc/self/mountinfo)" ] && find /dev/infiniband -mindepth 1 -printf '%y%l\n' | sort | uniq -c"#,
    );
    let counts: Vec<_> = said.split_whitespace().collect();
    assert_eq!(counts, ["2", "f", "8", "l/dev/null"], "{said}");
}

#[test]
fn an_empty_folder_remains_where_there_was_none() {
    let said = staged(
        &[],
        r#"rm -r /dev/infiniband
           "$ferroce" run --port null -- test -c /dev/infiniband/ferroce0
           find /dev/infiniband -printf '%y %m\n'"#,
    );
    assert_eq!(said, "d 755\n");
}

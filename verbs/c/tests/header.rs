//! `ferroce.h` in a program that runs with another `libibverbs`.

use std::path::Path;
use std::process::Command;

const PROGRAM: &str = r#"
#include <errno.h>
#include <ferroce.h>
#include <stdio.h>
int main(void)
{
	struct ferroce_congestion now = {.size = sizeof now};
	struct ferroce_cause cause = {.size = sizeof cause};
	struct ibv_device **devices = ibv_get_device_list(NULL);
	if (devices)
		ibv_free_device_list(devices);
	printf("%u", ferroce_version());
	printf(" %d", ferroce_set_congestion(NULL, "hpcc") == EOPNOTSUPP && errno == EOPNOTSUPP);
	printf(" %d", ferroce_query_congestion(NULL, &now) == EOPNOTSUPP && errno == EOPNOTSUPP);
	printf(" %d\n", ferroce_qp_cause(NULL, &cause) == EOPNOTSUPP && errno == EOPNOTSUPP);
	return 0;
}
"#;

#[test]
fn a_program_starts_without_ferroce_and_detects_its_absence() {
    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("program.c"), folder.path().join("program"));
    std::fs::write(&source, PROGRAM).unwrap();
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .args([&own.join("include"), &source, &own.join("ferroce.c")])
        .args(["-libverbs", "-o"])
        .arg(&binary)
        .output();
    let built = built.expect("a C compiler: apt-get install gcc libibverbs-dev");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&binary).env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "0 1 1 1\n", "{}", String::from_utf8_lossy(&ran.stderr));
}

//! A program with privileges that its caller lacks ignores the caller's environment and working directory. The test runs setuid and setgid
//! copies of itself as user 65534, so it requires root.

use ferroce_verbs::{Device, DeviceConfig, observe};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

const CHILD: &str = "TEST_PRIVILEGED_CHILD";
const NOBODY: u32 = 65534;
const UNTOUCHED: &str = "root's own";

fn secure() -> bool {
    // SAFETY: getauxval reads a value that the kernel passed to the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn effective_user() -> u32 {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

/// The privileged program. It prints the settings and directories that it would use, and opens devices.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    println!("secure {}, user {}", secure(), effective_user());
    println!("file {:?}", DeviceConfig::file());
    let config = DeviceConfig::from_env();
    println!("settings are the defaults: {}", config == Ok(DeviceConfig::new()));
    if let Ok(config) = config {
        println!("chosen port: {:?}", Device::open(&config).map(|_| ()).map_err(|error| error.to_string()));
    }
    println!("folder of sockets: {:?}", observe::folder());
    println!("temporary folder: {:?}", datapath::environment::temporary_folder());
    println!("own port: {:?}", Device::open(&DeviceConfig::on("null")).map(|_| ()));
}

/// The caller's choices: files of root that must not be written, and directories that must not be used.
struct Caller {
    folder: tempfile::TempDir,
}

impl Caller {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let caller = Self { folder };
        caller.allow("", 0o755);
        for name in ["runtime", "runtime/dpdk", "tmp", "here"] {
            fs::create_dir(caller.path(name)).unwrap();
            caller.allow(name, 0o755);
        }
        for (name, text) in [
            ("victim", UNTOUCHED),
            ("named.toml", "mtu = 1024"),
            ("here/ferroce.toml", "port = 'null'\nmtu = 1024\nip = ['10.0.0.1/24']"),
        ] {
            fs::write(caller.path(name), text).unwrap();
            caller.allow(name, 0o644);
        }
        File::open(caller.path("runtime/dpdk")).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        caller
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn allow(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
    }

    /// Creates a copy of this program with these mode bits. Its owner is root.
    fn program(&self, mode: u32) -> PathBuf {
        let program = self.path("program");
        // Another process copies the file. While this process had it open for writing, a forked child could inherit the descriptor, and the
        // copy could not be executed.
        let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
        assert!(copied.unwrap().success());
        chown(&program, Some(0), Some(0)).unwrap();
        self.allow("program", mode);
        program
    }
}

/// Runs the program with these environment variables. Returns its standard output and standard error.
fn run(mut command: Command, folder: &Path, variables: &[(&str, String)]) -> (String, String) {
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).current_dir(folder);
    command.env_clear().env(CHILD, "").envs(variables.iter().map(|(name, value)| (name, value)));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY);
    command
}

fn contains(shown: &str, parts: &[&str]) {
    for part in parts {
        assert!(shown.contains(part), "no {part:?} in:\n{shown}");
    }
}

#[test]
fn a_setuid_or_setgid_program_ignores_its_callers_environment_and_folder() {
    assert_eq!(effective_user(), 0, "this test makes a setuid program of root's, so it runs as root");
    let caller = Caller::new();
    let path = |name: &str| caller.path(name).display().to_string();
    let variables = [
        ("FERROCE_PORT", format!("pcap:,{}", path("victim"))),
        ("FERROCE_CONFIG", path("named.toml")),
        ("FERROCE_IP", "10.0.0.9/24".into()),
        ("FERROCE_CC", "dcqcn".into()),
        ("FERROCE_FEEDBACK_KEY", "22".repeat(16)),
        ("FERROCE_QUEUE_PAIRS", "7".into()),
        ("FERROCE_LOG", "trace".into()),
        ("XDG_RUNTIME_DIR", path("runtime")),
        ("RUNTIME_DIRECTORY", path("runtime")),
        ("TMPDIR", path("tmp")),
    ];
    for (mode, user) in [(0o4755, 0), (0o2755, NOBODY)] {
        let (shown, said) = run(as_nobody(&caller.program(mode)), &caller.path("here"), &variables);
        let is_secure = format!("secure true, user {user}");
        assert!(
            shown.contains(&is_secure),
            "the kernel gave the program no rights, so nothing was tested: {} is on a file system that is mounted nosuid, or \
             no_new_privs is set; set TMPDIR to another folder: {shown}{said}",
            caller.folder.path().display()
        );
        assert_eq!(fs::read_to_string(caller.path("victim")).unwrap(), UNTOUCHED, "{shown}");
        contains(&shown, &["file None", "settings are the defaults: true", "no port is named"]);
        contains(&shown, &["temporary folder: \"/tmp\"", "own port: Ok(())"]);
        assert!(!shown.contains(&path("runtime")), "{shown}");
        let used = fs::metadata(caller.path("runtime/dpdk")).unwrap().modified().unwrap();
        assert_eq!(used, SystemTime::UNIX_EPOCH, "DPDK used the caller's folder");
        let lines: Vec<_> = said.lines().filter(|line| line.contains("ignored")).collect();
        assert_eq!(lines.len(), 1, "{said}");
        contains(
            lines[0],
            &["warning: FERROCE_", "setuid, setgid or has file capabilities", "/etc/ferroce.toml"],
        );
        assert!(!said.contains("TRACE"), "FERROCE_LOG had an effect: {said}");
    }
}

/// A program without privileges uses its caller's TMPDIR and working directory. This confirms that the tests above can fail.
#[test]
fn a_program_without_privileges_uses_its_callers_environment() {
    let caller = Caller::new();
    let variables = [("TMPDIR", caller.path("tmp").display().to_string())];
    let (shown, said) = run(as_nobody(&caller.program(0o755)), &caller.path("here"), &variables);
    contains(&shown, &["secure false", "file Some(\"ferroce.toml\")", "settings are the defaults: false"]);
    assert!(shown.contains(&format!("temporary folder: {:?}", caller.path("tmp"))), "{shown}{said}");
    assert!(!said.contains("ignored"), "{said}");
}

/// The administrator configures a setuid program by a file in `/etc`. A mount namespace provides another `/etc`.
#[test]
fn a_setuid_program_reads_the_file_in_etc() {
    assert_eq!(effective_user(), 0, "this test makes a setuid program of root's, so it runs as root");
    let caller = Caller::new();
    fs::create_dir(caller.path("etc")).unwrap();
    fs::write(caller.path("etc/ferroce.toml"), "queue_pairs = 9").unwrap();
    let program = caller.program(0o4755);
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$0\" /etc && exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(caller.path("etc")).arg(program);
    let path = std::env::var("PATH").unwrap();
    let (shown, said) = run(command, &caller.path("here"), &[("PATH", path)]);
    assert!(shown.contains("secure true"), "{shown}{said}");
    contains(&shown, &["file Some(\"/etc/ferroce.toml\")", "settings are the defaults: false"]);
}

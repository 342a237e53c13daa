//! The table of jobs: purpose, tier, and load on the machine.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The runs to which a job belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// Every run: `scripts/test` without arguments.
    Quick,
    /// `scripts/test --all`, which a change must pass.
    All,
    /// `scripts/test --release`.
    Release,
}

impl Tier {
    /// Returns true if a run of this tier includes jobs of tier `other`.
    pub fn includes(self, other: Tier) -> bool {
        self == other || (self == Tier::All && other == Tier::Quick)
    }

    /// Returns the name of the tier in `scripts/test --list`.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Quick => "quick",
            Tier::All => "all",
            Tier::Release => "release",
        }
    }
}

/// The load of a job on the machine, which determines when it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Moves packets in real time. These jobs run one at a time, in the order of the table.
    Packets,
    /// Only computes. These jobs also run one at a time, concurrently with the others. They have idle priority (SCHED_IDLE), so that they
    /// use only CPU time that the others do not need.
    Computes,
    /// Measures what other load would change. These jobs run after all others have ended.
    Measures,
}

/// A job: an executable file in `ci/`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// The name of the file.
    pub name: &'static str,
    pub tier: Tier,
    pub load: Load,
    /// The duration with everything built on two CPUs, s: the estimate for the first run on a machine.
    pub seconds: u64,
    /// The property that the job checks.
    pub holds: &'static str,
}

const fn job(name: &'static str, tier: Tier, load: Load, seconds: u64, holds: &'static str) -> Job {
    Job { name, tier, load, seconds, holds }
}

/// Every job. Those with the same load run in this order.
#[rustfmt::skip]
pub const JOBS: &[Job] = &[
    job("format", Tier::Quick, Load::Computes, 2, "rustfmt leaves nothing to change"),
    job("limits", Tier::Quick, Load::Computes, 4, "lengths of files, unsafe code only where it may be"),
    job("layers", Tier::Quick, Load::Computes, 7, "dependencies between crates, and between the files of a crate, go one way"),
    job("specification", Tier::Quick, Load::Computes, 1, "every rule that code cites has its test, and docs/specification.md says which"),
    job("lint", Tier::Quick, Load::Computes, 20, "clippy and rustc warn of nothing"),
    job("docs", Tier::Quick, Load::Computes, 15, "every public item is documented, every link leads somewhere"),
    job("manual", Tier::Quick, Load::Computes, 5, "every man page is well-formed"),
    job("no-std", Tier::Quick, Load::Computes, 2, "cc and roce build without std"),
    job("compile", Tier::Quick, Load::Computes, 2, "every test compiles"),
    job("unit-virtual", Tier::Quick, Load::Computes, 100, "unit, property and capture tests of the crates whose time is virtual"),
    job("dissector", Tier::Quick, Load::Computes, 4, "tshark reads telemetry in every format"),
    job("loom", Tier::Quick, Load::Computes, 30, "every interleaving of threads at the doorbells"),
    job("fuzz", Tier::All, Load::Computes, 80, "each fuzz target for a few seconds"),
    job("budgets", Tier::All, Load::Computes, 60, "what each step of a packet may cost, in instructions"),
    job("stress", Tier::All, Load::Computes, 58, "random verbs by several threads of a C program"),
    job("soak", Tier::All, Load::Computes, 34, "10,000 seeds of everything that can go wrong"),
    job("sim", Tier::All, Load::Computes, 38, "the simulator beside its reference"),
    job("loss", Tier::All, Load::Computes, 10, "what loss costs, in the simulator: goodput and the longest waits against their floors"),
    job("build", Tier::All, Load::Packets, 2, "the programs and the drop-in libraries, as users get them"),
    job("end-to-end", Tier::All, Load::Packets, 127, "every tool between two hosts"),
    job("formats", Tier::All, Load::Packets, 27, "telemetry in every format through the switch"),
    job("congestion", Tier::All, Load::Packets, 121, "what congestion control promises"),
    job("congestion-choices", Tier::All, Load::Packets, 74, "congestion control chosen in every way"),
    job("paths", Tier::All, Load::Packets, 30, "several paths through routers"),
    job("ioam", Tier::All, Load::Packets, 8, "Linux as an IOAM node"),
    job("tcp", Tier::All, Load::Packets, 34, "Linux's own TCP, paced by HPCC++, beside CUBIC"),
    job("faults", Tier::All, Load::Packets, 139, "faults of every kind, against ours and against Linux's RoCEv2 in a guest"),
    job("neighbours", Tier::All, Load::Packets, 40, "limits of the process; an interface that changes under traffic"),
    job("why-paths", Tier::All, Load::Packets, 20, "ferroce why names five causes that are injected into the path of a transfer"),
    job("why", Tier::All, Load::Packets, 48, "ferroce why names the cause that was injected; Prometheus reads ferroce metrics"),
    job("probes", Tier::All, Load::Packets, 21, "bpftrace attaches to running processes with each script of scripts/bpftrace"),
    job("capture", Tier::All, Load::Packets, 20, "tshark reads what ferroce capture captures; kill -9 of either side harms neither"),
    job("documents", Tier::All, Load::Packets, 18, "links of documents; the commands that documents show run"),
    job("programs", Tier::All, Load::Packets, 409, "Debian's RDMA programs on the drop-in libraries"),
    job("pyverbs", Tier::All, Load::Packets, 6, "rdma-core's own tests on the drop-in library"),
    job("pci", Tier::All, Load::Packets, 193, "NICs that QEMU emulates, by DPDK's drivers, against Linux's RoCEv2 in a guest"),
    job("rxe", Tier::All, Load::Packets, 303, "Linux's RoCEv2 in a guest"),
    job("programs-rxe", Tier::All, Load::Packets, 176, "Debian's RDMA programs, one of them in the guest"),
    // Last, because by then the other lane has compiled the programs that they run.
    job("examples", Tier::Quick, Load::Packets, 3, "every Rust example runs"),
    job("unit", Tier::Quick, Load::Packets, 90, "unit, property, capture and documentation tests of the crates that open ports"),
    job("demo", Tier::All, Load::Measures, 49, "scripts/demo keeps its promise"),
    job("rxe-newest", Tier::Release, Load::Packets, 500, "Linux's RoCEv2 of the newest kernel that Debian packages, in a guest: rxe and programs-rxe"),
    job("programs-all", Tier::Release, Load::Packets, 600, "programs with UCX's whole UCP list, and twenty live migrations of QEMU in a row"),
    job("container", Tier::Release, Load::Packets, 120, "RDMA between containers with default capabilities; the steps of action.yml"),
    job("arm64-check", Tier::Release, Load::Computes, 20, "the crates without C compile for arm64"),
    job("arm64", Tier::Release, Load::Computes, 240, "tests of cc, datapath, roce and verbs, the soak and write-bw over memif, built for arm64 and run by qemu-user"),
    job("msrv", Tier::Release, Load::Computes, 90, "the oldest Rust that Cargo.toml allows compiles it"),
    job("setup", Tier::Release, Load::Computes, 150, "scripts/setup in a fresh Debian that cannot reach rustup"),
    job("packages", Tier::Release, Load::Computes, 120, "the Debian packages, in a fresh Debian"),
    job("packages-trixie", Tier::Release, Load::Packets, 350, "the Debian packages and the tests of the datapath, in a fresh Debian 13"),
    job("tarball", Tier::Release, Load::Packets, 900, "the tarball runs in three releases of Debian and three of Ubuntu, without DPDK"),
    job("miri", Tier::Release, Load::Computes, 120, "the rings between programs and cores under Miri, which a nightly toolchain brings"),
    job("crates", Tier::Release, Load::Computes, 100, "each crate packs and builds from its package; docs.rs can document it"),
];

/// Returns the job with this name.
///
/// # Errors
///
/// Returns a message if there is none.
pub fn find(name: &str) -> Result<&'static Job, String> {
    JOBS.iter()
        .find(|job| job.name == name)
        .ok_or_else(|| format!("there is no job {name}; scripts/test --list names them"))
}

/// Returns the names of the executable files in `directory` that are not in the table, and therefore never run.
///
/// # Errors
///
/// Returns an error if the directory cannot be read.
pub fn without_a_row(directory: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in directory.read_dir()? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let metadata = entry.metadata()?;
        if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 && find(&name).is_err() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_an_executable_file_and_every_executable_file_a_job() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("ci/jobs has a parent");
        for job in JOBS {
            let mode = directory
                .join(job.name)
                .metadata()
                .unwrap_or_else(|e| panic!("ci/{}: {e}", job.name))
                .permissions()
                .mode();
            assert_ne!(mode & 0o111, 0, "ci/{} is not executable", job.name);
        }
        assert_eq!(without_a_row(directory).expect("ci/ is a directory"), Vec::<String>::new());
    }

    #[test]
    fn the_tier_all_includes_the_quick_jobs_and_release_only_its_own() {
        assert!(Tier::All.includes(Tier::Quick) && Tier::All.includes(Tier::All));
        assert!(!Tier::All.includes(Tier::Release));
        assert!(!Tier::Release.includes(Tier::Quick) && !Tier::Quick.includes(Tier::All));
    }

    #[test]
    fn names_are_unique() {
        for (i, job) in JOBS.iter().enumerate() {
            assert!(
                JOBS[..i].iter().all(|other| other.name != job.name),
                "{} is twice in the table",
                job.name
            );
        }
    }
}

//! Runs the `ferroce` tools, one process per side, and this program itself.

use crate::host::{Link, Running, Side};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Runs a perftest-style tool between the two sides and returns a field of the client's last result.
///
/// # Errors
/// Returns the output of a client that failed.
pub fn run(ferroce: &Path, link: &Link, args: &[&str], field: &str) -> Result<f64, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let json = folder.path().join("report.json");
    let mut server = link.command(Side::Server, ferroce, true);
    server.args(args).args(link.port(Side::Server));
    let mut client = link.command(Side::Client, ferroce, true);
    client.args(args).args(link.port(Side::Client)).arg("--out_json_file").arg(&json);
    meet(link, server, client).map_err(|said| format!("ferroce {}: {said}", args.join(" ")))?;
    let text = fs::read_to_string(&json).map_err(|error| format!("{}: {error}", json.display()))?;
    let report: Value =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", json.display()))?;
    report["results"][field]
        .as_f64()
        .ok_or_else(|| format!("the report has no number results.{field}: {text}"))
}

/// Runs this program with `args` for at most a minute, and returns the number that it prints. In a new process, a measurement is not
/// affected by memory or pools of earlier ones.
///
/// # Errors
/// Returns the standard error of the process if it prints no number.
pub fn afresh(args: &[&str]) -> Result<f64, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("timeout").arg("60").arg(own).args(args).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let why = || format!("{}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    text.trim().parse().map_err(|_| why())
}

/// Runs a server, and a client with the server's address, until both end. Returns the client's output.
///
/// # Errors
/// Returns the client's last line if it fails.
pub fn meet(link: &Link, mut server: Command, mut client: Command) -> Result<String, String> {
    let log = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let output = || log.as_file().try_clone().map_err(|error| error.to_string());
    // A server that was killed leaves its socket.
    let _ = fs::remove_file(link.socket());
    server.stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Running::start(server)?;
    link.wait_for_server(&link.socket());
    client.arg(link.server_address()).stdout(output()?).stderr(output()?);
    let good = Running::start(client)?.wait(Duration::from_secs(60))?;
    let said = fs::read_to_string(log.path()).map_err(|error| error.to_string())?;
    if !good {
        return Err(said.lines().last().unwrap_or("it said nothing").into());
    }
    server.wait(Duration::from_secs(10))?;
    Ok(said)
}

//! Runs of the `ferroce` tools, one process a side.

use crate::host::{Link, Running, Side};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Runs a perftest-style tool between the two sides and gives a field of the client's first result.
///
/// # Errors
/// What the client said when it failed.
pub fn run(ferroce: &Path, link: &Link, args: &[&str], field: &str) -> Result<f64, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (json, log) = (folder.path().join("report.json"), folder.path().join("client.log"));
    let mut server = link.command(Side::Server, ferroce, true);
    server.args(args).args(link.port(Side::Server)).stdout(Stdio::null()).stderr(Stdio::null());
    // One that a killed server left.
    let _ = fs::remove_file(link.socket());
    let mut server = Running::start(server)?;
    link.wait_for_server(&link.socket());
    let out = fs::File::create(&log).map_err(|error| error.to_string())?;
    let errors = out.try_clone().map_err(|error| error.to_string())?;
    let mut client = link.command(Side::Client, ferroce, true);
    client.args(args).args(link.port(Side::Client)).arg("--out_json_file").arg(&json);
    client.arg(link.server_address()).stdout(out).stderr(errors);
    let good = Running::start(client)?.wait(Duration::from_secs(60))?;
    if !good {
        let said = fs::read_to_string(&log).unwrap_or_default();
        return Err(format!(
            "ferroce {}: {}",
            args.join(" "),
            said.lines().last().unwrap_or("it said nothing")
        ));
    }
    server.wait(Duration::from_secs(10))?;
    let text = fs::read_to_string(&json).map_err(|error| format!("{}: {error}", json.display()))?;
    let report: Value =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", json.display()))?;
    report["results"][field]
        .as_f64()
        .ok_or_else(|| format!("the report has no number results.{field}: {text}"))
}

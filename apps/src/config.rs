//! `ferroce config`: prints the settings in effect and the source of each, and checks a file. Opens no port.

use crate::failure::Failure;
use crate::perf::describe_congestion;
use crate::port::PortArgs;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use toml::Value;
use verbs::DeviceConfig;
use verbs::congestion::CongestionRule;

/// The command line of `ferroce config`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ferroce config                              settings of a tool or program started in this folder
  ferroce config --config ./ferroce.toml      check this file and show its settings

A flag overrides a variable, and a variable overrides the file, but not its feedback_key_file. The
default of progress is that of programs; Ferroce's own tools poll all the time, so theirs is inline.
Exit code 2: a setting is wrong.")]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub port: PortArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

struct Row {
    key: &'static str,
    value: Option<String>,
    source: String,
}

/// Prints the settings.
///
/// # Errors
/// Returns a failure with exit code 2 if the file, a variable or a flag is wrong.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let file = args.port.config.clone().or_else(DeviceConfig::file);
    let config = args.port.checked()?;
    let sources = Sources { args: &args.port, keys: keys(file.as_deref(), config.port()), file };
    let rows = rows(&config, &sources);
    if args.json {
        outln!("{:#}", as_json(&rows, sources.file.as_deref()))?;
        return Ok(ExitCode::SUCCESS);
    }
    match &sources.file {
        Some(file) => outln!("file: {}", file.display())?,
        None => outln!("file: none")?,
    }
    for Row { key, value, source } in &rows {
        outln!("{key:<16} {:<36} {source}", value.as_deref().unwrap_or("-"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(config: &DeviceConfig, sources: &Sources<'_>) -> Vec<Row> {
    let settings = config.settings().into_iter();
    let mut rows: Vec<Row> =
        settings.map(|(key, value)| Row { key, source: sources.of(key), value }).collect();
    let (sealed, source) = match config.key_source() {
        Some(source) => ("answers are sealed", source.to_string()),
        None => ("answers are not sealed", "default".into()),
    };
    rows.push(Row { key: "feedback_key", value: Some(sealed.into()), source });
    for (place, rule) in config.rules().iter().enumerate() {
        // The rule of `FERROCE_CC` precedes those of the file.
        let is_variable = place == 0 && std::env::var_os("FERROCE_CC").is_some();
        let source = if is_variable { "FERROCE_CC".into() } else { sources.of_file("congestion") };
        rows.push(Row { key: "congestion", value: Some(rule_text(rule)), source });
    }
    let is_general =
        |rule: &CongestionRule| rule.peer.is_none() && rule.service.is_none() && rule.service_level.is_none();
    if !config.rules().iter().any(is_general) {
        let who = if config.rules().is_empty() { "all" } else { "others" };
        rows.push(Row { key: "congestion", value: Some(format!("{who}: auto")), source: "default".into() });
    }
    rows
}

fn rule_text(rule: &CongestionRule) -> String {
    let mut who = Vec::new();
    who.extend(rule.peer.map(|peer| format!("peer {peer}")));
    who.extend(rule.service.map(|service| format!("{service:?}").to_uppercase()));
    who.extend(rule.service_level.map(|level| format!("service level {level}")));
    let who = if who.is_empty() { "all".into() } else { who.join(", ") };
    format!("{who}: {}", describe_congestion(Some(&rule.congestion)))
}

struct Sources<'a> {
    args: &'a PortArgs,
    file: Option<PathBuf>,
    keys: BTreeSet<String>,
}

impl Sources<'_> {
    fn of(&self, key: &'static str) -> String {
        let flag = match key {
            "port" => self.args.port.is_some().then_some("--port"),
            "ip" => (!self.args.ip.is_empty()).then_some("--ip"),
            "vlan" => self.args.vlan.is_some().then_some("--vlan"),
            "cores" => self.args.cores.is_some().then_some("--cores"),
            "progress" => self.args.progress.is_some().then_some("--progress"),
            "link_rate" => self.args.link_rate.is_some().then_some("--link-rate"),
            _ => None,
        };
        let setting = DeviceConfig::SETTINGS.iter().find(|setting| setting.key == key);
        let variable = setting.map(|setting| setting.variable);
        let is_set = |variable: &&str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
        flag.or(variable.filter(is_set)).map_or_else(|| self.of_file(key), str::to_owned)
    }

    fn of_file(&self, key: &str) -> String {
        match &self.file {
            Some(file) if self.keys.contains(key) => file.display().to_string(),
            _ => "default".into(),
        }
    }
}

/// Returns the keys that the file sets for the device on `port`: the keys outside of tables, and the keys of the `[[device]]` table with
/// this port, or else of the first table. Returns no keys if the file cannot be read or parsed, which `checked` has already reported.
fn keys(file: Option<&Path>, port: Option<&str>) -> BTreeSet<String> {
    let text = file.and_then(|file| crate::input::text(file).ok());
    let Some(table) = text.and_then(|text| text.parse::<toml::Table>().ok()) else { return BTreeSet::new() };
    let devices = table.get("device").and_then(Value::as_array).into_iter().flatten();
    let devices: Vec<_> = devices.filter_map(Value::as_table).collect();
    let own = devices.iter().find(|device| device.get("port").and_then(Value::as_str) == port);
    let own = own.or(devices.first()).into_iter().flat_map(|device| device.keys());
    table.keys().chain(own).cloned().collect()
}

fn as_json(rows: &[Row], file: Option<&Path>) -> serde_json::Value {
    let rows = rows.iter().map(|row| json!({ "key": row.key, "value": row.value, "source": row.source }));
    json!({ "file": file.map(|file| file.display().to_string()), "settings": rows.collect::<Vec<_>>() })
}

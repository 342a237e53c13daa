//! Man pages of `ferroce.toml` and `ferroce.h`.

use super::as_is;
use clap_mangen::roff::{Roff, bold, roman};
use verbs::congestion::CongestionChoice;
use verbs::{DeviceConfig, DeviceSetting};

const ABOUT: &str = "Tools and libraries read ferroce.toml in the working folder, or the file that FERROCE_CONFIG or --config names. A variable \
         of the environment overrides the file (but not its feedback_key_file), and a flag overrides both. An unknown key is an error. A file that was found, not \
         named, is ignored with a warning if another user could have written it. A program that is setuid, setgid or has file capabilities \
         ignores the environment and the working folder, and reads /etc/ferroce.toml. `ferroce config` shows the settings in effect, and \
         where each comes from.";

const DEVICES: &str = "Each [[device]] table is a device. It names its port, and any of the keys from ip to feedback_key_file, which then override those of the \
         whole file.";

const RULES: &str = "Each [[congestion]] table is a rule. Rules are tried in the file's order, and the first that fits a queue pair decides. \
         If none fits, cc = auto applies. FERROCE_CC contains one rule in one line, such as \
         hpcc,line_rate=25G,base_rtt=20us; it is tried first. Such a line can also be the value of cc in a table.";

const EXAMPLE: &str = r#"port = "eth0"
progress = "adaptive"

[[congestion]]
peer = "10.0.0.0/8"
cc = "hpcc"
line_rate = "10G"
base_rtt = "50us"
"#;

const PROGRAM: &str = r#"struct ibv_qp *qp = ibv_create_qp(pd, &attributes);
if (ferroce_set_congestion(qp, "hpcc,line_rate=10G,base_rtt=50us"))
    perror("ferroce_set_congestion");

cc program.c $(pkg-config --cflags --libs ferroce)
ferroce run --port eth0 -- ./a.out
"#;

fn begin(title: &str, section: &str, name: &str) -> Roff {
    let mut roff = Roff::new();
    let source = format!("ferroce {}", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [title, section, " ", &source, "Ferroce"]);
    roff.control("SH", ["NAME"]);
    roff.text(vec![roman(name)]);
    roff
}

fn paragraph(roff: &mut Roff, text: &str) {
    roff.control("PP", []);
    roff.text(vec![roman(text)]);
}

fn key(roff: &mut Roff, name: &str, text: &str) {
    roff.control("TP", []);
    roff.text(vec![bold(name)]);
    roff.text(vec![roman(text)]);
}

/// Returns each key of a device with its description, default and variable.
fn keys() -> impl Iterator<Item = (&'static str, String)> {
    let defaults = DeviceConfig::new().settings();
    DeviceConfig::SETTINGS.iter().map(move |&DeviceSetting { key, variable, help, .. }| {
        let default = defaults.iter().find(|(name, _)| *name == key).and_then(|(_, value)| value.as_deref());
        let default = default.map(|value| format!(" The default is {value}.")).unwrap_or_default();
        let variable = match variable {
            "" => String::new(),
            variable => format!(" The variable is {variable}."),
        };
        (key, format!("{help}{default}{variable}"))
    })
}

/// Returns the page `docs/reference/ferroce-toml.md`.
pub fn reference() -> Vec<u8> {
    let mut page = "# ferroce.toml\n\n<!-- FERROCE_WRITE_REFERENCE=1 cargo test --workspace --test manual writes this page. -->\n\n\
                    `man ferroce.toml` has the same text.\n\n"
        .to_owned();
    page += ABOUT;
    page += "\n\n```toml\n";
    page += EXAMPLE;
    page += "```\n\n## Keys of the device\n\n";
    for (name, text) in keys() {
        page += &format!("- `{name}`: {text}\n");
    }
    page += "\n## Several devices\n\n";
    page += DEVICES;
    page += "\n\n## Congestion control\n\n";
    page += RULES;
    page += " [Settings of congestion control](congestion.md) lists the keys.\n";
    page.into_bytes()
}

/// Returns the man page `ferroce.toml(5)`.
pub fn toml() -> Vec<u8> {
    let mut roff = begin("FERROCE.TOML", "5", "ferroce.toml - settings of Ferroce's tools and libraries");
    roff.control("SH", ["DESCRIPTION"]);
    roff.text(vec![roman(ABOUT)]);
    roff.control("SH", ["DEVICE"]);
    for (name, text) in keys() {
        key(&mut roff, name, &text);
    }
    roff.control("SH", ["SEVERAL DEVICES"]);
    roff.text(vec![roman(DEVICES)]);
    roff.control("SH", ["CONGESTION CONTROL"]);
    roff.text(vec![roman(RULES)]);
    key(&mut roff, "peer", "An address prefix: the rule fits peers in it.");
    key(&mut roff, "qp", "RC, UC, UD or XRC: the rule fits queue pairs of this service.");
    key(
        &mut roff,
        "service_level",
        "0 to 7: the rule fits queue pairs whose traffic class begins with these three bits.",
    );
    for setting in CongestionChoice::SETTINGS {
        let text =
            format!("{} Accepts {}. The default is {}.", setting.help, setting.accepts(), setting.default());
        key(&mut roff, setting.key, &text);
    }
    roff.control("SH", ["EXAMPLES"]);
    as_is(&mut roff, EXAMPLE);
    roff.control("SH", ["SEE ALSO"]);
    roff.text(vec![roman("ferroce(1), ferroce-config(1), ferroce-run(1)")]);
    roff.to_roff().into_bytes()
}

/// Returns the man page `ferroce.h(3)`.
pub fn header() -> Vec<u8> {
    let name = "ferroce.h - congestion control of a queue pair, for C programs on libibverbs";
    let mut roff = begin("FERROCE.H", "3", name);
    roff.control("SH", ["SYNOPSIS"]);
    as_is(&mut roff, "#include <ferroce.h>");
    paragraph(&mut roff, "Link with the flags that `pkg-config --cflags --libs ferroce` prints.");
    roff.control("SH", ["DESCRIPTION"]);
    roff.text(vec![roman(
        "Ferroce's libibverbs.so.1 contains the functions of this header and those of rdma-core's:",
    )]);
    as_is(&mut roff, include_str!("ferroce.h"));
    roff.control("SH", ["EXAMPLES"]);
    as_is(&mut roff, PROGRAM);
    roff.control("SH", ["SEE ALSO"]);
    roff.text(vec![roman("ferroce-run(1), ferroce.toml(5), ibv_create_qp(3)")]);
    roff.to_roff().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_that_a_file_may_contain_are_described() {
        for DeviceSetting { key, .. } in DeviceConfig::SETTINGS {
            let error = format!("{key} = {{}}").parse::<DeviceConfig>().unwrap_err().to_string();
            assert!(!error.contains("unknown field"), "{key}: {error}");
        }
    }

    #[test]
    fn the_example_is_parsed() {
        assert_eq!(EXAMPLE.parse::<DeviceConfig>().unwrap().rules().len(), 1);
    }
}

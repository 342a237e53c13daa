//! Man pages of `ferroce.toml` and `ferroce.h`.

use super::as_is;
use clap_mangen::roff::{Roff, bold, roman};
use verbs::DeviceConfig;
use verbs::congestion::CongestionChoice;

/// The keys of a device: name, variable and description. Defaults come from [`DeviceConfig`].
const KEYS: [(&str, &str, &str); 17] = [
    (
        "port",
        "FERROCE_PORT",
        "The port: a Linux interface, tap:NAME, memif:SOCKET, or another form that `ferroce info` lists. A list names several devices; the variable separates them by commas, or by a semicolon after a port with a colon.",
    ),
    (
        "ip",
        "FERROCE_IP",
        "A list of the port's addresses with their prefixes; the variable separates them by commas. Without it the interface's own are used, or one made from the MAC.",
    ),
    (
        "gateway",
        "",
        "The address through which peers outside the prefixes are reached. A Linux interface uses its routes instead.",
    ),
    (
        "vlan",
        "FERROCE_VLAN",
        "The VLAN of the frames that the port sends and receives, 1 to 4094. The addresses are then those of `ip`.",
    ),
    (
        "progress",
        "FERROCE_PROGRESS",
        "The thread that runs the core: inline, adaptive, dedicated, or dedicated:CPU.",
    ),
    (
        "cores",
        "FERROCE_CORES",
        "The number of poll-mode cores behind the port, 1 to 16. Dedicated cores need as many CPUs.",
    ),
    ("idle", "", "What a dedicated core does when it finds no work: yield (sleeps at most 50 us) or busy."),
    (
        "mtu",
        "",
        "The largest path MTU to offer: 256, 512, 1024, 2048 or 4096. Without it, the largest that the port carries.",
    ),
    ("buffers", "", "The number of the port's packet buffers, 256 to 1048576."),
    (
        "queue_pairs",
        "FERROCE_QUEUE_PAIRS",
        "The number of queue pairs and shared receive queues together, 1 to 262144.",
    ),
    (
        "selective_repeat",
        "FERROCE_SELECTIVE_REPEAT",
        "Whether reliable queue pairs may use selective repeat, also those of unmodified C programs. With false, they use go-back-N, whatever a program or a peer offers.",
    ),
    (
        "early_memory",
        "",
        "The memory of each core for packets that arrive before one that was sent earlier (selective repeat), such as 64M. All queue pairs of the core share it, because peers choose how much of it they use. A packet that finds no room is dropped, and its sender repeats it. With 0, none are held.",
    ),
    (
        "link_rate",
        "",
        "Sends frames no faster than a link of this rate would. It is for ports without a rate: veth, tap and memif.",
    ),
    (
        "feedback_key_file",
        "FERROCE_FEEDBACK_KEY",
        "A file of mode 0600 that contains 32 hex digits (a relative path is relative to the folder of ferroce.toml), the key with which all queue pairs of the device seal their answers to telemetry; they accept no others, so both ends need the same key. The variable contains the key itself, for devices for which the file names none.",
    ),
    ("int_port", "FERROCE_INT_PORT", "The UDP port of INT-MD in the whole network."),
    ("aecn_option", "FERROCE_AECN_OPTION", "The type of AECN's IPv6 option in the whole network."),
    (
        "csig_tpid",
        "FERROCE_CSIG_TPID",
        "The EtherType of CSIG's compact tag in the whole network. The wide tag has the next one.",
    ),
];

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
    KEYS.into_iter().map(move |(name, variable, what)| {
        let default = defaults.iter().find(|(key, _)| *key == name).and_then(|(_, value)| value.as_deref());
        let default = default.map(|value| format!(" The default is {value}.")).unwrap_or_default();
        let variable = match variable {
            "" => String::new(),
            variable => format!(" The variable is {variable}."),
        };
        (name, format!("{what}{default}{variable}"))
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
    fn every_key_of_a_device_is_described() {
        for (key, _) in DeviceConfig::new().settings() {
            assert!(KEYS.iter().any(|(name, ..)| *name == key), "{key}");
        }
    }

    #[test]
    fn only_keys_that_a_file_may_contain_are_described() {
        for (key, ..) in KEYS {
            let error = format!("{key} = {{}}").parse::<DeviceConfig>().unwrap_err().to_string();
            assert!(!error.contains("unknown field"), "{key}: {error}");
        }
    }

    #[test]
    fn the_example_is_parsed() {
        assert_eq!(EXAMPLE.parse::<DeviceConfig>().unwrap().rules().len(), 1);
    }
}

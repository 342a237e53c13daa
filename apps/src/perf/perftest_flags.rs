//! Flags of perftest that these tools do not implement. Flags without an effect are accepted, so that command lines for perftest run
//! unchanged. All others are refused with the reason.

use super::plan::Tool;
use crate::failure::Failure;
use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// A flag of perftest, with its letter if it has one.
struct Flag {
    short: Option<char>,
    long: &'static str,
    value: Value,
    support: Support,
}

/// The value that follows a flag.
#[derive(Clone, Copy)]
enum Value {
    None,
    /// Any value; the help text shows it under this name.
    Any(&'static str),
    /// One of these values, in upper or lower case.
    Only(&'static str, &'static [&'static str]),
}

/// A tool's treatment of a flag.
#[derive(Clone, Copy)]
enum Support {
    /// The tool accepts the flag, and prints that it has no effect for this reason.
    NoEffect(&'static str),
    /// The tool refuses the flag with this reason and remedy. `PROGRAM` represents the name of the tool in perftest.
    Refused(&'static str),
}

use Support::{NoEffect, Refused};
use Value::{Any, Only};

const fn flag(short: Option<char>, long: &'static str, value: Value, support: Support) -> Flag {
    Flag { short, long, value, support }
}

const RAW: Support = Refused("is for perftest's raw_ethernet tools; leave it out");
const GPU: Support = Refused("the buffers are in the memory of the host; leave it out");
const ENCRYPTION: Support = Refused("data is not encrypted; leave it out");
const DC: Support = Refused("there are no DC queue pairs; write -c RC, UC or UD, and leave it out");
const ONE_PORT: Support = Refused("a device has one port; start a tool for each port");
const MULTICAST: Support = Refused("there is no multicast test; leave it out");
const IMMEDIATE: Support = Refused("there is no test with immediate data; leave it out");
const PINNED: Support =
    Refused("taskset chooses the CPUs, and --progress dedicated:CPU that of the core; leave it out");
const CM: Support = Refused(
    "client and server exchange their parameters over TCP (-p); leave it out on both sides, or run perftest on both: ferroce run -- PROGRAM -z",
);

/// The flags, in the order of the help text. Source: `perftest_parameters.c` of perftest 6.29.
const FLAGS: &[Flag] = &[
    flag(Some('F'), "CPU-freq", Value::None, NoEffect("there is no warning about the CPU's clock")),
    flag(Some('i'), "ib-port", Only("NUMBER", &["1"]), NoEffect("a device has one port")),
    flag(Some('X'), "vector", Any("VECTOR"), NoEffect("completions are polled")),
    flag(Some('W'), "report-counters", Any("NAMES"), NoEffect("a report always ends with the counters")),
    flag(None, "force-link", Only("TYPE", &["Ethernet"]), NoEffect("every port is Ethernet")),
    flag(None, "pkey_index", Only("INDEX", &["0"]), NoEffect("a port has one partition key")),
    flag(None, "dlid", Any("LID"), NoEffect("Ethernet has no LIDs")),
    flag(None, "ipv6-addr", Value::None, NoEffect("HOST may be an IPv6 address")),
    flag(None, "odp", Value::None, NoEffect("memory regions are never pinned")),
    flag(
        None,
        "use_hugepages",
        Value::None,
        NoEffect("packet buffers are in huge pages if the machine has free ones"),
    ),
    flag(None, "mr_per_qp", Value::None, NoEffect("one memory region serves all queue pairs")),
    flag(
        None,
        "perform_warm_up",
        Value::None,
        NoEffect("no messages precede the measurement; -D leaves its beginning out"),
    ),
    flag(None, "recv_post_list", Any("COUNT"), NoEffect("receives are posted as they complete")),
    flag(None, "use_old_post_send", Value::None, NoEffect("there is one way to post")),
    flag(None, "no_lock", Value::None, NoEffect("posting takes no lock")),
    flag(None, "cqe_poll", Any("COUNT"), NoEffect("a poll takes up to 32 completions")),
    flag(None, "disable_dynamic_polling", Value::None, NoEffect("polling does not adapt")),
    flag(None, "disable_numa", Value::None, NoEffect("the kernel places memory and threads")),
    flag(None, "tph_mem", Any("TYPE"), NoEffect("there is no PCIe device")),
    flag(None, "cpu_id", Any("CPU"), NoEffect("there is no PCIe device")),
    flag(None, "ph", Any("HINTS"), NoEffect("there is no PCIe device")),
    flag(None, "disable_pcie_relaxed", Value::None, NoEffect("there is no PCIe device")),
    flag(None, "rate_limit_type", Only("TYPE", &["SW"]), NoEffect("the sender itself observes --rate_limit")),
    flag(Some('z'), "comm_rdma_cm", Value::None, CM),
    flag(
        Some('C'),
        "report-cycles",
        Value::None,
        Refused("latencies are in microseconds, not in cycles; leave it out"),
    ),
    flag(Some('g'), "mcg", Value::None, MULTICAST),
    flag(Some('M'), "MGID", Any("GID"), MULTICAST),
    flag(None, "connectionless", Value::None, MULTICAST),
    flag(Some('O'), "dualport", Value::None, ONE_PORT),
    flag(None, "report-per-port", Value::None, ONE_PORT),
    flag(None, "write_with_imm", Value::None, IMMEDIATE),
    flag(None, "send_with_imm", Value::None, IMMEDIATE),
    flag(None, "unsolicited_write", Value::None, IMMEDIATE),
    flag(None, "use-null-mr", Value::None, Refused("messages have buffers in memory; leave it out")),
    flag(
        None,
        "payload_file_path",
        Any("FILE"),
        Refused("the payload cannot be chosen; --verify sends a pattern and compares it"),
    ),
    flag(
        None,
        "dont_xchg_versions",
        Value::None,
        Refused("client and server always exchange versions; leave it out on both sides"),
    ),
    flag(
        None,
        "bind_source_ip",
        Any("ADDRESS"),
        Refused("the kernel's routes choose the address of the TCP connection; leave it out"),
    ),
    flag(
        None,
        "flow_label",
        Any("LABEL"),
        Refused("the IPv6 flow label cannot be set; use --tclass to mark packets"),
    ),
    flag(
        None,
        "typical_pkt_size",
        Any("BYTES"),
        Refused("is for a NIC that paces packets; --rate_limit and --burst_size need no packet size"),
    ),
    flag(
        None,
        "congest_type",
        Any("NAME"),
        Refused("congestion control has a flag of its own; give --cc, such as --cc dcqcn"),
    ),
    flag(
        None,
        "no_ddp",
        Value::None,
        Refused("is for NICs that place packets out of order; leave it out, or replace it by --go-back-n"),
    ),
    flag(
        None,
        "use_ooo",
        Value::None,
        Refused("data is placed in order only with --go-back-n; leave it out"),
    ),
    flag(
        None,
        "no_enhanced_reorder",
        Value::None,
        Refused("is for NICs that place packets out of order; leave it out, or replace it by --go-back-n"),
    ),
    flag(None, "pin_cores", Any("CPUS"), PINNED),
    flag(None, "numa_node", Any("NODE"), PINNED),
    flag(None, "sig_offload", Value::None, Refused("there is no T10-DIF; leave it out")),
    flag(
        None,
        "data_validation_debug",
        Value::None,
        Refused("an error of --data_validation says where; leave it out"),
    ),
    flag(None, "mmap", Any("FILE"), Refused("the buffers are memory of the tool; leave it out")),
    flag(None, "mmap-offset", Any("BYTES"), Refused("the buffers are memory of the tool; leave it out")),
    flag(None, "use_cuda", Any("DEVICE"), GPU),
    flag(None, "use_cuda_bus_id", Any("BUS"), GPU),
    flag(None, "use_cuda_dmabuf", Value::None, GPU),
    flag(None, "use_cuda_pcie_mapping", Value::None, GPU),
    flag(None, "use_data_direct", Value::None, GPU),
    flag(None, "cuda_mem_type", Any("TYPE"), GPU),
    flag(None, "gpu_touch", Any("TYPE"), GPU),
    flag(None, "use_rocm", Any("DEVICE"), GPU),
    flag(None, "use_rocm_dmabuf", Value::None, GPU),
    flag(None, "use_neuron", Any("CORE"), GPU),
    flag(None, "use_neuron_dmabuf", Value::None, GPU),
    flag(None, "use_hl", Any("DEVICE"), GPU),
    flag(None, "use_mlu", Any("DEVICE"), GPU),
    flag(None, "use_mlu_dmabuf", Value::None, GPU),
    flag(None, "use_musa", Any("DEVICE"), GPU),
    flag(None, "use_musa_bus_id", Any("BUS"), GPU),
    flag(None, "use_musa_dmabuf", Value::None, GPU),
    flag(None, "use_musa_pcie_mapping", Value::None, GPU),
    flag(None, "use_opencl", Any("DEVICE"), GPU),
    flag(None, "opencl_platform_id", Any("PLATFORM"), GPU),
    flag(None, "use_ib_dm_dmabuf", Any("DEVICE"), GPU),
    flag(None, "aes_xts", Value::None, ENCRYPTION),
    flag(None, "encrypt_on_tx", Value::None, ENCRYPTION),
    flag(None, "sig_before", Value::None, ENCRYPTION),
    flag(None, "aes_block_size", Any("BYTES"), ENCRYPTION),
    flag(None, "kek_path", Any("FILE"), ENCRYPTION),
    flag(None, "credentials_path", Any("FILE"), ENCRYPTION),
    flag(None, "data_enc_keys_number", Any("COUNT"), ENCRYPTION),
    flag(None, "data_enc_key_app_path", Any("FILE"), ENCRYPTION),
    flag(None, "log_dci_streams", Any("NUMBER"), DC),
    flag(None, "log_active_dci_streams", Any("NUMBER"), DC),
    flag(Some('B'), "source_mac", Any("MAC"), RAW),
    flag(Some('E'), "dest_mac", Any("MAC"), RAW),
    flag(Some('J'), "dest_ip", Any("ADDRESS"), RAW),
    flag(Some('j'), "source_ip", Any("ADDRESS"), RAW),
    flag(Some('K'), "dest_port", Any("PORT"), RAW),
    flag(Some('k'), "source_port", Any("PORT"), RAW),
    flag(Some('Y'), "ethertype", Any("TYPE"), RAW),
    flag(Some('v'), "mac_fwd", Value::None, RAW),
    flag(Some('G'), "use_rss", Value::None, RAW),
    flag(None, "remote_mac", Any("MAC"), RAW),
    flag(None, "local_mac", Any("MAC"), RAW),
    flag(None, "remote_ip", Any("ADDRESS"), RAW),
    flag(None, "local_ip", Any("ADDRESS"), RAW),
    flag(None, "remote_port", Any("PORT"), RAW),
    flag(None, "local_port", Any("PORT"), RAW),
    flag(None, "tcp", Value::None, RAW),
    flag(None, "raw_ipv6", Value::None, RAW),
    flag(None, "raw_mcast", Value::None, RAW),
    flag(None, "promiscuous", Value::None, RAW),
    flag(None, "sniffer", Value::None, RAW),
    flag(None, "flows", Any("COUNT"), RAW),
    flag(None, "flows_burst", Any("COUNT"), RAW),
    flag(None, "reply_every", Any("COUNT"), RAW),
    flag(None, "vlan_en", Value::None, Refused("the port has the VLAN; give --vlan")),
    flag(None, "vlan_pcp", Any("PRIORITY"), Refused("the priority follows the service level; give -S")),
];

impl Flag {
    fn arg(&'static self) -> Arg {
        let arg = Arg::new(self.long).long(self.long).help_heading("perftest's flags without an effect here");
        let arg = match self.short {
            Some(letter) => arg.short(letter),
            None => arg,
        };
        let arg = match self.value {
            Value::None => arg.action(ArgAction::SetTrue),
            Any(name) => arg.value_name(name),
            Only(name, values) => {
                arg.value_name(name).value_parser(PossibleValuesParser::new(values)).ignore_case(true)
            }
        };
        match self.support {
            NoEffect(why) => arg.help(format!("No effect: {why}")),
            Refused(_) => arg.hide(true),
        }
    }

    /// Returns the flag in its short form: `-F` or `--odp`.
    fn name(&self) -> String {
        match self.short {
            Some(letter) => format!("-{letter}"),
            None => format!("--{}", self.long),
        }
    }
}

/// The flags of perftest on a command line that are not implemented here.
#[derive(Clone, Debug, Default)]
pub struct PerftestFlags {
    without_effect: Vec<String>,
    /// The first refused flag, and the reason.
    refused: Option<(String, &'static str)>,
}

impl Args for PerftestFlags {
    fn augment_args(command: Command) -> Command {
        FLAGS.iter().map(Flag::arg).fold(command, Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for PerftestFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let is_given = |flag: &&Flag| matches.value_source(flag.long) == Some(ValueSource::CommandLine);
        for flag in FLAGS.iter().filter(is_given) {
            match flag.support {
                NoEffect(_) => self.without_effect.push(flag.name()),
                Refused(why) => self.refused = self.refused.take().or_else(|| Some((flag.name(), why))),
            }
        }
        Ok(())
    }
}

impl PerftestFlags {
    /// Checks that no flag is refused. Returns a line about the flags without an effect, if there are any.
    ///
    /// # Errors
    /// Returns a failure with the reason and the remedy for the first flag that is refused.
    pub fn check(&self, tool: Tool) -> Result<Option<String>, Failure> {
        if let Some((flag, why)) = &self.refused {
            let why = why.replace("PROGRAM", &tool.in_perftest());
            return Err(Failure::usage(format!("{flag}: {why}")));
        }
        let flags = self.without_effect.join(", ");
        Ok((!flags.is_empty()).then(|| format!("no effect here: {flags}; `ferroce {tool} --help` says why")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::{Kind, PerfArgs, Verb};
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: PerftestFlags,
    }

    #[derive(Parser)]
    struct Whole {
        #[command(flatten)]
        args: PerfArgs,
    }

    /// The long flags of perftest 6.29, except those that choose the side of a raw Ethernet test.
    const LONG: &str = "\
        CPU-freq MGID aes_block_size aes_xts all atomic_type bidirectional bind_source_ip burst_size comm_rdma_cm congest_type \
        connection connectionless cpu_id cpu_util cq-mod cqe_poll credentials_path cuda_mem_type data_enc_key_app_path \
        data_enc_keys_number data_validation data_validation_debug dest_ip dest_mac dest_port disable_dynamic_polling \
        disable_numa disable_pcie_relaxed dlid dont_xchg_versions dualport duration encrypt_on_tx ethertype events flow_label \
        flows flows_burst force-link gid-index gpu_touch hop_limit ib-dev ib-port inline_size ipv6 ipv6-addr iters kek_path \
        latency_gap limit_bw limit_msgrate local_ip local_mac local_port log_active_dci_streams log_dci_streams mac_fwd margin \
        mcg mmap mmap-offset mr_per_qp mtu noPeak no_enhanced_reorder no_lock numa_node odp opencl_platform_id out_json \
        out_json_file output outs payload_file_path perform_warm_up ph pin_cores pkey_index port post_list promiscuous qp qp-timeout \
        rate_limit rate_limit_type rate_units raw_ipv6 raw_mcast rdma_cm recv_post_list remote_ip remote_mac remote_port \
        reply_every report-both report-counters report-cycles report-histogrm report-per-port report-unsorted report_gbits \
        retry_count reversed run_infinitely rx-depth send_with_imm sig_before sig_offload size sl sniffer source_ip source_mac \
        source_port tclass tcp tos tph_mem tx-depth typical_pkt_size unsolicited_write use-null-mr use-srq use_cuda \
        use_cuda_bus_id use_cuda_dmabuf use_cuda_pcie_mapping use_data_direct use_hl use_hugepages use_ib_dm_dmabuf use_mlu \
        use_mlu_dmabuf use_musa use_musa_bus_id use_musa_dmabuf use_musa_pcie_mapping use_neuron use_neuron_dmabuf \
        use_old_post_send use_ooo use_opencl use_rocm use_rocm_dmabuf use_rss vector vlan_en vlan_pcp wait_destroy \
        write_with_imm";
    /// The letters of perftest's flags, with the same exception.
    const LETTERS: &str = "wypdimsntuSxcqIoMrQAlDfBTLEJjKkXWaFegzRvbNCHUOG";

    const WRITE_BW: Tool = Tool { verb: Verb::Write, kind: Kind::Bandwidth };

    fn check(line: &str) -> Result<Option<String>, Failure> {
        Line::try_parse_from(format!("tool {line}").split_whitespace()).unwrap().flags.check(WRITE_BW)
    }

    #[test]
    fn every_flag_of_perftest_is_known() {
        let command = Whole::command();
        let knows = |long: &str| {
            let mut names = command.get_arguments().map(|arg| {
                (arg.get_long() == Some(long))
                    || arg.get_all_aliases().is_some_and(|names| names.contains(&long))
            });
            names.any(|is_it| is_it)
        };
        let unknown: Vec<&str> = LONG.split_whitespace().filter(|long| !knows(long)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        let letters: String = LETTERS
            .chars()
            .filter(|letter| !command.get_arguments().any(|arg| arg.get_short() == Some(*letter)))
            .collect();
        assert_eq!(letters, "");
    }

    #[test]
    fn a_flag_without_an_effect_is_named() {
        assert_eq!(check("").unwrap(), None);
        let said = check("--use_hugepages -i 1 --force-link=ethernet -F").unwrap().unwrap();
        assert_eq!(
            said,
            "no effect here: -F, -i, --force-link, --use_hugepages; `ferroce write-bw --help` says why"
        );
    }

    #[test]
    fn an_unsupported_flag_is_refused_with_the_remedy() {
        let refused = |line: &str| check(line).unwrap_err().to_string();
        let says = refused("-F -z");
        assert!(says.starts_with("-z: ") && says.ends_with("ferroce run -- ib_write_bw -z"), "{says}");
        assert_eq!(
            refused("--use_cuda=0"),
            "--use_cuda: the buffers are in the memory of the host; leave it out"
        );
        for flag in FLAGS.iter().filter(|flag| matches!(flag.support, Refused(_))) {
            let line = match flag.value {
                Value::None => format!("--{}", flag.long),
                _ => format!("--{}=1", flag.long),
            };
            let says = refused(&line);
            assert!(says.starts_with(&flag.name()) && says.contains("; "), "{says}");
        }
    }

    #[test]
    fn a_value_that_would_have_an_effect_is_an_error() {
        for wrong in ["-i 2", "--force-link=IB", "--pkey_index=1", "--rate_limit_type=HW"] {
            assert!(Line::try_parse_from(format!("tool {wrong}").split_whitespace()).is_err(), "{wrong}");
        }
    }
}

//! perftest's flags that need nothing here: command lines that were written for perftest run unchanged.

/// Flags without an effect.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Accepted as perftest's, without an effect")]
pub struct AcceptedArgs {
    /// No warning about the CPU's clock; there is none
    #[arg(short = 'F', long = "CPU-freq")]
    cpu_freq: bool,
    /// Port of the device: each has one
    #[arg(short = 'i', long = "ib-port", value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=1))]
    ib_port: Option<u8>,
    /// Link type
    #[arg(long = "force-link", value_name = "TYPE", value_parser = ["Ethernet"], ignore_case = true)]
    force_link: Option<String>,
    /// Index of the partition key: each port has one
    #[arg(long = "pkey_index", value_name = "INDEX", value_parser = clap::value_parser!(u8).range(0..=0))]
    pkey_index: Option<u8>,
    /// Memory regions are never pinned
    #[arg(long = "odp")]
    on_demand_paging: bool,
    /// Packet buffers are in huge pages if the machine has free ones
    #[arg(long = "use_hugepages")]
    huge_pages: bool,
    /// No messages before the measurement; with -D, the beginning is left out of the result
    #[arg(long = "perform_warm_up")]
    warm_up: bool,
    /// There is one way to post
    #[arg(long = "use_old_post_send")]
    old_post_send: bool,
    /// There is no PCIe device
    #[arg(long = "disable_pcie_relaxed")]
    strict_ordering: bool,
}

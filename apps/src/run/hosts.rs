//! Connected hosts on this machine: network namespaces, connected by a veth pair or by a switch.

use super::stale;
use crate::failure::Failure;
use cc::Rate;
use datapath::linux::die_with_parent;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::thread;

/// The interface of each host.
pub const INTERFACE: &str = "eth0";
/// The line that `ferroce switch` prints when it starts to forward.
const SWITCHING: &str = "switching between";

/// The link between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A veth pair, for two hosts only.
    Cable,
    /// `ferroce switch` without a rate limit.
    Switch,
    /// `ferroce switch` with this rate at each port, so that it writes telemetry.
    Shaped(Rate),
}

/// The hosts. Dropping them removes them.
pub struct Hosts {
    prefix: String,
    count: u8,
    switch: Option<Child>,
}

impl Hosts {
    /// Creates `count` hosts with links of `mtu`.
    ///
    /// # Errors
    /// Returns a failure if `ip` is missing or fails, for example without root.
    pub fn make(count: u8, mtu: u16, link: Link) -> Result<Self, Failure> {
        stale::sweep();
        // From here on, dropping `hosts` removes everything created so far, even if a later step fails.
        let mut hosts =
            Self { prefix: format!("{}{}", stale::PREFIX, std::process::id()), count, switch: None };
        match link {
            Link::Cable => hosts.make_pair(mtu)?,
            Link::Switch | Link::Shaped(_) => hosts.make_star(mtu)?,
        }
        for rank in 0..count {
            hosts.set_up(rank)?;
        }
        match link {
            Link::Cable => {}
            Link::Switch => hosts.start_switch(None)?,
            Link::Shaped(rate) => hosts.start_switch(Some(rate))?,
        }
        Ok(hosts)
    }

    /// Returns the number of hosts.
    pub fn count(&self) -> u8 {
        self.count
    }

    /// Returns the name of a host's namespace.
    pub fn namespace(&self, rank: u8) -> String {
        format!("{}-{rank}", self.prefix)
    }

    /// Returns a host's address.
    pub fn address(rank: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 79, 0, rank + 1)
    }

    fn make_pair(&self, mtu: u16) -> Result<(), Failure> {
        let (here, there, mtu) = (self.namespace(0), self.namespace(1), mtu.to_string());
        ip(&["netns", "add", &here])?;
        ip(&["netns", "add", &there])?;
        let peer = ["peer", "name", INTERFACE, "mtu", &mtu, "netns", &there];
        ip(&[&["-n", &here, "link", "add", INTERFACE, "mtu", &mtu, "type", "veth"], &peer[..]].concat())
    }

    fn make_star(&self, mtu: u16) -> Result<(), Failure> {
        let (centre, mtu) = (self.switch_namespace(), mtu.to_string());
        ip(&["netns", "add", &centre])?;
        for rank in 0..self.count {
            let (host, port) = (self.namespace(rank), switch_port(rank));
            ip(&["netns", "add", &host])?;
            let peer = ["peer", "name", &port, "mtu", &mtu, "netns", &centre];
            ip(&[&["-n", &host, "link", "add", INTERFACE, "mtu", &mtu, "type", "veth"], &peer[..]].concat())?;
            // The switch is not a host and must not answer requests.
            let quiet = format!("net.ipv6.conf.{port}.disable_ipv6=1");
            command("ip", &["netns", "exec", &centre, "sysctl", "-q", "-w", &quiet])?;
            send_frames_as_they_are(&centre, &port)?;
            ip(&["-n", &centre, "link", "set", &port, "up"])?;
        }
        Ok(())
    }

    fn set_up(&self, rank: u8) -> Result<(), Failure> {
        let host = self.namespace(rank);
        send_frames_as_they_are(&host, INTERFACE)?;
        // The link-local address can be used at once, because no other host can have the same address.
        let at_once = format!("net.ipv6.conf.{INTERFACE}.accept_dad=0");
        command("ip", &["netns", "exec", &host, "sysctl", "-q", "-w", &at_once])?;
        let address = format!("{}/24", Self::address(rank));
        ip(&["-n", &host, "address", "add", &address, "dev", INTERFACE])?;
        ip(&["-n", &host, "link", "set", "lo", "up"])?;
        ip(&["-n", &host, "link", "set", INTERFACE, "up"])
    }

    fn start_switch(&mut self, rate: Option<Rate>) -> Result<(), Failure> {
        let failed = |why: String| Failure::run(format!("the switch does not start: {why}"));
        let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let mut switch = Command::new("ip");
        die_with_parent(&mut switch);
        switch.args(["netns", "exec", &self.switch_namespace()]).arg(program).arg("switch");
        for rank in 0..self.count {
            switch.args(["--port", &switch_port(rank)]);
        }
        if let Some(rate) = rate {
            switch.args(["--rate", &rate.as_bps().to_string()]);
        }
        switch.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let switch = self.switch.insert(switch.spawn().map_err(|error| failed(error.to_string()))?);
        let Some(said) = switch.stdout.take() else { return Ok(()) };
        let mut said = BufReader::new(said).lines().map_while(Result::ok);
        if !said.any(|line| line.contains(SWITCHING)) {
            return Err(failed("it ended before it forwarded a frame".into()));
        }
        // Its further output is a report, which is not needed here. Unread output would block the process.
        thread::spawn(move || said.for_each(drop));
        Ok(())
    }

    fn switch_namespace(&self) -> String {
        format!("{}-switch", self.prefix)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Some(switch) = &mut self.switch {
            // The switch may have ended already.
            let _ = switch.kill();
            let _ = switch.wait();
            let _ = ip(&["netns", "del", &self.switch_namespace()]);
        }
        for rank in 0..self.count {
            // A namespace that was not created cannot be removed.
            let _ = ip(&["netns", "del", &self.namespace(rank)]);
        }
    }
}

fn switch_port(rank: u8) -> String {
    format!("port{rank}")
}

/// Disables offloads: a veth omits checksums and segmentation, but the core and the switch need complete frames.
fn send_frames_as_they_are(namespace: &str, interface: &str) -> Result<(), Failure> {
    let offloads = ["tx", "off", "rx", "off", "tso", "off", "gso", "off", "gro", "off"];
    let ethtool = ["netns", "exec", namespace, "ethtool", "-K", interface];
    command("ip", &[&ethtool, &offloads[..]].concat())
}

fn ip(arguments: &[&str]) -> Result<(), Failure> {
    command("ip", arguments)
}

fn command(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    let done = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let done = done.map_err(|error| {
        Failure::run(format!("cannot run `{program}`: {error}; apt-get install iproute2 ethtool procps"))
    })?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    let line = format!("{program} {}", arguments.join(" "));
    let status = done.status;
    let remedy = remedy(&said);
    Err(Failure::run(format!("`{line}` fails ({status}): {said}; {remedy}")))
}

/// Returns the remedy for a command that failed with this message.
fn remedy(said: &str) -> &'static str {
    if said.contains("No such file") {
        "apt-get install iproute2 ethtool procps"
    } else {
        "hosts on this machine need root, in a container with --privileged"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_and_missing_rights_have_different_remedies() {
        assert!(remedy("exec of \"ethtool\" failed: No such file or directory").contains("apt-get install"));
        assert!(remedy("Operation not permitted").contains("root"));
    }
}

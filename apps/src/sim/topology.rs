//! The topology of a scenario: a named one, or a graph whose links are listed in the scenario or in a file.

use super::flows::parse_time;
use super::mistake::Mistake;
use super::scenario::Text;
use super::shape::{NodeNames, Shape, link_rate};
use crate::input;
use cc::Rate;
use fabric::Probability;
use fabric::sim::{GraphError, Link, Topology};
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// The limit on the hosts, and on the switches, of a graph.
const NODES: usize = 200_000;

/// The limit on hosts times switches: a switch has a route of 8 bytes to each host.
const ROUTES: usize = 1 << 27;

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TopologyKind {
    Star,
    Dumbbell,
    ParkingLot,
    LeafSpine,
    FatTree,
    Graph,
}

/// An entry of `[[link]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkText {
    /// Names of both nodes: `h` and the number of a host, or `s` and the number of a switch.
    ends: [String; 2],
    rate: Option<String>,
    delay: Option<String>,
    #[serde(default)]
    loss: f64,
}

/// Returns the topology of a scenario in `folder`.
pub(super) fn shape(text: &Text, folder: &Path) -> Result<Shape, Mistake> {
    refuse_unused(text)?;
    let shape = match text.topology {
        TopologyKind::Graph => graph(text, folder)?,
        _ => with_name(text)?,
    };
    let (hosts, switches) = (shape.topology.hosts(), shape.topology.switches());
    if hosts.saturating_mul(switches) > ROUTES {
        return Err(Mistake::new(
            "topology",
            format!(
                "{hosts} hosts and {switches} switches have too many routes; use at most {ROUTES}, hosts times switches"
            ),
        ));
    }
    Ok(shape)
}

/// Refuses keys that have no effect.
fn refuse_unused(text: &Text) -> Result<(), Mistake> {
    let is_graph = text.topology == TopologyKind::Graph;
    let is_file = text.links.is_some();
    for (key, is_unused, why) in [
        (
            "spines",
            text.spines.is_some() && text.topology != TopologyKind::LeafSpine,
            "only a leaf-spine has spines; remove it",
        ),
        (
            "link",
            !is_graph && !text.link.is_empty(),
            "only a graph has links of its own; use topology = \"graph\"",
        ),
        ("links", !is_graph && is_file, "only a graph has links of its own; use topology = \"graph\""),
        (
            "links",
            !text.link.is_empty() && is_file,
            "the scenario lists links, too; use one of links and [[link]]",
        ),
        (
            "fabric_rate",
            is_graph && text.fabric_rate.is_some(),
            "each link of a graph may have a rate; remove it",
        ),
        ("hosts", is_file && text.hosts.is_some(), "the file of links has the number; remove it"),
        ("switches", is_file && text.switches.is_some(), "the file of links has the number; remove it"),
        ("rate", is_file && text.rate.is_some(), "the file of links has the rates; remove it"),
        ("delay", is_file && text.delay.is_some(), "the file of links has the delays; remove it"),
    ] {
        if is_unused {
            return Err(Mistake::new(key, why));
        }
    }
    Ok(())
}

fn with_name(text: &Text) -> Result<Shape, Mistake> {
    let (line, delay) = (needed_rate(text)?, needed_delay(text)?);
    let fabric = match &text.fabric_rate {
        Some(rate) => link_rate(rate).map_err(|error| Mistake::new("fabric_rate", error))?,
        None => line,
    };
    let topology = named(text, line, fabric, delay)?;
    Ok(Shape { topology, line, fabric, first_host: text.first_host.unwrap_or(1) })
}

fn graph(text: &Text, folder: &Path) -> Result<Shape, Mistake> {
    let Graph { hosts, switches, links, first, numbers } = match &text.links {
        Some(file) => {
            let path = folder.join(file);
            let content = input::text(&path).map_err(|error| format!("{}: {error}", path.display()));
            let graph = content.and_then(|content| {
                file_graph(&content).map_err(|(line, why)| format!("{}: line {line}: {why}", path.display()))
            });
            graph.map_err(|why| Mistake::new("links", why))?
        }
        None => listed(text, text.first_host.unwrap_or(1))?,
    };
    let first_host = text.first_host.unwrap_or(first);
    let line = links.iter().find(|link| link.ends.contains(&0)).map(|link| link.rate);
    let fabric =
        links.iter().filter(|link| link.ends.iter().all(|&node| node >= hosts)).map(|link| link.rate);
    let line = line.unwrap_or_default();
    let fabric = fabric.min().unwrap_or(line);
    let topology = Topology::graph(hosts, switches, links)
        .map_err(|error| spelled(error, hosts, first_host, numbers.as_deref()))?;
    Ok(Shape { topology, line, fabric, first_host })
}

fn needed_rate(text: &Text) -> Result<Rate, Mistake> {
    let rate = text.rate.as_deref().ok_or_else(|| Mistake::new("rate", "missing; add rate = \"100G\""))?;
    link_rate(rate).map_err(|error| Mistake::new("rate", error))
}

fn needed_delay(text: &Text) -> Result<Duration, Mistake> {
    let delay = text.delay.as_deref().ok_or_else(|| Mistake::new("delay", "missing; add delay = \"1us\""))?;
    parse_time(delay).map_err(|error| Mistake::new("delay", error))
}

fn named(text: &Text, rate: Rate, fabric: Rate, delay: Duration) -> Result<Topology, Mistake> {
    let hosts = || needs("hosts", text.hosts, 4096);
    let switches = || needs("switches", text.switches, 256);
    Ok(match text.topology {
        TopologyKind::Star => Topology::star(hosts()?.max(2), rate, delay),
        TopologyKind::Dumbbell => Topology::dumbbell(hosts()?, hosts()?, rate, fabric, delay),
        TopologyKind::ParkingLot => Topology::parking_lot(switches()?, hosts()?, rate, delay),
        TopologyKind::LeafSpine => {
            let (leaves, spines) = (switches()?, needs("spines", text.spines, 256)?);
            Topology::leaf_spine(leaves, spines, hosts()?, rate, fabric, delay)
        }
        TopologyKind::FatTree => Topology::fat_tree(rate, fabric, delay),
        TopologyKind::Graph => return Err(Mistake::new("link", "a graph needs links; add some")),
    })
}

fn needs(key: &'static str, value: Option<usize>, limit: usize) -> Result<usize, Mistake> {
    match value {
        Some(value) if (1..=limit).contains(&value) => Ok(value),
        Some(value) => Err(Mistake::new(key, format!("{value}: out of range; use 1 to {limit}"))),
        None => Err(Mistake::new(key, format!("the topology needs {key}; add {key} = 8"))),
    }
}

/// The parts of a graph. `first` is the number of its first host, and `numbers` has the numbers of nodes in a file.
#[derive(Debug)]
struct Graph {
    hosts: usize,
    switches: usize,
    links: Vec<Link>,
    first: u32,
    numbers: Option<Vec<usize>>,
}

/// Returns the graph of `[[link]]`.
fn listed(text: &Text, first: u32) -> Result<Graph, Mistake> {
    let hosts = needs("hosts", text.hosts, NODES)?;
    let switches = needs("switches", text.switches, NODES)?;
    let names = NodeNames::new(first, hosts, switches);
    // Defaults of links. An invalid one is refused only if a link uses it.
    let common_rate = text.rate.as_deref().map(link_rate);
    let common_delay = text.delay.as_deref().map(parse_time);
    let link = |(place, link): (usize, &LinkText)| {
        let wrong = |why: String| Mistake::in_entry("link", place, why);
        let rate = match (&link.rate, &common_rate) {
            (Some(rate), _) => link_rate(rate).map_err(wrong)?,
            (None, Some(rate)) => rate.clone().map_err(|why| Mistake::new("rate", why))?,
            (None, None) => {
                return Err(wrong("no rate; add rate = \"100G\" to it or to the scenario".into()));
            }
        };
        let delay = match (&link.delay, &common_delay) {
            (Some(delay), _) => parse_time(delay).map_err(wrong)?,
            (None, Some(delay)) => delay.clone().map_err(|why| Mistake::new("delay", why))?,
            (None, None) => {
                return Err(wrong("no delay; add delay = \"1us\" to it or to the scenario".into()));
            }
        };
        let ends = names.pair(&link.ends).map_err(wrong)?;
        let loss = Probability::new(link.loss);
        let loss = loss.ok_or_else(|| wrong(format!("loss {}: out of range; use 0 to 1", link.loss)))?;
        Ok(Link { loss, ..Link::new(ends, rate, delay) })
    };
    let links = text.link.iter().enumerate().map(link).collect::<Result<_, Mistake>>()?;
    Ok(Graph { hosts, switches, links, first, numbers: None })
}

/// Reads a graph in the format of the simulator of HPCC's authors: a line with the numbers of nodes, switches and links, a line with the
/// switches' numbers, then a line per link: two nodes, rate, delay, error rate. The rest of the file is a comment. The other nodes are
/// hosts, with consecutive numbers. On an error, returns the number of the line and the reason.
fn file_graph(text: &str) -> Result<Graph, (usize, String)> {
    let mut lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    let mut lines = lines.by_ref().filter(|(_, line)| !line.is_empty());
    let (at, counts) =
        lines.next().ok_or((1, "no line; the first has the numbers of nodes, switches and links".into()))?;
    let wrong = |line: usize, why: String| (line, why);
    let [nodes, switches, count] = numbers(counts)
        .and_then(|numbers| <[usize; 3]>::try_from(numbers).ok())
        .filter(|[nodes, switches, _]| switches < nodes && *nodes <= NODES)
        .ok_or_else(|| {
            wrong(at, format!("'{counts}': not the numbers of nodes (at most {NODES}), switches and links"))
        })?;
    let (at, listed) = lines.next().ok_or((at + 1, "no line with the switches' numbers".into()))?;
    let is_list = |list: &Vec<usize>| list.len() == switches && list.iter().all(|node| *node < nodes);
    let listed = numbers(listed).filter(is_list).ok_or_else(|| {
        wrong(at, format!("not the numbers of {switches} switches; use numbers from 0 to {}", nodes - 1))
    })?;
    let hosts = nodes - switches;
    let mut names = vec![None; nodes];
    for (place, &switch) in listed.iter().enumerate() {
        if names[switch].replace(hosts + place).is_some() {
            return Err(wrong(at, format!("switch {switch} is listed twice; list each once")));
        }
    }
    let first = names.iter().position(Option::is_none).unwrap_or(0);
    for (place, name) in names.iter_mut().skip(first).take(hosts).enumerate() {
        if name.replace(place).is_some() {
            return Err(wrong(
                at,
                "hosts need consecutive numbers; number switches before or after them".into(),
            ));
        }
    }
    let mut links = Vec::new();
    for (at, line) in lines {
        if links.len() == count {
            break;
        }
        links.push(link(line, &names).map_err(|why| wrong(at, why))?);
    }
    if links.len() < count {
        return Err(wrong(1, format!("{count} links promised, {} found; correct the number", links.len())));
    }
    let numbers = (first..first + hosts).chain(listed).collect();
    Ok(Graph { hosts, switches, links, first: first as u32, numbers: Some(numbers) })
}

fn numbers(line: &str) -> Option<Vec<usize>> {
    line.split_whitespace().map(|word| word.parse().ok()).collect()
}

/// Reads a line of a graph's file. `names` maps each number to a node.
fn link(line: &str, names: &[Option<usize>]) -> Result<Link, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [from, to, rate, delay, errors] = words[..] else {
        return Err(format!("'{line}': not two nodes, rate, delay and error rate: 0 16 100Gbps 1us 0"));
    };
    let node = |word: &str| {
        let name = word.parse().ok().and_then(|number: usize| names.get(number).copied().flatten());
        name.ok_or_else(|| format!("node {word}: use a number from 0 to {}", names.len() - 1))
    };
    let loss = errors.parse().ok().and_then(Probability::new);
    let loss = loss.ok_or_else(|| format!("error rate {errors}: not a share of packets; use 0 to 1"))?;
    let rate = link_rate(rate.strip_suffix("bps").unwrap_or(rate))?;
    Ok(Link { loss, ..Link::new([node(from)?, node(to)?], rate, parse_time(delay)?) })
}

/// Returns the error with the nodes' names in the scenario, or with their `numbers` in the file.
fn spelled(error: GraphError, hosts: usize, first: u32, numbers: Option<&[usize]>) -> Mistake {
    let name = |node: usize| match (numbers.and_then(|numbers| numbers.get(node)), node.checked_sub(hosts)) {
        (Some(number), _) => format!("node {number}"),
        (None, Some(switch)) => format!("s{}", switch + 1),
        (None, None) => format!("h{}", node + first as usize),
    };
    let is_file = numbers.is_some();
    let key = if is_file { "links" } else { "link" };
    match error {
        GraphError::NoSwitch { link } => {
            let why = "between two hosts, or from a node to itself; connect it to a switch";
            if is_file {
                Mistake::new(key, format!("link {}: {why}", link + 1))
            } else {
                Mistake::in_entry(key, link, why)
            }
        }
        GraphError::HostLinks { host, links } => {
            Mistake::new(key, format!("{} has {links} links; give it one, to a switch", name(host)))
        }
        GraphError::Separate { node } => {
            Mistake::new(key, format!("no path leads from {} to {}; connect them", name(0), name(node)))
        }
        GraphError::End { .. } | GraphError::NoHost => Mistake::new(key, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "5 2 4\n0 4\n1 0 100Gbps 1000ns 0.0\n2 0 100Gbps 1us 0\n3 4 100Gbps 0.001ms 0\n\n0 4 40Gbps 5us 0\n";

    #[test]
    fn a_file_of_the_authors_is_a_graph() {
        let graph = file_graph(FILE).unwrap();
        assert_eq!((graph.hosts, graph.switches, graph.first, graph.links.len()), (3, 2, 1, 4));
        let last = Link::new([3, 4], Rate::from_gbps(40), Duration::from_micros(5));
        assert_eq!((graph.links[0].ends, graph.links[3]), ([0, 3], last));
        let lossy = file_graph(&FILE.replacen("1000ns 0.0", "1000ns 0.1", 1)).unwrap();
        assert_eq!(Some(lossy.links[0].loss), Probability::new(0.1));
        assert!(graph.links[..3].iter().all(|link| link.delay == Duration::from_micros(1)));
        assert_eq!(graph.numbers.as_deref(), Some(&[1, 2, 3, 0, 4][..]));
        assert!(file_graph(&format!("{FILE}First line: numbers of nodes, switches, links\n")).is_ok());
    }

    #[test]
    fn a_wrong_line_of_a_file_is_named() {
        for (from, to, part) in [
            ("5 2 4", "5 2", "1: '5 2': not the numbers of nodes"),
            ("5 2 4", "5 5 4", "1: '5 5 4'"),
            ("5 2 4", "500000 2 4", "at most 200000"),
            ("5 2 4", "5 2 5", "1: 5 links promised, 4 found"),
            ("0 4\n", "0 9\n", "2: not the numbers of 2 switches; use numbers from 0 to 4"),
            ("0 4\n", "0 2\n", "2: hosts need consecutive numbers"),
            ("0 4\n", "4 4\n", "2: switch 4 is listed twice; list each once"),
            ("1 0 100Gbps 1000ns 0.0", "1 0 100Gbps 1000ns", "3: '1 0 100Gbps 1000ns': not two nodes"),
            ("1 0 100Gbps", "1 7 100Gbps", "3: node 7: use a number from 0 to 4"),
            ("1000ns 0.0", "1000ns 1.1", "3: error rate 1.1: not a share of packets; use 0 to 1"),
            ("100Gbps", "fast", "3: "),
            ("1000ns", "soon", "3: "),
        ] {
            let (line, why) = file_graph(&FILE.replacen(from, to, 1)).unwrap_err();
            assert!(format!("{line}: {why}").contains(part), "{from} > {to}: {line}: {why}");
        }
        assert_eq!(file_graph("").unwrap_err().0, 1);
    }
}

//! The changes of links of a scenario: `[[change]]`.

use super::flows::parse_time;
use super::mistake::Mistake;
use super::shape::{NodeNames, link_rate};
use fabric::sim::{Change, LinkChange, Topology};
use serde::Deserialize;

/// An entry of `[[change]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeText {
    time: String,
    /// The ends of the links that change, in either order.
    link: Option<[String; 2]>,
    /// All links of this node change, in place of those of `link`.
    node: Option<String>,
    rate: Option<String>,
    #[serde(default)]
    down: bool,
    #[serde(default)]
    up: bool,
}

pub(super) fn changes(
    text: &[ChangeText],
    topology: &Topology,
    names: NodeNames,
) -> Result<Vec<Change>, Mistake> {
    let change = |(place, change): (usize, &ChangeText)| {
        let (at, links, what) = (parse_time(&change.time), links(change, topology, names), what(change));
        let parts = at.and_then(|at| Ok(Change { at, links: links?, what: what? }));
        parts.map_err(|why| Mistake::in_entry("change", place, why))
    };
    text.iter().enumerate().map(change).collect()
}

fn links(change: &ChangeText, topology: &Topology, names: NodeNames) -> Result<Vec<usize>, String> {
    let those = |of: &dyn Fn([usize; 2]) -> bool| -> Vec<usize> {
        let links = topology.links().iter().enumerate();
        links.filter(|(_, link)| of(link.ends)).map(|(index, _)| index).collect()
    };
    match (&change.link, &change.node) {
        (Some(ends), None) => {
            let [a, b] = names.pair(ends)?;
            let links = those(&|ends| ends == [a, b] || ends == [b, a]);
            let [from, to] = ends;
            match links.is_empty() {
                true => Err(format!("link {from} to {to}: no such link; use two nodes that a link connects")),
                false => Ok(links),
            }
        }
        (None, Some(node)) => {
            let node = names.node(node)?;
            Ok(those(&|ends| ends.contains(&node)))
        }
        (Some(_), Some(_)) | (None, None) => {
            Err("a change needs either link or node; give one of them: link = [\"h1\", \"s1\"]".into())
        }
    }
}

fn what(change: &ChangeText) -> Result<LinkChange, String> {
    match (&change.rate, change.down, change.up) {
        (Some(rate), false, false) => link_rate(rate).map(LinkChange::Rate),
        (None, true, false) => Ok(LinkChange::Down),
        (None, false, true) => Ok(LinkChange::Up),
        _ => {
            Err("a change needs one of rate, down and up; give one: rate = \"10G\", down = true or up = true"
                .into())
        }
    }
}

//! The script of faults of a scenario: the file that `faults` names, in the format of `ferroce switch --faults`.

use super::mistake::Mistake;
use super::shape::Shape;
use crate::input;
use crate::switch::faults::read_with;
use fabric::PortId;
use fabric::sim::ScriptedFault;
use std::cell::RefCell;
use std::path::Path;

/// Reads the script `file`. A port has the name `s1_h3`: its node, and the node at the other end of its link.
pub(super) fn faults(file: &Path, shape: &Shape) -> Result<Vec<ScriptedFault>, Mistake> {
    let wrong = |why: String| Mistake::new("faults", format!("{}: {why}", file.display()));
    let text = input::text(file).map_err(|error| wrong(error.to_string()))?;
    // The ports of the script, in the order of their ids.
    let ports = RefCell::new(Vec::new());
    let port = |name: &str| {
        let nodes = nodes(name, shape)?;
        let mut ports = ports.borrow_mut();
        let id = ports.iter().position(|port| *port == nodes).unwrap_or(ports.len());
        if id == ports.len() {
            ports.push(nodes);
        }
        u16::try_from(id).map(PortId).map_err(|_| "more than 65536 ports; use fewer".to_owned())
    };
    let faults = read_with(&text, &port).map_err(|(line, why)| wrong(format!("line {line}: {why}")))?;
    let ports = ports.borrow();
    let fault = |(place, fault): (usize, crate::switch::faults::Fault)| {
        let mut rule = fault.rule;
        if rule.name.is_empty() {
            rule.name = format!("fault-{}", place + 1);
        }
        let port = rule.port.and_then(|PortId(id)| ports.get(usize::from(id)).copied());
        ScriptedFault { port, rule }
    };
    Ok(faults.into_iter().enumerate().map(fault).collect())
}

fn nodes(name: &str, shape: &Shape) -> Result<[usize; 2], String> {
    let not = |why: &str| format!("port = {name:?}: {why}; write the two ends of a link, such as s1_h1");
    let (from, to) = name.split_once('_').ok_or_else(|| not("not two nodes"))?;
    let nodes = shape.names().pair(&[from.to_owned(), to.to_owned()]).map_err(|why| not(&why))?;
    let link = shape.topology.link_between(nodes[0], nodes[1]);
    link.map(|_| nodes).ok_or_else(|| not("no link connects them"))
}

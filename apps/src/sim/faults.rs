//! The script of faults of a scenario: the file that `faults` names, in the format of `ferroce switch --faults`.

use super::mistake::Mistake;
use super::shape::Shape;
use crate::input;
use crate::switch::rules::{Rules, Script};
use fabric::sim::ScriptedFault;
use fabric::{FaultRule, PortId};
use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

/// Reads the script `file`. A port has the name `s1_h3`: its node, and the node at the other end of its link.
pub(super) fn faults(file: &Path, shape: &Shape) -> Result<Vec<ScriptedFault>, Mistake> {
    let wrong = |why: String| Mistake::new("faults", why);
    let name = file.display().to_string();
    let text = input::text(file).map_err(|error| wrong(format!("{name}: {error}")))?;
    // The ports of the script, in the order of their ids.
    let ports = RefCell::new(Vec::new());
    let port = |name: &str| {
        let nodes = shape.port(name).map_err(|why| format!("port = {name:?}: {why}"))?;
        let mut ports = ports.borrow_mut();
        let id = ports.iter().position(|port| *port == nodes).unwrap_or(ports.len());
        if id == ports.len() {
            ports.push(nodes);
        }
        u16::try_from(id).map(PortId).map_err(|_| "more than 65536 ports; use fewer".to_owned())
    };
    let script = Script { file: name, text };
    let rules = Rules::none(&[]).with_ports(&script, Duration::ZERO, &port).map_err(wrong)?;
    let ports = ports.borrow();
    let nodes = |PortId(id)| ports.get(usize::from(id)).copied();
    let fault = |rule: FaultRule| ScriptedFault { port: rule.port.and_then(nodes), rule };
    Ok(rules.for_switch().into_iter().map(fault).collect())
}

//! Describes a packet, with the same fields in text and JSON.

use roce::Qpn;
use roce::wire::{Aeth, Feedback, Header, Operation, Report, Reth, Seal, SendTail, Syndrome};
use serde_json::{Value, json};

/// Name and value of a field.
pub type Field = (&'static str, Value);

/// Returns the name of the operation: "RC SEND Only", "CNP".
pub fn name(header: &Header) -> String {
    let opcode = header.opcode();
    let shape = opcode.shape().map_or("?", |shape| shape.name);
    match opcode.service() {
        Some(service) => format!("{} {shape}", format!("{service:?}").to_uppercase()),
        None => shape.to_owned(),
    }
}

/// Returns the fields of the packet except its opcode.
pub fn fields(header: &Header) -> Vec<Field> {
    let bth = header.bth();
    let mut fields = vec![("qpn", json!(bth.destination.get())), ("psn", json!(bth.psn.get()))];
    if bth.ack_request {
        fields.push(("ack_request", json!(true)));
    }
    if bth.solicited {
        fields.push(("solicited", json!(true)));
    }
    match header {
        Header::Connected { operation, .. } => operation_fields(operation, &mut fields),
        Header::Extended { srq, operation, .. } => {
            fields.push(("srq", json!(srq.get())));
            operation_fields(operation, &mut fields);
        }
        Header::Datagram { queue_key, source, immediate, .. } => {
            fields.push(("source_qpn", json!(source.get())));
            fields.push(("qkey", json!(format!("{queue_key:#x}"))));
            fields.extend(immediate.map(|data| immediate_field(&data)));
        }
        Header::DatagramTelemetryRequest { queue_key, source, .. } => {
            fields.push(("source_qpn", json!(source.get())));
            fields.push(("qkey", json!(format!("{queue_key:#x}"))));
        }
        Header::CongestionNotification { .. } => {}
        Header::TelemetryRequest { int, .. } => {
            fields.push(("path_id", json!(int.path_id())));
            fields.push(("hops", json!(int.hops())));
            fields.push(("room", json!(int.room())));
        }
        Header::TelemetryResponse { feedback, .. }
        | Header::TelemetryNotification { feedback, .. }
        | Header::DirectResponse { feedback, .. } => {
            feedback_fields(feedback, &mut fields);
        }
        Header::TelemetrySetup { setup, seal, .. } => {
            fields.push(("reverse", json!(format!("{:?}", setup.reverse).to_lowercase())));
            fields.push(("reports", json!(format!("{:?}", setup.reports).to_lowercase())));
            fields.push(("base_rtt_ns", json!(setup.base_rtt.as_nanos() as u64)));
            fields.push(("line_rate_bps", json!(setup.line_rate)));
            seal_field(seal.as_ref(), &mut fields);
        }
        Header::SelectiveAcknowledge { msn, ahead, held, .. } => {
            fields.push(("msn", json!(msn)));
            fields.push(("ahead", json!(ahead)));
            fields.push(("held", json!(format!("{held:#b}"))));
        }
        Header::SelectiveOffer { accepts, first_sent, first_received, .. } => {
            fields.push(("accepts", json!(accepts)));
            fields.push(("first_sent", json!(first_sent.get())));
            fields.push(("first_received", json!(first_received.get())));
        }
    }
    fields
}

/// Returns the fields for text, with queue pair numbers in the format of the other tools and the log.
pub fn words(header: &Header) -> Vec<Field> {
    let word = |(name, value): Field| match (name, value.as_u64()) {
        ("qpn" | "source_qpn" | "srq", Some(number)) => (name, json!(Qpn::new(number as u32).to_string())),
        _ => (name, value),
    };
    fields(header).into_iter().map(word).collect()
}

/// Appends the fields of a path report.
pub fn feedback_fields(feedback: &Feedback, fields: &mut Vec<Field>) {
    match feedback.report {
        Report::Busiest { path_id, hops, busiest } => {
            fields.push(("path_id", json!(path_id)));
            fields.push(("hops", json!(hops)));
            if let Some((index, record)) = busiest {
                fields.push(("busiest", json!(index)));
                fields.push(("record", super::record(record)));
            }
        }
        Report::Window(window) => fields.push(("window", json!(window))),
        Report::Ratio { path_id, utilisation, interval } => {
            fields.push(("path_id", json!(path_id)));
            fields.push(("utilisation", json!(f64::from(utilisation) / f64::from(1 << 20))));
            fields.push(("interval_ns", json!(interval)));
        }
        Report::Hop { path_id, hops, index, hop } => {
            fields.push(("path_id", json!(path_id)));
            fields.push(("hops", json!(hops)));
            fields.push(("busiest", json!(index)));
            fields.push(("rate_bps", json!(hop.bandwidth.as_bps())));
            fields.push(("queue", json!(hop.queue)));
        }
        Report::Shared { path_id, hops, index, hop, flows } => {
            fields.push(("path_id", json!(path_id)));
            fields.push(("hops", json!(hops)));
            fields.push(("busiest", json!(index)));
            fields.push(("rate_bps", json!(hop.bandwidth.as_bps())));
            fields.push(("queue", json!(hop.queue)));
            fields.push(("flows", json!(flows.get())));
        }
        Report::All { path_id, records } => {
            fields.push(("path_id", json!(path_id)));
            fields.push(("hops", json!(records.count())));
            fields.push(("records", records.iter().map(super::record).collect()));
        }
        Report::Ready => fields.push(("ready", json!(true))),
    }
    seal_field(feedback.seal.as_ref(), fields);
}

fn seal_field(seal: Option<&Seal>, fields: &mut Vec<Field>) {
    if let Some(seal) = seal {
        fields.push(("seal_counter", json!(seal.counter)));
    }
}

fn immediate_field(data: &[u8; 4]) -> Field {
    ("immediate", json!(format!("{:#010x}", u32::from_be_bytes(*data))))
}

fn reth_fields(reth: &Reth, fields: &mut Vec<Field>) {
    fields.push(("address", json!(format!("{:#x}", reth.address))));
    fields.push(("rkey", json!(format!("{:#x}", reth.rkey.get()))));
    fields.push(("dma_length", json!(reth.length)));
}

fn aeth_fields(aeth: &Aeth, fields: &mut Vec<Field>) {
    let syndrome = match aeth.syndrome {
        Syndrome::Ack { credits } => format!("ACK credits {credits}"),
        Syndrome::RnrNak(timer) => format!("RNR NAK {:?}", timer.duration()),
        Syndrome::Nak(code) => format!("NAK {code:?}"),
    };
    fields.push(("syndrome", json!(syndrome)));
    fields.push(("msn", json!(aeth.msn)));
}

fn tail_field(tail: SendTail) -> Option<Field> {
    match tail {
        SendTail::Plain => None,
        SendTail::Immediate(data) => Some(immediate_field(&data)),
        SendTail::Invalidate(key) => Some(("invalidate", json!(format!("{:#x}", key.get())))),
    }
}

fn operation_fields(operation: &Operation, fields: &mut Vec<Field>) {
    match operation {
        Operation::SendFirst
        | Operation::SendMiddle
        | Operation::WriteMiddle
        | Operation::ReadResponseMiddle => {}
        Operation::SendLast(tail) | Operation::SendOnly(tail) => fields.extend(tail_field(*tail)),
        Operation::WriteFirst(reth) | Operation::ReadRequest(reth) | Operation::AtomicWrite(reth) => {
            reth_fields(reth, fields);
        }
        Operation::Flush(feth, reth) => {
            fields.push(("feth", json!(format!("{:#x}", feth.pack()))));
            reth_fields(reth, fields);
        }
        Operation::WriteLast(immediate) => fields.extend(immediate.map(|data| immediate_field(&data))),
        Operation::WriteOnly(reth, immediate) => {
            reth_fields(reth, fields);
            fields.extend(immediate.map(|data| immediate_field(&data)));
        }
        Operation::ReadResponseFirst(aeth)
        | Operation::ReadResponseLast(aeth)
        | Operation::ReadResponseOnly(aeth)
        | Operation::Acknowledge(aeth) => aeth_fields(aeth, fields),
        Operation::AtomicAcknowledge { aeth, original } => {
            aeth_fields(aeth, fields);
            fields.push(("original", json!(original)));
        }
        Operation::CompareSwap(eth) => {
            fields.push(("address", json!(format!("{:#x}", eth.address))));
            fields.push(("rkey", json!(format!("{:#x}", eth.rkey.get()))));
            fields.push(("compare", json!(eth.operands.compare)));
            fields.push(("swap", json!(eth.operands.swap)));
        }
        Operation::FetchAdd(eth) => {
            fields.push(("address", json!(format!("{:#x}", eth.address))));
            fields.push(("rkey", json!(format!("{:#x}", eth.rkey.get()))));
            fields.push(("add", json!(eth.operands.add)));
        }
    }
}

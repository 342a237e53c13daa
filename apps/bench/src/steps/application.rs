//! The library from the application's view, over a DPDK ring, with both ends in this thread: WRITEs of 64 B.

use super::{Meter, Step};
use crate::instructions::Cost;
use crate::ring::{End, LIST, connected_to, hpcc};
use verbs::{Completion, Mtu, Remote, SendRequest, Sge};

const PLAIN: &str = "turn-receive";
const HANDED: &str = "turn-receive-handed";

pub const STEPS: &[Step] = &[
    Step {
        name: "post_send",
        what: "a request posted, of 32",
        budget: 126,
        run: |meter| run(meter, Part::Post, 1),
    },
    Step {
        name: "turn-send",
        what: "a core's turn that sends, a message of 32",
        budget: 1545,
        run: |meter| run(meter, Part::Send, 1),
    },
    Step {
        name: PLAIN,
        what: "a core's turn that receives, a message of 32",
        budget: 1160,
        run: |meter| run(meter, Part::Receive, 1),
    },
    Step {
        name: HANDED,
        what: "the same, handed to another core: at most 155 more",
        budget: 1310,
        run: |meter| run(meter, Part::Receive, 2),
    },
    Step {
        name: "turn-complete",
        what: "a core's turn that receives the ACK of 32",
        budget: 3990,
        run: |meter| run(meter, Part::Complete, 1),
    },
    Step {
        name: "poll_cq",
        what: "a completion polled",
        budget: 155,
        run: |meter| run(meter, Part::Poll, 1),
    },
    Step {
        name: "poll_cq-empty",
        what: "a poll that finds nothing",
        budget: 330,
        run: |meter| run(meter, Part::Empty, 1),
    },
];

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Post,
    Send,
    Receive,
    Complete,
    Poll,
    Empty,
}

/// Creates each request when it is posted, as programs do.
fn post(a: &mut End, from: Sge, to: Remote) {
    let list = (1..=LIST).map(|n| SendRequest { signalled: n == LIST, ..SendRequest::write(0, from, to) });
    a.qp.post_send_list(list).expect("room");
}

fn turn(end: &End) {
    let _ = end.device.progress();
}

/// Returns the limit of a step, given the costs of earlier steps: passing a frame to another core costs at most 155 instructions. The goal
/// is 150, but processors differ slightly.
pub fn budget(step: &Step, before: &[Cost]) -> Option<u64> {
    let plain = before.iter().find(|cost| step.name == HANDED && cost.name == PLAIN)?;
    Some(step.budget.min(plain.instructions + 155))
}

fn run(meter: &mut Meter, part: Part, cores: u8) {
    let (mut a, b) = connected_to(Mtu::M4096, Some(hpcc()), cores).expect("rings need nothing");
    let (from, to) = (a.region.sge(0, 64).expect("it is longer"), b.region.remote().at(0));
    let mut into =
        [Completion::new(0, verbs::CompletionStatus::Success, verbs::CompletionOpcode::Write, a.qp.qpn());
            16];
    for round in 0..=meter.rounds {
        let mut count = |of: Part, units: usize, work: &mut dyn FnMut()| {
            if of == part && round > 0 { meter.part(units, work) } else { work() }
        };
        count(Part::Post, LIST, &mut || post(&mut a, from, to));
        count(Part::Send, LIST, &mut || turn(&a));
        // The turn that receives also sends the ACK.
        count(Part::Receive, LIST, &mut || (0..cores).for_each(|_| turn(&b)));
        count(Part::Complete, 1, &mut || turn(&a));
        let mut polled = 0;
        count(Part::Poll, 1, &mut || polled = a.cq.poll(&mut into).expect("a core that runs"));
        assert_eq!(polled, 1, "one completion for 32");
        count(Part::Empty, 1, &mut || polled += a.cq.poll(&mut into).expect("a core that runs"));
        assert_eq!(polled, 1);
        b.device.progress();
    }
}

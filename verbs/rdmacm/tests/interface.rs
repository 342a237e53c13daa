//! What `librdmacm.so.1` exports beside Debian's own, and its structures beside the C compiler's.

use ferroce_rdmacm::abi::*;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

/// Each `name@version` of the version script.
fn ours() -> BTreeSet<String> {
    let (mut version, mut symbols) = (None, BTreeSet::new());
    for line in include_str!("../librdmacm.map").lines().map(str::trim) {
        if let Some(name) = line.strip_suffix(" {") {
            version = Some(name);
        } else if let (Some(version), Some(name)) = (version, line.strip_suffix(';'))
            && !name.contains([':', '}', ' '])
        {
            symbols.insert(format!("{name}@@{version}"));
        }
    }
    symbols
}

#[test]
fn every_symbol_of_debian_is_there() {
    let debian: BTreeSet<String> = include_str!("debian.symbols").lines().map(str::to_owned).collect();
    assert_eq!(ours(), debian);
    assert_eq!(debian.len(), 68);
}

macro_rules! check {
    ($program:ident, $ours:ident, $($structure:ident { $($field:ident $(. $inner:ident)*),* })*) => { $(
        writeln!($program, "  printf(\"%zu\\n\", sizeof(struct {}));", stringify!($structure)).unwrap();
        $ours.push((stringify!($structure), size_of::<$structure>()));
        $(
            let field = stringify!($field $(. $inner)*);
            writeln!($program, "  printf(\"%zu\\n\", offsetof(struct {}, {field}));", stringify!($structure)).unwrap();
            $ours.push((field, offset_of!($structure, $field $(. $inner)*)));
        )*
    )* };
}

#[test]
fn structures_lie_as_the_headers_have_them() {
    let (mut program, mut ours) = (String::new(), Vec::new());
    check!(program, ours,
        rdma_cm_id {
            verbs, channel, context, qp, route, route.path_rec, route.num_paths, ps, port_num, event, send_cq_channel,
            send_cq, recv_cq_channel, recv_cq, srq, pd, qp_type
        }
        rdma_cm_event { id, listen_id, event, status, param }
        rdma_event_channel { fd }
        rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
            rnr_retry_count, srq, qp_num
        }
        rdma_addrinfo {
            ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr, ai_dst_addr, ai_route,
            ai_connect, ai_next
        }
        ibv_sa_path_rec { dgid, sgid, flow_label, hop_limit, pkey, mtu, rate }
    );
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (folder.join("rdma_layouts.c"), folder.join("rdma_layouts"));
    let whole = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <rdma/rdma_cma.h>\nint main(void) {{\n{program}}}\n"
    );
    std::fs::write(&source, whole).unwrap();
    let built = Command::new("cc").arg(&source).arg("-o").arg(&binary).output();
    let built = built.expect("a C compiler: apt-get install gcc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let said = String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap();
    let theirs: Vec<usize> = said.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), ours.len());
    for ((name, ours), theirs) in ours.into_iter().zip(theirs) {
        assert_eq!(ours, theirs, "{name}");
    }
}

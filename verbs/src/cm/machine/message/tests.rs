//! Messages compared with those of Linux, from a capture of `rping`.

use super::*;

fn captured() -> Vec<Mad> {
    mads(include_bytes!("../../../../../roce/tests/captures/rdmacm_rping.pcap"))
}

pub(crate) fn mads(file: &[u8]) -> Vec<Mad> {
    let (mut rest, mut mads) = (&file[24..], Vec::new());
    while rest.len() > 16 {
        let length = u32::from_le_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
        let frame = &rest[16..16 + length];
        // UD SEND Only: Ethernet 14, IPv4 20, UDP 8, BTH 12, DETH 8.
        if frame[42] == 0x64 {
            mads.push(frame[62..62 + 256].try_into().unwrap());
        }
        rest = &rest[16 + length..];
    }
    mads
}

/// IBA 12.6.2, 12.6.5, 12.7.31, 13.4.3, A11.4.3.
#[test]
fn a_request_of_linux_is_read_and_written_again() {
    let theirs = captured()[0];
    assert_eq!(kind(&theirs), Some(Kind::Request));
    let request = ConnectRequest::read(&theirs).unwrap();
    assert_eq!(request.service, 0x0106_1c06);
    assert_eq!((request.qp.qpn, request.qp.psn), (0x40, 0x2c_5655));
    assert_eq!((request.qp.responder_resources, request.qp.initiator_depth), (1, 1));
    assert_eq!((request.mtu, request.retry_count, request.qp.rnr_retry, request.ack_timeout), (3, 7, 7, 19));
    assert_eq!(request.traffic_class, 0);
    assert_eq!(request.source, "10.77.0.2:60408".parse().unwrap());
    assert_eq!(request.destination, "10.77.0.1:7174".parse().unwrap());
    let mut ours = message(Kind::Request, transaction(&theirs), ids(&theirs).0, 0);
    request.write(&mut ours);
    // Flow label and packet rate of the path are values that Linux chooses.
    ours[BODY + 88..BODY + 92].copy_from_slice(&theirs[BODY + 88..BODY + 92]);
    assert_eq!(ours, theirs);
}

/// IBA 12.6.5: the traffic class is that of the primary path, in byte 92.
#[test]
fn a_request_names_traffic_class_and_path_mtu() {
    let mut mad = captured()[0];
    let plain = ConnectRequest::read(&mad).unwrap();
    mad[BODY + 92] = 0x68;
    put_mtu(&mut mad, 2);
    let other = ConnectRequest { traffic_class: 0x68, mtu: 2, ..plain };
    assert_eq!(ConnectRequest::read(&mad), Some(other));
    let mut ours = captured()[0];
    other.write(&mut ours);
    assert_eq!(ConnectRequest::read(&ours), Some(other));
}

/// IBA 12.6.8, 12.7.31.
#[test]
fn a_reply_of_linux_is_read_and_written_again() {
    let theirs = captured()[1];
    assert_eq!(kind(&theirs), Some(Kind::Reply));
    let qp = read_reply(&theirs, false);
    assert_eq!((qp.qpn, qp.psn, qp.responder_resources, qp.rnr_retry), (0x4c, 0xa9_19ee, 1, 7));
    let (local, remote) = ids(&theirs);
    let mut ours = message(Kind::Reply, transaction(&theirs), local, remote);
    write_reply(&mut ours, &qp, get(&theirs, 28));
    assert_eq!(ours, theirs);
}

/// IBA A14.6: the request contains the extended transport type; the reply has the target's number in the field of the end-to-end context.
#[test]
fn xrc_has_its_own_transport_type() {
    let qp = QpParameters { qpn: 0x12_3456, psn: 5, xrc: true, srq: true, ..Default::default() };
    let mut request = ConnectRequest::read(&captured()[0]).unwrap();
    request.qp = qp;
    let mut mad = message(Kind::Request, 1, 2, 0);
    request.write(&mut mad);
    assert_eq!((mad[BODY + 43] >> 1 & 3, mad[BODY + 51] & 7), (3, 1));
    assert_eq!(ConnectRequest::read(&mad), Some(request));
    mad[BODY + 51] ^= 3;
    assert_eq!(ConnectRequest::read(&mad), None, "an unknown transport service");
    let mut reply = message(Kind::Reply, 1, 2, 3);
    write_reply(&mut reply, &qp, [0; 8]);
    assert_eq!(reply[BODY + 12..BODY + 20], [0, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
    assert_eq!(read_reply(&reply, true), qp);
}

/// Linux messages contain no offer. A message with the offer differs from them only in the Q_Key.
#[test]
fn selective_repeat_is_offered_in_the_q_key_that_linux_ignores() {
    let linux = captured();
    let mut request = ConnectRequest::read(&linux[0]).unwrap();
    assert!(!request.qp.selective_repeat && !read_reply(&linux[1], false).selective_repeat);
    request.qp.selective_repeat = true;
    let mut mad = linux[0];
    request.write(&mut mad);
    assert_eq!(ConnectRequest::read(&mad), Some(request));
    put(&mut mad, REQUEST_OFFER, [0; 4]);
    assert_eq!(ConnectRequest::read(&mad).map(|read| read.qp.selective_repeat), Some(false));
    let mut reply = linux[1];
    write_reply(&mut reply, &request.qp, [0; 8]);
    assert_eq!(read_reply(&reply, false), request.qp);
}

/// IBA 12.6, 12.6.10.
#[test]
fn the_other_messages_of_linux_are_written_alike() {
    let all = captured();
    let (client, server) = ids(&all[2]);
    let transaction = transaction(&all[2]);
    assert_eq!(message(Kind::ReadyToUse, transaction, client, server), all[2]);
    assert_eq!(disconnect_request(transaction, client, server, 0x4c), all[3]);
    assert_eq!(message(Kind::DisconnectReply, transaction, server, client), all[4]);
}

#[test]
fn private_data_that_is_too_long_is_refused() {
    let mut mad = message(Kind::Request, 1, 2, 0);
    assert!(put_private_data(&mut mad, Kind::Request, &[7; 56]));
    assert_eq!(private_data(&mad, Kind::Request), [7; 56]);
    assert!(!put_private_data(&mut mad, Kind::Request, &[7; 57]));
}

#[test]
fn any_bytes_are_read_or_refused() {
    for seed in 0..=255_u8 {
        let mad: Mad = std::array::from_fn(|n| (n as u8).wrapping_mul(31) ^ seed);
        let _ = (kind(&mad), ConnectRequest::read(&mad), read_reply(&mad, true), read_reject(&mad));
    }
}

/// IBA 12.6.7, 12.6.7.2: the rejected message, the reason, and with a timeout the sender's GUID.
#[test]
fn a_rejection_contains_its_reason() {
    let guid = [1, 2, 3, 4, 5, 6, 7, 8];
    for (reason, code, words) in [
        (Reason::Timeout, 4, [0x80, 0x10]),
        (Reason::InvalidService, 8, [0; 2]),
        (Reason::InvalidMtu, 26, [0; 2]),
        (Reason::Consumer, 28, [0; 2]),
    ] {
        let mad = reject(9, 2, 3, reason, guid);
        assert_eq!((kind(&mad), ids(&mad), read_reject(&mad)), (Some(Kind::Reject), (2, 3), code));
        assert_eq!(mad[BODY + 8..BODY + 10], words);
        assert_eq!(mad[BODY + 12..BODY + 20] == guid, reason == Reason::Timeout);
    }
}

/// Linux accepts no other version of the address header (`CMA_VERSION`). RoCE has one partition (IBA 10.9.2), of which this queue pair is a
/// full member.
#[test]
fn a_request_of_another_version_or_partition_is_ignored() {
    let theirs = captured()[0];
    let with = |at: usize, bytes: [u8; 2]| {
        let mut mad = theirs;
        put(&mut mad, at, bytes);
        ConnectRequest::read(&mad).is_some()
    };
    let family = theirs[BODY + 141];
    for (version, accepted) in [(0, true), (1, false), (7, false), (255, false)] {
        assert_eq!(with(140, [version, family]), accepted, "version {version}");
    }
    for (key, accepted) in [(0xffff, true), (0x7fff, true), (0, false), (0x8000, false), (0xfffe, false)] {
        assert_eq!(with(48, u16::to_be_bytes(key)), accepted, "P_Key {key:#x}");
    }
}

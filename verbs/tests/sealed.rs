//! Every queue pair of a device with a feedback key uses that key, with any choice of congestion control. A single test, because it changes
//! the process's environment.

mod common;

use common::*;
use ferroce_verbs::congestion::{Congestion, DEFAULT_CONGESTION, FeedbackKey, KeySource, parse_congestion};
use ferroce_verbs::state::{Modify, QpSettings, RtsSettings};
use ferroce_verbs::{Capabilities, ConnectOptions, Device, DeviceConfig, Service};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const RULE: &str = "hpcc,line_rate=1G,base_rtt=20us";
const TABLE: &str = "[[congestion]]\ncc = 'hpcc'\nline_rate = '1G'\nbase_rtt = '20us'\n";
const IN_FILE: FeedbackKey = FeedbackKey([0x11; 16]);
const IN_VARIABLE: FeedbackKey = FeedbackKey([0x22; 16]);
const IN_PROGRAM: FeedbackKey = FeedbackKey([0x33; 16]);

fn set(variable: &str, value: Option<&str>) {
    // SAFETY: this is the only test of the process, and no other thread reads the environment yet.
    unsafe {
        match value {
            Some(value) => std::env::set_var(variable, value),
            None => std::env::remove_var(variable),
        }
    }
}

/// Returns the settings from a file with this text, FERROCE_CC and FERROCE_FEEDBACK_KEY.
fn settings(folder: &Path, text: &str, cc: Option<&str>, key: Option<&str>) -> DeviceConfig {
    let file = folder.join("settings.toml");
    fs::write(&file, text).unwrap();
    set("FERROCE_CONFIG", file.to_str());
    set("FERROCE_CC", cc);
    set("FERROCE_FEEDBACK_KEY", key);
    DeviceConfig::from_env().unwrap()
}

/// Returns the feedback keys of queue pairs whose congestion control was chosen in each possible way: by default, by `connect`, by separate
/// transitions as with `ibv_modify_qp`, with and without a choice, and for datagrams.
fn keys([a, b]: &[Device; 2], chosen: Congestion) -> Vec<(&'static str, Option<FeedbackKey>)> {
    let make = |device: &Device| side(device, 4096, Capabilities::default(), 16);
    let key = |settings: &QpSettings| settings.congestion().unwrap().feedback_key;
    let key_before = |settings: &QpSettings| settings.receive.unwrap().feedback_key;
    let mut found = Vec::new();
    for (way, congestion) in [("connect", None), ("connect with a choice", Some(chosen))] {
        let (mut a, mut b) = (make(a), make(b));
        connect(&mut a, &mut b, &ConnectOptions::new().congestion(congestion));
        found.extend([(way, key(a.qp.settings())), (way, key(b.qp.settings()))]);
        found.push(("in RTR", key_before(a.qp.settings())));
        let (receive, send) = (a.qp.settings().receive.unwrap(), a.qp.settings().send.unwrap());
        let mut stepwise = make(&a.device);
        stepwise.qp.modify(Modify::ReadyToReceive(receive)).unwrap();
        let congestion = congestion.unwrap_or(DEFAULT_CONGESTION);
        stepwise.qp.modify(Modify::ReadyToSend(RtsSettings { congestion, ..send })).unwrap();
        found.push(("steps", key(stepwise.qp.settings())));
    }
    for congestion in [None, Some(chosen)] {
        let side = make(a);
        let builder = side.pd.queue_pair(&side.send_cq, &side.recv_cq);
        let mut datagrams = builder.service(Service::Ud).build().unwrap();
        datagrams.open(congestion).unwrap();
        found.push(("datagrams", key(datagrams.settings())));
    }
    found
}

#[test]
fn a_queue_pair_has_its_devices_key_with_any_congestion_control() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, "11".repeat(16)).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let of_file = format!("feedback_key_file = '{}'\n", file.display());
    let of_device = format!("[[device]]\nport = 'null'\n{of_file}");
    let variable = "22".repeat(16);
    let chosen = parse_congestion(RULE).unwrap();
    let by_file = || Some(KeySource::File(file.clone()));
    for (rule, table, cc) in [
        ("no rule", "", None),
        ("a table", TABLE, None),
        ("FERROCE_CC", "", Some(RULE)),
        ("both", TABLE, Some(RULE)),
    ] {
        for (text, in_variable, in_program, key, source) in [
            ("", None, None, None, None),
            (&of_file[..], None, None, Some(IN_FILE), by_file()),
            (&of_device, None, None, Some(IN_FILE), by_file()),
            ("", Some(&variable[..]), None, Some(IN_VARIABLE), Some(KeySource::Environment)),
            // The key in the file overrides the variable.
            (&of_file, Some(&variable), None, Some(IN_FILE), by_file()),
            (&of_device, Some(&variable), None, Some(IN_FILE), by_file()),
            (&of_file, None, Some(IN_PROGRAM), Some(IN_PROGRAM), Some(KeySource::Program)),
        ] {
            let mut config = settings(folder.path(), &format!("{text}{table}"), cc, in_variable);
            if let Some(key) = in_program {
                config = config.feedback_key(key);
            }
            assert_eq!(config.key_source(), source.as_ref(), "{rule}: {text:?}, {in_variable:?}");
            let devices = devices_with(config);
            assert_eq!(devices[0].authenticates_feedback(), key.is_some());
            for (way, found) in keys(&devices, chosen) {
                assert_eq!(found, key, "{way}, {rule}: {text:?}, {in_variable:?}");
            }
            // A key that the program chose for one queue pair is kept.
            let own = Congestion { feedback_key: Some(IN_PROGRAM), ..chosen };
            assert_eq!(devices[0].congestion_in_use(own).feedback_key, Some(IN_PROGRAM));
            let [mut a, mut b] =
                [0, 1].map(|place: usize| side(&devices[place], 4096, Capabilities::default(), 16));
            connect(&mut a, &mut b, &ConnectOptions::new().congestion(Some(own)));
            assert_eq!(a.qp.settings().receive.unwrap().feedback_key, Some(IN_PROGRAM), "in RTR");
        }
    }
    let relative = settings(folder.path(), "feedback_key_file = 'key'", None, None);
    assert_eq!(relative.key_source(), by_file().as_ref(), "a relative path is relative to the file");
    set("FERROCE_CONFIG", None);
    set("FERROCE_FEEDBACK_KEY", Some(&variable));
    assert_eq!(
        DeviceConfig::from_env().unwrap().key_source(),
        Some(&KeySource::Environment),
        "without a file"
    );
    set("FERROCE_FEEDBACK_KEY", Some("22"));
    let wrong = DeviceConfig::from_env().unwrap_err().to_string();
    assert!(wrong.contains("FERROCE_FEEDBACK_KEY: not 32 hexadecimal digits"), "{wrong}");
}

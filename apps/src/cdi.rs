//! `ferroce cdi`: writes a specification for the Container Device Interface (CDI), with which container engines add Ferroce's libraries and
//! a port to an unmodified image.

use crate::completion;
use crate::failure::Failure;
use crate::run::{device_file, guard, library};
use datapath::port_spec::PortSpec;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use verbs::port::Address;

/// The command line of `ferroce cdi`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  Two devices, one for each end of a memif; ADDRESS is that of the first container:
    ferroce cdi --port a=memif:/run/ferroce/x.sock,server --ip 10.0.0.1 --port b=memif:/run/ferroce/x.sock,client --ip 10.0.0.2 \
-o /etc/cdi/ferroce.json
    podman run --device ferroce.dev/rnic=a IMAGE ib_write_bw -F
    podman run --device ferroce.dev/rnic=b IMAGE ib_write_bw -F ADDRESS
  A device on the container's own eth0, which needs no --ip:
    ferroce cdi --port eth0 -o /etc/cdi/ferroce.json

The engine mounts the libraries at /opt/ferroce/lib in the container, and the tool at /opt/ferroce/bin/ferroce. If the image has no DPDK, \
run `ferroce cdi` from the tarball, whose libraries contain it.")]
pub struct Args {
    /// Port of a device, with an optional name of the device before it: eth0, a=memif:/run/ferroce/x.sock,server. May be repeated
    #[arg(short = 'd', long = "port", value_name = "[NAME=]PORT", default_value = "lo", add = completion::port())]
    ports: Vec<String>,
    /// Addresses of a port that has none from the kernel: 10.0.0.1/24,fd00::1/64. May be repeated; without a NAME, the first --ip is for
    /// the first --port, the second for the second, and so on
    #[arg(long = "ip", value_name = "[NAME=]ADDRESS")]
    addresses: Vec<String>,
    /// Write the specification to this file, such as /etc/cdi/ferroce.json
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The kind of the devices.
const KIND: &str = "ferroce.dev/rnic";
/// The version of the CDI format. podman 4.3 and newer, containerd 1.7 and CRI-O read it.
const VERSION: &str = "0.5.0";
/// The folder in a container at which the libraries and the tool are mounted.
const FOLDER: &str = "/opt/ferroce";

/// A device of the specification.
#[derive(Debug, PartialEq)]
struct CdiDevice {
    name: String,
    port: PortSpec,
    addresses: Option<String>,
}

/// Prints the specification, or writes it into a file.
///
/// # Errors
/// Returns a failure if the libraries are missing, a port, a name or an address is wrong, or the output cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let devices = devices(&args.ports, &args.addresses)?;
    let program = std::env::current_exe();
    let program = program.map_err(|error| Failure::run(format!("the path of this program: {error}")))?;
    let library = library::folder()?;
    let library = library.canonicalize();
    let library = library.map_err(|error| Failure::run(format!("the path of the libraries: {error}")))?;
    let text = format!("{:#}", specification(&library, &program, &devices));
    match &args.output {
        None => outln!("{text}")?,
        Some(file) => std::fs::write(file, text + "\n")
            .map_err(|error| Failure::run(format!("{}: {error}", file.display())))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn devices(ports: &[String], addresses: &[String]) -> Result<Vec<CdiDevice>, Failure> {
    if addresses.len() > ports.len() {
        let why = format!("{} --ip for {} --port: too many; use one per port", addresses.len(), ports.len());
        return Err(Failure::usage(why));
    }
    let mut devices: Vec<CdiDevice> = Vec::new();
    for text in ports {
        let device = device(text)?;
        if devices.iter().any(|other| other.name == device.name) {
            let why = format!("--port {text}: name {} occurs twice; choose another: NAME=PORT", device.name);
            return Err(Failure::usage(why));
        }
        devices.push(device);
    }
    for (i, text) in addresses.iter().enumerate() {
        let (device, list) = match text.split_once('=') {
            Some((name, list)) => (devices.iter_mut().find(|device| device.name == name), list),
            None => (devices.get_mut(i), text.as_str()),
        };
        let Some(device) = device else {
            let why = "no --port has this name; use one name in both: --port NAME=PORT --ip NAME=ADDRESS";
            return Err(Failure::usage(format!("--ip {text}: {why}")));
        };
        for address in list.split(',') {
            address.trim().parse::<Address>().map_err(|wrong| Failure::usage(wrong.to_string()))?;
        }
        if device.addresses.replace(list.to_owned()).is_some() {
            let why =
                format!("device {} already has addresses; list them in one --ip, with commas", device.name);
            return Err(Failure::usage(format!("--ip {text}: {why}")));
        }
    }
    Ok(devices)
}

fn device(text: &str) -> Result<CdiDevice, Failure> {
    let (name, port) = match text.split_once('=') {
        // In a port, `=` occurs only in options, after a colon or a comma.
        Some((name, port)) if !name.contains([':', ',']) => (name.to_owned(), port),
        _ => (text.replace(|c: char| !is_of_a_name(c), "-"), text),
    };
    let ends = [name.chars().next(), name.chars().last()];
    if !name.chars().all(is_of_a_name) || !ends.iter().all(|c| c.is_some_and(|c| c.is_ascii_alphanumeric())) {
        let why = "not a device's name; use letters, digits, `_`, `-`, `.` and `:`, so that it begins and ends with a letter or digit";
        return Err(Failure::usage(format!("--port {text}: {why}")));
    }
    let port = port.parse::<PortSpec>().map_err(|wrong| Failure::usage(wrong.to_string()))?;
    let device = CdiDevice { name, port, addresses: None };
    if let Some(folder) = socket_folder(&device).filter(|folder| is_shared(folder)) {
        let folder = folder.display();
        let why = format!(
            "the container would mount all of {folder}; put the socket into a folder of its own: /run/ferroce/x.sock"
        );
        return Err(Failure::usage(format!("--port {text}: {why}")));
    }
    Ok(device)
}

/// Returns whether a folder also contains files of other programs: it is `/`, directly below `/`, or one of a list.
fn is_shared(folder: &Path) -> bool {
    let shared = ["/dev/shm", "/var/run", "/var/tmp", "/var/lib", "/run/user", "/run/lock"];
    folder.components().count() <= 2 || shared.iter().any(|path| folder == Path::new(path))
}

fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.:".contains(c)
}

/// Returns the folder of the port's socket, which is mounted in the containers at both ends.
fn socket_folder(device: &CdiDevice) -> Option<&Path> {
    match &device.port {
        PortSpec::Memif { socket, .. } | PortSpec::Virtio { socket, .. } => Path::new(socket).parent(),
        _ => None,
    }
}

/// Returns the specification. Each container gets the libraries in `lib`, the tool `program`, and one of `devices`.
fn specification(lib: &Path, program: &Path, devices: &[CdiDevice]) -> Value {
    let mut listed = Vec::new();
    for device in devices {
        let mut edits = BTreeMap::from([("env", json!(variables(device)))]);
        if let Some(folder) = socket_folder(device) {
            edits.insert("mounts", json!([mount(folder, folder, "rw")]));
        }
        listed.push(json!({ "name": device.name, "containerEdits": edits }));
    }
    let inside = |path: &str| Path::new(FOLDER).join(path);
    let mut env = vec![format!("LD_LIBRARY_PATH={FOLDER}/lib"), format!("FERROCE_LIB={FOLDER}/lib")];
    env.push(format!("{}={FOLDER}/bin/ferroce", guard::VARIABLE));
    let (name, value) = device_file::UCX_SETTING;
    env.push(format!("{name}={value}"));
    json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": listed,
        "containerEdits": {
            "env": env,
            "mounts": [mount(lib, &inside("lib"), "ro"), mount(program, &inside("bin/ferroce"), "ro")],
        },
    })
}

fn variables(device: &CdiDevice) -> Vec<String> {
    let addresses = device.addresses.as_ref().map(|list| format!("FERROCE_IP={list}"));
    std::iter::once(format!("FERROCE_PORT={}", device.port)).chain(addresses).collect()
}

fn mount(host: &Path, container: &Path, access: &str) -> Value {
    json!({ "hostPath": host, "containerPath": container, "options": [access, "nosuid", "nodev", "bind"] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    fn made(ports: &[&str], addresses: &[&str]) -> Result<Value, String> {
        let devices = devices(&words(ports), &words(addresses)).map_err(|error| error.to_string())?;
        Ok(specification(Path::new("/opt/f/lib"), Path::new("/opt/f/bin/ferroce"), &devices))
    }

    #[test]
    fn each_port_is_a_device_with_its_address_and_the_folder_of_its_socket() {
        let made = made(&["a=memif:/run/f/x.sock,server", "eth0"], &["10.0.0.1"]).unwrap();
        assert_eq!((&made["kind"], &made["cdiVersion"]), (&json!("ferroce.dev/rnic"), &json!("0.5.0")));
        let a = &made["devices"][0];
        assert_eq!(a["name"], "a");
        let env = ["FERROCE_PORT=memif:/run/f/x.sock,server", "FERROCE_IP=10.0.0.1"];
        assert_eq!(a["containerEdits"]["env"], json!(env));
        let mount = &a["containerEdits"]["mounts"][0];
        assert_eq!([&mount["hostPath"], &mount["containerPath"]], ["/run/f"; 2]);
        assert_eq!(mount["options"][0], "rw");
        let eth0 = json!({ "name": "eth0", "containerEdits": { "env": ["FERROCE_PORT=eth0"] } });
        assert_eq!(made["devices"][1], eth0);
    }

    #[test]
    fn containers_mount_the_libraries_and_the_tool_read_only() {
        let made = made(&["lo"], &[]).unwrap();
        let edits = &made["containerEdits"];
        let env: Vec<_> = edits["env"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(env.contains(&"LD_LIBRARY_PATH=/opt/ferroce/lib"), "{env:?}");
        assert!(env.contains(&"FERROCE_LIB=/opt/ferroce/lib"), "{env:?}");
        let mounts = edits["mounts"].as_array().unwrap();
        assert!(mounts.iter().all(|mount| mount["options"][0] == "ro"), "{mounts:?}");
        assert_eq!(mounts[0]["hostPath"], "/opt/f/lib");
        assert_eq!(mounts[1]["containerPath"], "/opt/ferroce/bin/ferroce");
    }

    #[test]
    fn an_address_with_a_name_is_for_the_port_of_that_name() {
        let ports = ["eth0", "b=memif:/run/f/x.sock,client"];
        let made = made(&ports, &["b=10.0.0.2,fd00::2"]).unwrap();
        assert_eq!(made["devices"][0]["containerEdits"]["env"], json!(["FERROCE_PORT=eth0"]));
        assert_eq!(made["devices"][1]["containerEdits"]["env"][1], "FERROCE_IP=10.0.0.2,fd00::2");
    }

    #[test]
    fn a_port_without_a_name_gives_one_that_engines_accept() {
        let made = made(&["memif:/run/f/x.sock,id=3"], &[]).unwrap();
        assert_eq!(made["devices"][0]["name"], "memif:-run-f-x.sock-id-3");
    }

    #[test]
    fn wrong_devices_are_refused_with_the_word_that_is_wrong() {
        for (ports, addresses, said) in [
            (&["a=lo", "a=eth0"][..], &[][..], "twice"),
            (&["-=lo"], &[], "begins and ends"),
            (&["a b=lo"], &[], "letters, digits"),
            (&["a=memif:x.sock"], &[], "no full path"),
            (&["a=tap:"], &[], "tap"),
            (&["a=memif:/run/x.sock"], &[], "all of /run"),
            (&["a=memif:/var/tmp/x.sock"], &[], "a folder of its own"),
            (&["lo"], &["10.0.0.300"], "10.0.0.300"),
            (&["lo"], &["10.0.0.1", "10.0.0.2"], "2 --ip for 1 --port"),
            (&["a=lo"], &["b=10.0.0.1"], "--ip b=10.0.0.1: no --port has this name"),
            (&["a=lo", "b=lo"], &["10.0.0.1", "a=10.0.0.2"], "device a already has addresses"),
        ] {
            let refused = made(ports, addresses).unwrap_err();
            assert!(refused.contains(said), "{ports:?}: {refused}");
        }
    }
}

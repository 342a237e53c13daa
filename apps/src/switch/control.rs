//! The switch's side of `ferroce switch ctl`: a Unix socket, on which a separate thread reads and checks requests.
//!
//! Only checked rules reach the switch's thread. A connection carries one request and its answer, each as a line of JSON. Connections are
//! served concurrently.

use super::rules::{Rules, Running, Script};
use crate::clients;
use crate::failure::Failure;
use datapath::io::PacketBuf;
use fabric::{FaultRule, RuleReport, Switch};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// The limit on a request and on an answer, bytes.
pub const LONGEST: u64 = 4 << 20;
/// The time limit for a connection.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Returns the running rules.
    List,
    /// Adds the rules of a script.
    Add(Script),
    /// Replaces all rules by those of a script.
    Replace(Script),
    /// Removes the rule with this name.
    Remove(String),
}

/// The running rules after a request, or the reason why it was refused.
pub type Answer = Result<Vec<Line>, String>;

/// A running rule and its counts. Its JSON keys are stable.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The name.
    pub name: String,
    /// The keys as written in the script, without `name`.
    pub keys: BTreeMap<String, String>,
    /// The file of the script.
    pub file: String,
    /// The line in that file.
    pub line: usize,
    /// `waiting`, `active` or `over`, depending on the rule's times.
    pub state: String,
    /// The number of frames that matched the rule.
    pub fitted: u64,
    /// The number of matching frames on which the action was taken.
    pub happened: u64,
}

/// A request to the switch's thread, which may change the rules and returns the counts of all rules.
struct Ask {
    change: Option<Vec<FaultRule>>,
    counts: SyncSender<Vec<RuleReport>>,
}

struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        // Another process may have removed it.
        let _ = fs::remove_file(&self.0);
    }
}

/// A socket that is bound, but not served yet.
pub struct Bound {
    listener: net::UnixListener,
    socket: Socket,
    runtime: Runtime,
}

impl Bound {
    /// Binds the socket. Only the switch's own user may connect.
    ///
    /// # Errors
    /// Returns a failure if another switch listens at the path, the path is another kind of file, or a socket cannot be created there.
    pub fn at(path: &Path) -> Result<Self, Failure> {
        let wrong =
            |what: &dyn std::fmt::Display| Failure::run(format!("--control {}: {what}", path.display()));
        if let Ok(found) = fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(wrong(&"a file exists there that is not a socket; choose another path"));
            }
            if net::UnixStream::connect(path).is_ok() {
                return Err(wrong(&"another switch listens there; choose another path"));
            }
            // A switch that was killed left it.
            fs::remove_file(path).map_err(|error| wrong(&error))?;
        }
        let remedy = |error: io::Error| {
            wrong(&format!("{error}; choose a path of at most 107 bytes in a writable folder"))
        };
        let listener = net::UnixListener::bind(path).map_err(remedy)?;
        let socket = Socket(path.to_owned());
        let system = |error: io::Error| wrong(&error);
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(system)?;
        listener.set_nonblocking(true).map_err(system)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(system)?;
        Ok(Self { listener, socket, runtime })
    }

    /// Starts the thread that serves the socket. `begin` is time 0 of the rules.
    pub fn serve(self, rules: Rules, begin: Instant) -> Control {
        let Self { listener, socket, runtime } = self;
        let (asks, receiver) = channel();
        let desk = Arc::new(Mutex::new(Desk { rules, begin, asks }));
        thread::spawn(move || runtime.block_on(accept(listener, desk)));
        Control { asks: receiver, _socket: socket }
    }
}

async fn accept(listener: net::UnixListener, desk: Arc<Mutex<Desk>>) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let serve = |(client, _)| {
        let desk = Arc::clone(&desk);
        async move {
            // An error ends only this connection.
            let _ = timeout(PATIENCE, serve(client, &desk)).await;
        }
    };
    clients::serve(|context| listener.poll_accept(context), serve).await;
    Ok(())
}

async fn serve(client: UnixStream, desk: &Mutex<Desk>) -> io::Result<()> {
    let mut client = BufReader::new(client);
    let mut line = String::new();
    (&mut client).take(LONGEST).read_line(&mut line).await?;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => desk.lock().unwrap_or_else(PoisonError::into_inner).answer(request),
        Err(_) if line.len() as u64 == LONGEST => {
            Err(format!("a request of more than {LONGEST} bytes; write a shorter script"))
        }
        Err(error) => Err(format!("not a request: {error}; use ferroce switch ctl of the same version")),
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    client.write_all(&text).await
}

/// The requests for the switch's thread.
pub struct Control {
    asks: Receiver<Ask>,
    _socket: Socket,
}

impl Control {
    /// Handles the requests since the previous turn. Does not block.
    pub fn after<B: PacketBuf>(&self, switch: &mut Switch<B>) {
        while let Ok(Ask { change, counts }) = self.asks.try_recv() {
            if let Some(rules) = change {
                switch.change_rules(&rules);
            }
            let _ = counts.try_send(switch.rule_reports());
        }
    }
}

struct Desk {
    rules: Rules,
    begin: Instant,
    asks: Sender<Ask>,
}

impl Desk {
    fn answer(&mut self, request: Request) -> Answer {
        let now = self.begin.elapsed();
        let changed = match &request {
            Request::List => None,
            Request::Add(script) => Some(self.rules.with(script, now)?),
            Request::Replace(script) => Some(self.rules.replaced(script, now)?),
            Request::Remove(name) => Some(self.rules.without(name)?),
        };
        let (counts, counted) = sync_channel(1);
        let ended = |_| "the switch is about to end; nothing has changed".to_owned();
        self.asks
            .send(Ask { change: changed.as_ref().map(Rules::for_switch), counts })
            .map_err(|error| ended(error.to_string()))?;
        let counts = counted.recv().map_err(|error| ended(error.to_string()))?;
        self.rules = changed.unwrap_or_else(|| self.rules.clone());
        Ok(self.rules.running().iter().map(|running| line(running, &counts, now)).collect())
    }
}

fn line(Running { file, fault }: &Running, counts: &[RuleReport], now: Duration) -> Line {
    let rule = &fault.rule;
    let count = counts.iter().find(|count| count.name == rule.name);
    let state = match rule.until {
        Some(until) if until <= now => "over",
        _ if rule.after > now => "waiting",
        _ => "active",
    };
    let mut keys = fault.keys.clone();
    keys.remove("name");
    Line {
        name: rule.name.clone(),
        keys,
        file: file.clone(),
        line: fault.line,
        state: state.to_owned(),
        fitted: count.map_or(0, |count| count.fitted),
        happened: count.map_or(0, |count| count.happened),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_file_is_refused_and_a_stale_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "text").unwrap();
        let refused = |path: &Path| Bound::at(path).map(|_| ()).unwrap_err().to_string();
        assert!(refused(&at("file")).contains("not a socket"));
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "text");
        drop(net::UnixListener::bind(at("dead")).unwrap());
        let bound = Bound::at(&at("dead")).unwrap();
        assert_eq!(fs::metadata(at("dead")).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(refused(&at("dead")).contains("another switch listens"));
        drop(bound);
        assert!(!at("dead").exists());
        assert!(refused(&at("none/here")).contains("107 bytes"));
        assert!(refused(&at(&"x".repeat(108))).contains("107 bytes"));
    }
}

//! QEMU's machine protocol: commands and answers as JSON, a line each.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use memchr::memchr;
use rustix::net::sockopt;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use unwind_target::Untrusted;

use crate::commands::guest::allowance::{Allowance, broken};
use crate::commands::guest::error::GuestError;
use crate::commands::guest::ram::{GuestRam, MemoryMap};
use crate::commands::guest::registers::VcpuState;

/// How long an answer may take, with all events before it.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many bytes are read up to the end of an answer, with all events before it.
/// The longest one asked for, the map of memory, has some 100 KiB.
const ANSWER_LIMIT: usize = 16 << 20;

/// The most vCPUs that a guest may have; QEMU has machines of 4,096.
const VCPU_LIMIT: usize = 1 << 14;

/// The most regions of memory.
const REGIONS_LIMIT: usize = 1 << 8;

/// A connection to a QEMU that runs.
#[derive(Debug)]
pub(crate) struct Qmp {
    reader: BufReader<UnixStream>,
    /// How long an answer may take.
    patience: Duration,
    /// How many bytes may come up to the end of an answer.
    limit: usize,
    /// When all answers have to be there: those of a guest that is held.
    deadline: Option<Instant>,
}

/// One message, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Message<'m> {
    #[serde(rename = "QMP")]
    greeting: Option<IgnoredAny>,
    /// Kept as it came: only whoever asked knows its shape.
    #[serde(borrow, rename = "return")]
    answer: Option<&'m RawValue>,
    #[serde(borrow)]
    error: Option<&'m RawValue>,
}

/// What QEMU says of a command that it refuses.
#[derive(Debug, Deserialize)]
struct Refusal {
    desc: Option<String>,
}

/// The answer to `query-status`.
#[derive(Debug, Deserialize)]
struct Status {
    running: bool,
}

/// Of the answer to `query-cpus-fast`.
#[derive(Debug, Deserialize)]
struct Vcpu {
    #[serde(rename = "cpu-index")]
    index: u64,
}

impl Qmp {
    /// Connects to a QMP socket.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if there is none, or it does not answer.
    pub(crate) fn connect(path: &Path) -> Result<Self, GuestError> {
        Self::connect_with(path, PATIENCE)
    }

    /// Connects, and waits at most this long for each answer.
    fn connect_with(path: &Path, patience: Duration) -> Result<Self, GuestError> {
        let failed = |error| GuestError::Connect { path: path.to_owned(), error };
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_write_timeout(Some(patience)).map_err(failed)?;
        let mut qmp =
            Self { reader: BufReader::new(stream), patience, limit: ANSWER_LIMIT, deadline: None };
        let greeting = qmp.receive(&mut qmp.allowance())?;
        if parse::<Message<'_>>(&greeting)?.greeting.is_none() {
            return Err(GuestError::NotQmp);
        }
        qmp.execute::<IgnoredAny>("qmp_capabilities", None)?;
        Ok(qmp)
    }

    /// Executes a command and returns its answer.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if QEMU refuses it or does not answer in time.
    pub(crate) fn execute<A: DeserializeOwned>(
        &mut self,
        command: &str,
        arguments: Option<Value>,
    ) -> Result<A, GuestError> {
        let mut message = json!({ "execute": command });
        if let (Some(arguments), Value::Object(message)) = (arguments, &mut message) {
            message.insert("arguments".into(), arguments);
        }
        let line = format!("{message}\n");
        let mut allowance = self.allowance();
        self.reader.get_mut().write_all(line.as_bytes()).map_err(|error| self.broken(error))?;
        loop {
            let line = self.receive(&mut allowance)?;
            if let Some(answer) = answer(command, &line)? {
                return Ok(answer);
            }
            // An event, which no command waits for.
        }
    }

    /// Executes a command of the human monitor on a vCPU and returns its text.
    ///
    /// # Errors
    ///
    /// As [`execute`](Self::execute).
    pub(crate) fn monitor(
        &mut self,
        command: &str,
        vcpu: Option<u64>,
    ) -> Result<String, GuestError> {
        let mut arguments = json!({ "command-line": command });
        if let (Some(vcpu), Value::Object(arguments)) = (vcpu, &mut arguments) {
            arguments.insert("cpu-index".into(), vcpu.into());
        }
        self.execute("human-monitor-command", Some(arguments))
    }

    /// Whether the guest runs.
    ///
    /// # Errors
    ///
    /// As [`execute`](Self::execute).
    pub(crate) fn is_running(&mut self) -> Result<bool, GuestError> {
        self.execute("query-status", None).map(|status: Status| status.running)
    }

    /// The guest's memory, as the process at the other end of the socket has it.
    ///
    /// # Errors
    ///
    /// As [`execute`](Self::execute), and if the process may not be read.
    pub(crate) fn memory(&mut self, regions: Vec<MemoryMap>) -> Result<GuestRam, GuestError> {
        let peer = sockopt::socket_peercred(self.reader.get_ref());
        let pid = peer.map_err(|error| GuestError::Broken(error.into()))?.pid.as_raw_pid();
        let mut placed = Vec::new();
        for region in regions.into_iter().take(REGIONS_LIMIT) {
            let (addr, at) = region.first().ok_or(GuestError::NoMemoryMap)?;
            let text = self.monitor(&format!("gpa2hva {addr:#x}"), None)?;
            match host_address(&text).and_then(|host| host.checked_sub(at)) {
                Some(start) => placed.push((region, start)),
                // The least are firmware and devices' memory, of which QEMU may tell no place.
                None if !placed.is_empty() => {}
                None => return Err(GuestError::NoAddress(text.into())),
            }
        }
        GuestRam::of_process(pid, MemoryMap::of_regions(placed))
    }

    /// The numbers of the vCPUs.
    ///
    /// # Errors
    ///
    /// As [`execute`](Self::execute).
    pub(crate) fn vcpus(&mut self) -> Result<Vec<u64>, GuestError> {
        let vcpus: Vec<Vcpu> = self.execute("query-cpus-fast", None)?;
        if vcpus.len() > VCPU_LIMIT {
            return Err(GuestError::TooManyVcpus(vcpus.len()));
        }
        Ok(vcpus.iter().map(|vcpu| vcpu.index).collect())
    }

    /// Reads a line, or what there is of the last one.
    fn receive(&mut self, allowance: &mut Allowance) -> Result<Vec<u8>, GuestError> {
        let mut line = Vec::new();
        loop {
            let left = allowance.time_left().ok_or_else(|| self.silent())?;
            self.reader.get_ref().set_read_timeout(Some(left)).map_err(GuestError::Broken)?;
            let came = match self.reader.fill_buf() {
                Ok(came) => came,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.broken(error)),
            };
            let end = memchr(b'\n', came);
            let part = came.get(..end.unwrap_or(came.len())).unwrap_or_default();
            line.extend_from_slice(part);
            let is_over = end.is_some() || came.is_empty();
            let taken = part.len().saturating_add(usize::from(end.is_some()));
            self.reader.consume(taken);
            allowance.take(taken)?;
            match is_over {
                true if line.is_empty() && end.is_none() => return Err(GuestError::Closed),
                true => return Ok(line),
                false => {}
            }
        }
    }

    /// Gives all answers up to `deadline` no more time than until then.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    fn allowance(&self) -> Allowance {
        Allowance::new(self.patience, self.deadline, self.limit)
    }

    fn silent(&self) -> GuestError {
        GuestError::Silent { seconds: self.patience.as_secs() }
    }

    fn broken(&self, error: io::Error) -> GuestError {
        broken(error, self.silent())
    }
}

/// The address in `Host virtual address for 0x0 (pc.ram) is 0x7f0000000000`.
fn host_address(text: &str) -> Option<u64> {
    let word = text.split_whitespace().next_back()?;
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

/// The answer to a command in a line; `None` if it is an event.
fn answer<A: DeserializeOwned>(command: &str, line: &[u8]) -> Result<Option<A>, GuestError> {
    let message: Message<'_> = parse(line)?;
    if let Some(answer) = message.answer {
        return parse(answer.get().as_bytes()).map(Some);
    }
    let Some(error) = message.error else { return Ok(None) };
    let text = parse(error.get().as_bytes()).ok().and_then(|refusal: Refusal| refusal.desc);
    let text = text.map_or("no reason given".into(), Untrusted::from);
    Err(GuestError::Refused { command: command.into(), text })
}

fn parse<'m, T: Deserialize<'m>>(text: &'m [u8]) -> Result<T, GuestError> {
    serde_json::from_slice(text).map_err(|_| GuestError::NotQmp)
}

/// Reads lines as answers, and text in them as that of the monitor, for a fuzz
/// target. Returns how many bytes and numbers there are in them.
pub(crate) fn read_answers(text: &[u8]) -> usize {
    let read = |line: &[u8]| {
        let text = answer::<String>("x", line).ok().flatten().unwrap_or_default();
        let _ = VcpuState::parse(&text);
        let _ = MemoryMap::regions(&text);
        let vcpus = answer::<Vec<Vcpu>>("x", line).ok().flatten().unwrap_or_default();
        let running = answer::<Status>("x", line).ok().flatten().map(|status| status.running);
        text.len().saturating_add(vcpus.len()).saturating_add(usize::from(running.is_some()))
    };
    text.split(|&byte| byte == b'\n').map(read).fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// A socket whose path goes once a client has connected.
    fn listener(name: &str) -> (PathBuf, impl FnOnce() -> UnixStream + Send + 'static) {
        let path = std::env::temp_dir().join(format!("unwind-qmp-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let bound = path.clone();
        let accept = move || {
            let (stream, _) = listener.accept().unwrap();
            std::fs::remove_file(bound).unwrap();
            stream
        };
        (path, accept)
    }

    /// A server that sends its lines one after the other, the first at once and
    /// each of the others when a line has come; returns what came.
    fn server(name: &str, lines: Vec<&'static str>) -> (PathBuf, JoinHandle<Vec<String>>) {
        let (path, accept) = listener(name);
        let serve = move || {
            let mut stream = accept();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut came = Vec::new();
            for (number, line) in lines.iter().enumerate() {
                if number > 0 {
                    let mut request = String::new();
                    reader.read_line(&mut request).unwrap();
                    came.push(request);
                }
                stream.write_all(line.as_bytes()).unwrap();
            }
            came
        };
        (path, thread::spawn(serve))
    }

    const GREETING: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n";
    const DONE: &str = "{\"return\": {}}\r\n";

    #[test]
    fn events_between_a_command_and_its_answer_are_passed_over() {
        let answer = "{\"event\": \"STOP\"}\r\n{\"event\": \"RESUME\"}\r\n\
                      {\"return\": {\"running\": true, \"status\": \"running\"}}\r\n";
        let (path, served) = server("events", vec![GREETING, DONE, answer]);
        let mut qmp = Qmp::connect(&path).unwrap();
        assert!(qmp.is_running().unwrap());
        let came = served.join().unwrap();
        assert!(came[0].contains("qmp_capabilities"), "{came:?}");
        assert!(came[1].contains("query-status"), "{came:?}");
    }

    #[test]
    fn a_command_that_is_refused_says_why() {
        let refusal = "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no such thing\"}}\n";
        let (path, served) = server("refused", vec![GREETING, DONE, refusal]);
        let error = Qmp::connect(&path).unwrap().monitor("info x", Some(3)).unwrap_err();
        assert_eq!(error.to_string(), "QEMU refuses `human-monitor-command`: no such thing");
        assert!(served.join().unwrap()[1].contains("\"cpu-index\":3"));
    }

    #[test]
    fn what_is_not_qmp_is_said_to_be_none() {
        for (name, line) in [("text", "hello\n"), ("other", "{\"a\": 1}\n"), ("array", "[1]\n")] {
            let (path, served) = server(name, vec![line]);
            assert!(matches!(Qmp::connect(&path), Err(GuestError::NotQmp)), "{name}");
            served.join().unwrap();
        }
        let (path, served) = server("closed", vec![]);
        let closed = Qmp::connect(&path);
        assert!(matches!(closed, Err(GuestError::Closed)), "{closed:?}");
        served.join().unwrap();
    }

    type Talk = fn(&mut UnixStream) -> io::Result<()>;

    /// A server that greets, answers the first command, and then sends for as
    /// long as it is listened to.
    fn endless(name: &str, talk: Talk) -> PathBuf {
        let (path, accept) = listener(name);
        thread::spawn(move || {
            let mut stream = accept();
            stream.write_all(GREETING.as_bytes()).unwrap();
            stream.write_all(DONE.as_bytes()).unwrap();
            while talk(&mut stream).is_ok() {}
        });
        path
    }

    #[test]
    fn c10_an_answer_has_the_time_limit_however_much_comes_before_it() {
        let patience = Duration::from_secs(1);
        let talks: [(&str, Talk); 3] = [
            ("slow-events", |stream| {
                thread::sleep(Duration::from_millis(10));
                stream.write_all(b"{\"event\": \"RTC_CHANGE\"}\n")
            }),
            ("a-byte-at-a-time", |stream| {
                thread::sleep(Duration::from_millis(10));
                stream.write_all(b" ")
            }),
            ("silence", |stream| {
                thread::sleep(Duration::from_millis(10));
                stream.write_all(b"")
            }),
        ];
        for (name, talk) in talks {
            let path = endless(name, talk);
            let mut qmp = Qmp::connect_with(&path, patience).unwrap();
            let started = Instant::now();
            let error = qmp.is_running().unwrap_err();
            assert!(matches!(error, GuestError::Silent { seconds: 1 }), "{name}: {error}");
            assert!(started.elapsed() < Duration::from_secs(8), "{name}: {:?}", started.elapsed());
        }
    }

    #[test]
    fn c10_an_answer_has_a_limit_of_bytes_however_fast_they_come() {
        let path = endless("fast-events", |stream| {
            stream.write_all(&b"{\"event\": \"RTC_CHANGE\"}\n".repeat(1000))
        });
        let mut qmp = Qmp::connect_with(&path, Duration::from_secs(60)).unwrap();
        qmp.limit = 1 << 20;
        let error = qmp.is_running().unwrap_err();
        assert!(matches!(error, GuestError::TooLong), "{error}");
    }
}

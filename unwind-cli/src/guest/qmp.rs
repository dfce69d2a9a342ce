//! QEMU's machine protocol: commands and answers as JSON, a line each.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::guest::error::GuestError;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer that is read, in bytes. The longest one asked for, the
/// map of memory, has some 100 KiB.
const ANSWER_LIMIT: u64 = 16 << 20;

/// A connection to a QEMU that runs.
#[derive(Debug)]
pub(crate) struct Qmp {
    reader: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects to a QMP socket.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if there is none, or nobody answers.
    pub(crate) fn connect(path: &Path) -> Result<Self, GuestError> {
        let failed = |error| GuestError::Connect { path: path.to_owned(), error };
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        let mut qmp = Self { reader: BufReader::new(stream) };
        if qmp.receive()?.get("QMP").is_none() {
            return Err(GuestError::NotQmp);
        }
        qmp.execute("qmp_capabilities", None)?;
        Ok(qmp)
    }

    /// Executes a command and returns its answer.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if QEMU refuses it or does not answer.
    pub(crate) fn execute(
        &mut self,
        command: &str,
        arguments: Option<Value>,
    ) -> Result<Value, GuestError> {
        let mut message = json!({ "execute": command });
        if let (Some(arguments), Value::Object(message)) = (arguments, &mut message) {
            message.insert("arguments".into(), arguments);
        }
        let line = format!("{message}\n");
        self.reader.get_mut().write_all(line.as_bytes()).map_err(broken)?;
        loop {
            let mut answer = self.receive()?;
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(error) = answer.get("error") {
                let text = match error.get("desc") {
                    Some(Value::String(text)) => text.as_str().into(),
                    _ => "no reason given".into(),
                };
                return Err(GuestError::Refused { command: command.into(), text });
            }
            // An event, which nobody waits for.
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
        match self.execute("human-monitor-command", Some(arguments))? {
            Value::String(text) => Ok(text),
            _ => Err(GuestError::NotQmp),
        }
    }

    /// Whether the guest runs.
    ///
    /// # Errors
    ///
    /// As [`execute`](Self::execute).
    pub(crate) fn is_running(&mut self) -> Result<bool, GuestError> {
        let status = self.execute("query-status", None)?;
        status.get("running").and_then(Value::as_bool).ok_or(GuestError::NotQmp)
    }

    /// The numbers of the vCPUs.
    ///
    /// # Errors
    ///
    /// As [`execute`](Self::execute).
    pub(crate) fn vcpus(&mut self) -> Result<Vec<u64>, GuestError> {
        let vcpus = self.execute("query-cpus-fast", None)?;
        let vcpus = vcpus.as_array().ok_or(GuestError::NotQmp)?;
        let number = |vcpu: &Value| vcpu.get("cpu-index").and_then(Value::as_u64);
        vcpus.iter().map(|vcpu| number(vcpu).ok_or(GuestError::NotQmp)).collect()
    }

    fn receive(&mut self) -> Result<Value, GuestError> {
        let mut line = Vec::new();
        let mut limited = self.reader.by_ref().take(ANSWER_LIMIT);
        let len = limited.read_until(b'\n', &mut line).map_err(broken)?;
        if len == 0 {
            return Err(GuestError::Closed);
        }
        serde_json::from_slice(&line).map_err(|_| GuestError::NotQmp)
    }
}

fn broken(error: io::Error) -> GuestError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            GuestError::Silent { seconds: PATIENCE.as_secs() }
        }
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => GuestError::Closed,
        _ => GuestError::Broken(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// A server that sends its lines one after the other, the first at once and
    /// each of the others when a line has come; returns what came.
    fn server(name: &str, lines: Vec<&'static str>) -> (PathBuf, JoinHandle<Vec<String>>) {
        let path = std::env::temp_dir().join(format!("unwind-qmp-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let serve = move || {
            let mut stream = listener.accept().unwrap().0;
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
}

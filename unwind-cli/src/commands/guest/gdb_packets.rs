//! Packets of gdb's remote protocol: `$`, the content, `#` and two digits that sum it up.

use std::io::{self, BufRead as _, BufReader, Cursor, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::commands::guest::allowance::{Allowance, broken};
use crate::commands::guest::error::GuestError;

/// How many bytes may come before the end of an answer.
const ANSWER_LIMIT: usize = 1 << 20;

/// How many answers may come damaged, or unasked, one after the other.
const TRIES: u32 = 4;

/// A connection by which packets come and go.
#[derive(Debug)]
pub(crate) struct Packets {
    reader: BufReader<Stream>,
    /// How long an answer may take.
    patience: Duration,
    /// When all answers have to be there: those of a guest that is held.
    deadline: Option<Instant>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Bytes that are there, and no one to write to.
    Bytes(Cursor<Vec<u8>>),
}

impl Packets {
    /// Connects to `HOST:PORT` or, if there is a `/` in it, the path of a socket.
    pub(crate) fn connect(address: &str, patience: Duration) -> Result<Self, GuestError> {
        let failed = |error| GuestError::Connect { path: PathBuf::from(address), error };
        let stream = Stream::connect(address, patience).map_err(failed)?;
        stream.set_write_timeout(patience).map_err(failed)?;
        Ok(Self { reader: BufReader::new(stream), patience, deadline: None })
    }

    /// Gives all answers up to `deadline` no more time than until then.
    pub(crate) const fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Sends a packet and returns the content of the one that answers it.
    ///
    /// A stub may tell unasked that the guest stands, such as QEMU's where a connection has stopped it.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if there is no answer in time.
    pub(crate) fn ask(&mut self, content: &str) -> Result<Vec<u8>, GuestError> {
        self.send(content)?;
        for _ in 0..TRIES {
            let answer = self.receive()?;
            if content == "?" || !matches!(answer.first(), Some(b'T' | b'S')) {
                return Ok(answer);
            }
        }
        Err(GuestError::NotGdb)
    }

    /// Sends a packet.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if the connection is broken.
    pub(crate) fn send(&mut self, content: &str) -> Result<(), GuestError> {
        self.write(&encoded(content.as_bytes()))
    }

    /// Has the stub stop what runs, and waits until it has.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if it does not in time.
    pub(crate) fn interrupt(&mut self) -> Result<(), GuestError> {
        self.write(&[3])?;
        self.in_time(|packets| {
            loop {
                let answer = packets.receive()?;
                match answer.first() {
                    Some(b'T' | b'S') => return Ok(()),
                    Some(b'W' | b'X') => return Err(GuestError::Closed),
                    // Text of what runs.
                    Some(b'O') => {}
                    _ => return Err(GuestError::NotGdb),
                }
            }
        })
    }

    /// Gives all answers that `talk` waits for the time of one.
    ///
    /// # Errors
    ///
    /// Those of `talk`.
    pub(crate) fn in_time<T>(
        &mut self,
        talk: impl FnOnce(&mut Self) -> Result<T, GuestError>,
    ) -> Result<T, GuestError> {
        let deadline = self.deadline;
        self.deadline = deadline.or_else(|| Instant::now().checked_add(self.patience));
        let told = talk(self);
        self.deadline = deadline;
        told
    }

    /// The content of the next packet.
    ///
    /// # Errors
    ///
    /// [`GuestError`] if there is none in time, or none that is whole.
    pub(crate) fn receive(&mut self) -> Result<Vec<u8>, GuestError> {
        let mut allowance = Allowance::new(self.patience, self.deadline, ANSWER_LIMIT);
        for _ in 0..TRIES {
            // What is before a packet acknowledges those that were sent.
            self.read_until(b'$', &mut allowance)?;
            let content = self.read_until(b'#', &mut allowance)?;
            let sum = [self.byte(&mut allowance)?, self.byte(&mut allowance)?];
            if of_hex(&sum) == Some(vec![sum_of(&content)]) {
                self.write(b"+")?;
                return decoded(&content).ok_or(GuestError::NotGdb);
            }
            self.write(b"-")?;
        }
        Err(GuestError::NotGdb)
    }

    fn read_until(&mut self, end: u8, allowance: &mut Allowance) -> Result<Vec<u8>, GuestError> {
        let mut content = Vec::new();
        loop {
            match self.byte(allowance)? {
                byte if byte == end => return Ok(content),
                byte => content.push(byte),
            }
        }
    }

    fn byte(&mut self, allowance: &mut Allowance) -> Result<u8, GuestError> {
        allowance.take(1)?;
        loop {
            if let Some(&byte) = self.reader.buffer().first() {
                self.reader.consume(1);
                return Ok(byte);
            }
            let left = allowance.time_left().ok_or_else(|| self.silent())?;
            self.reader.get_ref().set_read_timeout(left).map_err(GuestError::Broken)?;
            match self.reader.fill_buf() {
                Ok([]) => return Err(GuestError::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        let written = self.reader.get_mut().write_all(bytes);
        written.map_err(|error| self.broken(error))
    }

    fn silent(&self) -> GuestError {
        GuestError::StubSilent { seconds: self.patience.as_secs() }
    }

    fn broken(&self, error: io::Error) -> GuestError {
        broken(error, self.silent())
    }

    /// How many bytes there are in all packets of these bytes.
    pub(crate) fn decode_all(bytes: &[u8]) -> usize {
        let stream = Stream::Bytes(Cursor::new(bytes.to_vec()));
        let patience = Duration::from_secs(60);
        let mut packets = Self { reader: BufReader::new(stream), patience, deadline: None };
        let mut len = 0_usize;
        while let Ok(content) = packets.receive() {
            len = len.saturating_add(content.len());
        }
        len
    }
}

impl Stream {
    fn connect(address: &str, patience: Duration) -> io::Result<Self> {
        if address.contains('/') {
            let path = address.strip_prefix("unix:").unwrap_or(address);
            return UnixStream::connect(path).map(Self::Unix);
        }
        // As QEMU calls them.
        let address = address.strip_prefix("tcp:").unwrap_or(address);
        let address = match address.strip_prefix(':') {
            Some(port) => format!("localhost:{port}"),
            None => address.to_owned(),
        };
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, patience) {
                Ok(stream) => {
                    // Each packet waits for its answer.
                    stream.set_nodelay(true)?;
                    return Ok(Self::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Self::Unix(stream) => stream.set_read_timeout(Some(timeout)),
            Self::Bytes(_) => Ok(()),
        }
    }

    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(Some(timeout)),
            Self::Unix(stream) => stream.set_write_timeout(Some(timeout)),
            Self::Bytes(_) => Ok(()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buf),
            Self::Unix(stream) => stream.read(buf),
            Self::Bytes(bytes) => bytes.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buf),
            Self::Unix(stream) => stream.write(buf),
            Self::Bytes(_) => Ok(buf.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A packet with this content, which has none of the bytes that need an escape.
fn encoded(content: &[u8]) -> Vec<u8> {
    let sum = hex_of(&[sum_of(content)]);
    [b"$", content, b"#", sum.as_bytes()].concat()
}

fn sum_of(content: &[u8]) -> u8 {
    content.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte))
}

/// The content without escapes and repetitions; `None` if those are cut, or too many.
fn decoded(content: &[u8]) -> Option<Vec<u8>> {
    /// What stands for a repetition of none.
    const NONE: u8 = 29;
    let mut plain = Vec::new();
    let mut bytes = content.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'}' => plain.push(bytes.next()? ^ 0x20),
            b'*' => {
                let count = bytes.next()?.checked_sub(NONE)?;
                let last = *plain.last()?;
                plain.extend((0..count).map(|_| last));
            }
            byte => plain.push(byte),
        }
        if plain.len() > ANSWER_LIMIT {
            return None;
        }
    }
    Some(plain)
}

/// Text, of which no byte is beyond ASCII.
pub(crate) fn ascii_of(bytes: &[u8]) -> Option<String> {
    bytes.is_ascii().then(|| bytes.iter().map(|&byte| char::from(byte)).collect())
}

/// Bytes as digits.
pub(crate) fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Digits as bytes; those of what is not there, `xx`, are zero.
pub(crate) fn of_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |&[high, low]: &[u8; 2]| match (high, low) {
        (b'x', b'x') => Some(0),
        _ => Some(digit(high)? << 4 | digit(low)?),
    };
    pairs.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// A stub that answers each packet with the next of these bytes, and returns what came.
    fn stub(answers: Vec<&'static [u8]>) -> (String, JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("localhost:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serve = move || {
            let mut stream = listener.accept().unwrap().0;
            let mut came = Vec::new();
            for answer in answers {
                let mut byte = [0];
                while byte != *b"#" {
                    if stream.read(&mut byte).unwrap_or(0) == 0 {
                        return came;
                    }
                    came.extend(byte);
                }
                stream.write_all(answer).unwrap();
            }
            stream.read_to_end(&mut came).unwrap();
            came
        };
        (address, thread::spawn(serve))
    }

    #[test]
    fn a_packet_is_read_as_it_was_written_with_what_stands_for_more() {
        assert_eq!(encoded(b"g"), b"$g#67");
        let (address, served) = stub(vec![b"+$0* ab}\x03#bd", b"+$OK#9a"]);
        let mut packets = Packets::connect(&address, Duration::from_secs(5)).unwrap();
        assert_eq!(packets.ask("g").unwrap(), b"0000ab#");
        assert_eq!(packets.ask("Hg1").unwrap(), b"OK");
        drop(packets);
        assert_eq!(served.join().unwrap(), b"$g#67+$Hg1#e0+");
    }

    #[test]
    fn what_came_damaged_is_asked_for_again() {
        let (address, served) = stub(vec![b"+$OK#9b$OK#9a"]);
        let mut packets = Packets::connect(&address, Duration::from_secs(5)).unwrap();
        assert_eq!(packets.ask("?").unwrap(), b"OK");
        drop(packets);
        assert_eq!(served.join().unwrap(), b"$?#3f-+");
        let (address, served) = stub(vec![b"$OK#00$OK#00$OK#zz$OK#00"]);
        let mut packets = Packets::connect(&address, Duration::from_secs(5)).unwrap();
        assert!(matches!(packets.ask("?"), Err(GuestError::NotGdb)));
        drop(packets);
        served.join().unwrap();
    }

    #[test]
    fn a_stop_that_is_told_unasked_is_no_answer() {
        let (address, served) = stub(vec![b"$T02thread:01;#04+$OK#9a", b"+$S02#b5"]);
        let mut packets = Packets::connect(&address, Duration::from_secs(5)).unwrap();
        assert_eq!(packets.ask("Hg1").unwrap(), b"OK");
        assert_eq!(packets.ask("?").unwrap(), b"S02");
        drop(packets);
        served.join().unwrap();
        let (address, served) = stub(vec![b"$S02#b5$S02#b5$S02#b5$S02#b5$OK#9a"]);
        let mut packets = Packets::connect(&address, Duration::from_secs(5)).unwrap();
        assert!(matches!(packets.ask("Hg1"), Err(GuestError::NotGdb)));
        drop(packets);
        served.join().unwrap();
    }

    #[test]
    fn c10_a_stub_that_says_nothing_has_the_time_limit() {
        let (address, served) = stub(vec![b"+"]);
        let mut packets = Packets::connect(&address, Duration::from_secs(1)).unwrap();
        let error = packets.ask("?").unwrap_err();
        assert!(matches!(error, GuestError::StubSilent { seconds: 1 }), "{error}");
        drop(packets);
        served.join().unwrap();
    }

    #[test]
    fn c10_an_answer_has_a_limit_of_bytes() {
        let noise = [b'+'; ANSWER_LIMIT];
        assert_eq!(Packets::decode_all(&[&noise[..], b"$OK#9a"].concat()), 0);
        assert_eq!(Packets::decode_all(&[&noise[..100], b"$OK#9a$OK#9a"].concat()), 4);
        // Repetitions stand for more than there is.
        let many = [&b"0"[..], &b"*~".repeat(20_000)].concat();
        assert_eq!(decoded(&many), None);
        assert_eq!(decoded(b"*~"), None, "of nothing");
        assert_eq!((decoded(b"a*"), decoded(b"a}")), (None, None), "cut");
    }

    #[test]
    fn digits_are_pairs() {
        assert_eq!(of_hex(b"00fFxx"), Some(vec![0, 255, 0]));
        assert_eq!((of_hex(b"0"), of_hex(b"0x"), of_hex(b"+1")), (None, None, None));
        assert_eq!(hex_of(&[0, 255]), "00ff");
    }
}

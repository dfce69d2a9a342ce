//! Receivers of OpenTelemetry profiles, by HTTP: `unwind record --otlp URL`.

use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use prost::Message as _;
use unwind_profile::{Format, ProfileOptions, ReadingError};
use unwind_target::untrusted::escaped;
use ureq::Agent;
use ureq::http::Uri;

use crate::failure::Failure;
use crate::notices;

/// The path if the address has none, by the protocol.
const PATH: &str = "/v1development/profiles";

/// How long a receiver may take in all.
const TIME: Duration = Duration::from_secs(10);

/// About how many bytes a profile takes that is sent, and its stacks as many more.
const MEMORY: usize = 128 << 20;

/// How much of an answer is read.
const MAX_ANSWER: u64 = 64 << 10;

/// A receiver.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    agent: Agent,
    url: String,
}

/// Why a profile was not received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error("it cannot be encoded: {0}")]
    Encode(#[from] io::Error),
    #[error("{0}")]
    Http(Box<ureq::Error>),
    #[error("the answer has status {0}")]
    Status(u16),
    #[error("it was refused: {}", escaped(.0).at_most(200))]
    Refused(String),
    #[error("the answer is none of the protocol")]
    Answer,
}

impl From<ureq::Error> for SendError {
    fn from(error: ureq::Error) -> Self {
        match error {
            ureq::Error::StatusCode(status) => Self::Status(status),
            error => Self::Http(Box::new(error)),
        }
    }
}

impl Receiver {
    /// The receiver at an address, `http://HOST:PORT` with or without a path.
    ///
    /// # Errors
    ///
    /// What is wrong with the address.
    pub(crate) fn new(url: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|_| "not an address such as http://localhost:4318")?;
        match (uri.scheme_str(), uri.host()) {
            (Some("http"), Some(_)) => {}
            (Some("https"), _) => {
                return Err(
                    "TLS is left to a collector on this machine: http://localhost:4318".to_owned()
                );
            }
            _ => return Err("not an address such as http://localhost:4318".to_owned()),
        }
        let path = if matches!(uri.path(), "" | "/") { PATH } else { "" };
        let config = Agent::config_builder()
            .timeout_global(Some(TIME))
            .max_redirects(0)
            .user_agent(concat!("unwind/", env!("CARGO_PKG_VERSION")));
        let agent = config.build().new_agent();
        Ok(Self { agent, url: format!("{}{path}", url.trim_end_matches('/')) })
    }

    /// Sends the profile of a recording. A ledger that does not add up is sent as it is.
    ///
    /// # Errors
    ///
    /// [`Failure`] if the recording cannot be read to its end, or was not received.
    pub(crate) fn send_recording(
        &self,
        path: &Path,
        off_cpu: bool,
        trusts_frame_pointers: bool,
    ) -> Result<(), Failure> {
        // To read DWARF each time takes longer than the rest.
        let options = ProfileOptions::new(Format::Otlp)
            .off_cpu(off_cpu)
            .trust_frame_pointers(trusts_frame_pointers)
            .memory(MEMORY)
            .inlined(false)
            .notices(notices::all().clone());
        let profile = options.open(path)?;
        let requests = profile.requests();
        let is_of_ledger = |error: &ReadingError| {
            matches!(error, ReadingError::Ledger(_) | ReadingError::MissingSamples(_))
        };
        if let Some(error) = profile.ended().errors.into_iter().find(|error| !is_of_ledger(error)) {
            return Err(error.into());
        }
        let error = |error| Failure::new(error, 1);
        requests.iter().try_for_each(|request| self.send(request).map_err(error))
    }

    /// Sends a profile.
    ///
    /// # Errors
    ///
    /// [`SendError`] if it was not received.
    fn send(&self, request: &ExportProfilesServiceRequest) -> Result<(), SendError> {
        let mut body = GzEncoder::new(Vec::new(), Compression::fast());
        body.write_all(&request.encode_to_vec())?;
        let body = body.finish()?;
        let request = self.agent.post(&self.url);
        let request = request.header("Content-Type", "application/x-protobuf");
        let mut answer = request.header("Content-Encoding", "gzip").send(&body)?;
        let status = answer.status();
        if !status.is_success() {
            return Err(SendError::Status(status.as_u16()));
        }
        let answer = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec()?;
        let answer = ExportProfilesServiceResponse::decode(answer.as_slice());
        match answer.map_err(|_| SendError::Answer)?.partial_success {
            Some(part) if part.rejected_profiles > 0 => Err(SendError::Refused(part.error_message)),
            _ => Ok(()),
        }
    }
}

//! The `MessagePack` messages that frames carry. Field order is the order of the encoding.

use std::collections::BTreeMap;

use rustix::io::Errno;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_bytes::{ByteBuf, Bytes};

use crate::frames::MAX_PAYLOAD;
use crate::sys::Stage;

pub const PROTOCOL: u32 = 1;

pub type Environment = BTreeMap<ByteBuf, ByteBuf>;

/// Decodes one map with string keys and nothing behind it.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Failure> {
    let malformed =
        |reason: &str| Failure::new(Code::Protocol, format!("malformed message: {reason}"));
    if !matches!(payload.first(), Some(0x80..=0x8f | 0xde | 0xdf)) {
        return Err(malformed("a map is wanted"));
    }
    let mut rest = payload;
    let mut decoder = rmp_serde::Deserializer::new(&mut rest);
    decoder.set_max_depth(32);
    let value = T::deserialize(&mut decoder).map_err(|error| malformed(&error.to_string()))?;
    drop(decoder);
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(malformed("bytes behind the map"))
    }
}

/// Encodes a message; an `invalid` failure takes the place of one that does not fit a frame.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    match rmp_serde::to_vec_named(message) {
        Ok(bytes) if bytes.len() <= MAX_PAYLOAD => bytes,
        _ => b"\x82\xa4code\xa7invalid\xa7message\xb0answer too large".to_vec(),
    }
}

#[derive(Serialize)]
pub struct GuestHello<'a> {
    pub protocol: u32,
    pub version: &'a str,
    pub capabilities: &'a [&'static str],
    pub instance: &'a Bytes,
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    pub root: &'a Bytes,
}

#[derive(Deserialize)]
pub struct HostHello {
    pub protocol: u32,
    pub env: Environment,
}

/// What every request has.
#[derive(Deserialize)]
pub struct Op {
    pub op: String,
}

#[derive(Deserialize, Default)]
pub struct Cancel {
    pub grace_ms: Option<u64>,
}

#[derive(Deserialize)]
pub struct Exec {
    pub argv: Option<Vec<ByteBuf>>,
    pub shell: Option<ByteBuf>,
    pub cwd: Option<ByteBuf>,
    #[serde(default)]
    pub env: Environment,
    #[serde(default)]
    pub stdin: bool,
    #[serde(default)]
    pub merge: bool,
    #[serde(default)]
    pub follow: bool,
    #[serde(default)]
    pub background: bool,
    pub deadline_ms: Option<u64>,
    pub grace_ms: Option<u64>,
    pub head: Option<usize>,
    pub tail: Option<usize>,
    pub label: Option<ByteBuf>,
}

#[derive(Deserialize)]
pub struct JobWait {
    pub job: u32,
    pub timeout_ms: Option<u64>,
}

#[derive(Deserialize)]
pub struct JobRead {
    pub job: u32,
    pub channel: u8,
    pub offset: u64,
    pub limit: u64,
}

#[derive(Deserialize)]
pub struct JobSignal {
    pub job: u32,
    pub signal: i32,
    #[serde(default)]
    pub tree: bool,
}

#[derive(Deserialize)]
pub struct JobCancel {
    pub job: u32,
    pub grace_ms: Option<u64>,
}

#[derive(Deserialize)]
pub struct JobForget {
    pub job: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    Exit,
    Signal,
    Timeout,
    Cancelled,
    Lost,
}

#[derive(Clone, Copy, Serialize)]
pub struct Kept {
    pub total: u64,
    pub head: usize,
    pub tail: usize,
}

/// The sealed result of a job.
#[derive(Clone, Copy, Serialize)]
pub struct Outcome {
    pub job: u32,
    pub cause: Cause,
    pub exit_code: i32,
    pub duration_us: u64,
    pub user_us: u64,
    pub system_us: u64,
    pub peak_kb: u64,
    pub stdout: Kept,
    pub stderr: Kept,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

#[derive(Serialize)]
pub struct Started {
    pub event: &'static str,
    pub job: u32,
    pub pid: i32,
}

#[derive(Serialize)]
pub struct Background {
    pub job: u32,
    pub pid: i32,
}

#[derive(Serialize)]
pub struct JobEntry<'a> {
    pub job: u32,
    pub pid: i32,
    pub running: bool,
    pub alive: bool,
    pub started_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<&'a Bytes>,
    pub command: &'a Bytes,
}

#[derive(Serialize)]
pub struct JobTable<'a> {
    pub jobs: Vec<JobEntry<'a>>,
}

#[derive(Serialize)]
pub struct JobPiece {
    pub offset: u64,
    pub length: usize,
    pub total: u64,
    pub eof: bool,
    pub gap: u64,
}

#[derive(Serialize)]
pub struct Sent {
    pub sent: u32,
}

#[derive(Serialize)]
pub struct Nothing {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    Protocol,
    Busy,
    Unknown,
    NoJob,
    BadRange,
    TooLarge,
    TooMany,
    Short,
    Changed,
    Exists,
    NotFound,
    NotDirectory,
    IsDirectory,
    NotRegular,
    NotEmpty,
    Outside,
    Loop,
    Denied,
    Invalid,
    NoSpace,
    CrossDevice,
    ReadOnly,
    NotStarted,
    TimedOut,
    Cancelled,
    Io,
}

/// The failed end of a stream, or of a connection.
#[derive(Debug, Serialize)]
pub struct Failure {
    pub code: Code,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub real: Option<ByteBuf>,
    /// Which file of many it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Box<ByteBuf>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            stage: None,
            errno: None,
            real: None,
            path: None,
            size: None,
            total: None,
        }
    }

    /// The same about one file of many.
    #[must_use]
    pub fn about(self, path: &[u8]) -> Self {
        Self {
            path: Some(Box::new(ByteBuf::from(path))),
            ..self
        }
    }

    /// A command that could not be started.
    pub fn not_started(stage: Stage, errno: i32) -> Self {
        let (stage, doing) = match stage {
            Stage::Cwd => ("cwd", "cannot enter the working directory"),
            Stage::Exec => ("exec", "cannot execute the program"),
            Stage::Fork => ("fork", "cannot start a process"),
            Stage::Setup => ("setup", "cannot prepare the process"),
        };
        let reason = std::io::Error::from_raw_os_error(errno);
        Self {
            stage: Some(stage),
            errno: Some(errno),
            ..Self::new(Code::NotStarted, format!("{doing}: {reason}"))
        }
    }

    pub fn no_job(job: u32) -> Self {
        Self::new(Code::NoJob, format!("there is no job {job}"))
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        let code = match errno {
            Errno::NOENT => Code::NotFound,
            Errno::NOTDIR => Code::NotDirectory,
            Errno::ISDIR => Code::IsDirectory,
            Errno::EXIST => Code::Exists,
            Errno::NOTEMPTY => Code::NotEmpty,
            Errno::LOOP => Code::Loop,
            Errno::ACCESS | Errno::PERM => Code::Denied,
            Errno::INVAL | Errno::NAMETOOLONG | Errno::ILSEQ => Code::Invalid,
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Code::NoSpace,
            Errno::XDEV => Code::CrossDevice,
            Errno::ROFS => Code::ReadOnly,
            _ => Code::Io,
        };
        Self {
            errno: Some(errno.raw_os_error()),
            ..Self::new(code, errno.to_string())
        }
    }
}

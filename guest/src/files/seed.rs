//! Filling an empty workspace with the files that it starts from, every byte of them checked against their digest.
//!
//! The input is a row of records: a kind (u8: file 0, executable 1, symbolic link 2, and beside the digest file 3), the length of the path
//! (u16), the size of the content (u64), the path, the content; numbers are big-endian. Files of the kinds 0 and 1 come in the order of
//! their paths. The digest is the one of source bundles: SHA-256 of `["b4-workspace-source-v1",[["path","base64",true|false],…]]`.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{Mode, OFlags, fchmod, mkdirat, openat, symlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use sha2::{Digest, Sha256};

use crate::files::list::{OPEN_FOLDER, for_each_name};
use crate::files::manage::remove_any;
use crate::files::path::{HERE, Root};
use crate::files::respond;
use crate::files::write::write_all;
use crate::messages::{Code, Failure, decode};
use crate::stream::Stream;

const HEADER: usize = 11;
const MAX_PATH: usize = 1_024;
const MAX_TARGET: u64 = 1_024;
const FOLDER_MODE: u32 = 0o755;

#[derive(Deserialize)]
struct SeedRequest {
    digest: ByteBuf,
}

#[derive(Serialize)]
struct SeedAnswer {
    files: u64,
    bytes: u64,
}

/// Removes whatever the workspace holds, then fills it; after a failure it is empty again.
pub fn seed(root: &Root, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    let request: SeedRequest = decode(payload)?;
    empty(root, stream)?;
    match fill(root, &request, stream) {
        Ok(answer) => {
            respond(stream, [], &answer);
            Ok(())
        }
        Err(failure) => {
            // What is left is removed by the next attempt.
            let _ = empty(root, stream);
            Err(failure)
        }
    }
}

fn empty(root: &Root, stream: &Stream) -> Result<(), Failure> {
    let folder = openat(
        &root.fd,
        OsStr::from_bytes(HERE),
        OPEN_FOLDER,
        Mode::empty(),
    )?;
    let mut names = Vec::new();
    for_each_name(&folder, stream, |name| {
        names.push(name.to_vec());
        Ok(())
    })?;
    for name in names {
        remove_any(&folder, OsStr::from_bytes(&name), stream)?;
    }
    Ok(())
}

fn fill(root: &Root, request: &SeedRequest, stream: &Stream) -> Result<SeedAnswer, Failure> {
    let mut input = Input::new(stream);
    let mut folders = Folders::new(root);
    let mut digest = SourceDigest::new();
    let mut answer = SeedAnswer { files: 0, bytes: 0 };
    while let Some(record) = input.record()? {
        let name = folders.enter(&record.path)?;
        let parent = folders.last();
        match record.kind {
            0 | 1 => {
                digest.begin(&record.path);
                let mode = if record.kind == 1 { 0o755 } else { 0o644 };
                write(&mut input, parent, name, mode, record.size, |bytes| {
                    digest.content(bytes);
                })?;
                digest.end(record.kind == 1);
                answer.files += 1;
                answer.bytes += record.size;
            }
            2 if record.size <= MAX_TARGET => {
                let mut target = Vec::new();
                input.content(record.size, |bytes| {
                    target.extend_from_slice(bytes);
                    Ok(())
                })?;
                symlinkat(OsStr::from_bytes(&target), parent, name)?;
            }
            3 => write(&mut input, parent, name, 0o644, record.size, |_| ())?,
            _ => return Err(Failure::new(Code::Protocol, "a record of unknown kind")),
        }
    }
    if digest.finish() == request.digest.as_slice() {
        Ok(answer)
    } else {
        Err(Failure::new(Code::Changed, "the files have another digest"))
    }
}

fn write(
    input: &mut Input,
    parent: BorrowedFd<'_>,
    name: &OsStr,
    mode: u32,
    size: u64,
    mut also: impl FnMut(&[u8]),
) -> Result<(), Failure> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, Mode::from_raw_mode(0o600))?;
    input.content(size, |bytes| {
        also(bytes);
        Ok(write_all(&file, bytes)?)
    })?;
    Ok(fchmod(&file, Mode::from_raw_mode(mode))?)
}

struct Record {
    kind: u8,
    size: u64,
    path: Vec<u8>,
}

/// The request's input, cut into records.
struct Input<'a> {
    stream: &'a Stream,
    piece: Vec<u8>,
    at: usize,
}

impl<'a> Input<'a> {
    fn new(stream: &'a Stream) -> Self {
        Self {
            stream,
            piece: Vec::new(),
            at: 0,
        }
    }

    /// Makes sure that there is something to take; false at the end of the input.
    fn ready(&mut self) -> Result<bool, Failure> {
        while self.at == self.piece.len() {
            if let Some(credit) = self.stream.consume(self.piece.len()) {
                self.stream.outbox.send([credit]);
            }
            self.at = 0;
            self.piece.clear();
            match self.stream.wait_for_input()? {
                Some(piece) => self.piece = piece,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn record(&mut self) -> Result<Option<Record>, Failure> {
        if !self.ready()? {
            return Ok(None);
        }
        let header: [u8; HEADER] = self.exactly(HEADER)?.try_into().map_err(|_| short())?;
        let [kind, high, low, size @ ..] = header;
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > MAX_PATH {
            return Err(Failure::new(
                Code::Protocol,
                "a record with too long a path",
            ));
        }
        Ok(Some(Record {
            kind,
            size: u64::from_be_bytes(size),
            path: self.exactly(length)?,
        }))
    }

    fn exactly(&mut self, size: usize) -> Result<Vec<u8>, Failure> {
        let mut taken = Vec::with_capacity(size);
        self.content(size as u64, |bytes| {
            taken.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(taken)
    }

    /// Hands on the next `size` bytes as they come.
    fn content(
        &mut self,
        mut size: u64,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        while size > 0 {
            if !self.ready()? {
                return Err(short());
            }
            let here = &self.piece[self.at..];
            let part = usize::try_from(size).map_or(here.len(), |size| size.min(here.len()));
            take(&here[..part])?;
            self.at += part;
            size -= part as u64;
        }
        Ok(())
    }
}

fn short() -> Failure {
    Failure::new(Code::Short, "the input ended within a record")
}

/// The open folders from the workspace down to the one that is filled now.
struct Folders<'a> {
    root: &'a Root,
    open: Vec<(Vec<u8>, OwnedFd)>,
}

impl<'a> Folders<'a> {
    fn new(root: &'a Root) -> Self {
        Self {
            root,
            open: Vec::new(),
        }
    }

    fn last(&self) -> BorrowedFd<'_> {
        self.open
            .last()
            .map_or(self.root.fd.as_fd(), |(_, folder)| folder.as_fd())
    }

    /// Makes and opens the folders of `path`; returns its last segment.
    fn enter<'p>(&mut self, path: &'p [u8]) -> Result<&'p OsStr, Failure> {
        let mut segments: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        if segments
            .iter()
            .any(|segment| matches!(*segment, b"" | b"." | b"..") || segment.contains(&0))
        {
            return Err(Failure::new(Code::Invalid, "a path that leads elsewhere"));
        }
        let name = segments.pop().unwrap_or_default();
        let common = self
            .open
            .iter()
            .zip(&segments)
            .take_while(|((name, _), segment)| name == *segment)
            .count();
        self.open.truncate(common);
        for segment in &segments[common..] {
            let parent = self.last();
            let name = OsStr::from_bytes(segment);
            match mkdirat(parent, name, Mode::from_raw_mode(FOLDER_MODE)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            let folder = openat(parent, name, OPEN_FOLDER, Mode::empty())?;
            self.open.push((segment.to_vec(), folder));
        }
        Ok(OsStr::from_bytes(name))
    }
}

/// The digest of a source bundle, without its base64 ever being held.
struct SourceDigest {
    hash: Sha256,
    carried: Vec<u8>,
    encoded: Vec<u8>,
    first: bool,
}

impl SourceDigest {
    fn new() -> Self {
        Self {
            hash: Sha256::new_with_prefix(b"[\"b4-workspace-source-v1\",["),
            carried: Vec::with_capacity(3),
            encoded: Vec::new(),
            first: true,
        }
    }

    fn begin(&mut self, path: &[u8]) {
        self.hash.update(if self.first { "[\"" } else { ",[\"" });
        self.first = false;
        self.hash.update(path);
        self.hash.update("\",\"");
    }

    fn content(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if !self.carried.is_empty() {
            let missing = rest.len().min(3 - self.carried.len());
            self.carried.extend_from_slice(&rest[..missing]);
            rest = &rest[missing..];
            if self.carried.len() < 3 {
                return;
            }
            let group = std::mem::take(&mut self.carried);
            self.encode(&group);
        }
        let whole = rest.len() / 3 * 3;
        self.encode(&rest[..whole]);
        self.carried.extend_from_slice(&rest[whole..]);
    }

    fn encode(&mut self, bytes: &[u8]) {
        self.encoded.resize(bytes.len().div_ceil(3) * 4, 0);
        if let Ok(size) = STANDARD.encode_slice(bytes, &mut self.encoded) {
            self.hash.update(&self.encoded[..size]);
        }
    }

    fn end(&mut self, executable: bool) {
        let group = std::mem::take(&mut self.carried);
        self.encode(&group);
        self.hash
            .update(if executable { "\",true]" } else { "\",false]" });
    }

    fn finish(mut self) -> [u8; 32] {
        self.hash.update("]]");
        self.hash.finalize().into()
    }
}

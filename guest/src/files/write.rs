//! Writing: to a temporary file beside the target, which then takes its place in one step.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, Stat, fchmod, fstat, linkat, openat, renameat,
    renameat_with, unlinkat,
};
use rustix::io::Errno;
use serde::Deserialize;
use serde_bytes::ByteBuf;

use crate::files::entry::{Entry, version};
use crate::files::path::{How, Place, Root};
use crate::files::read::check_regular;
use crate::files::respond;
use crate::messages::{Code, Failure, decode};
use crate::stream::Stream;

const NEW_MODE: u32 = 0o644;
const TRIES: usize = 16;

#[derive(Deserialize)]
struct WriteRequest {
    path: ByteBuf,
    mode: Option<u32>,
    #[serde(default)]
    parents: bool,
    expect: Option<ByteBuf>,
    #[serde(default)]
    create: bool,
    size: Option<u64>,
    #[serde(default)]
    beyond: bool,
}

pub fn write(root: &Root, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    let request: WriteRequest = decode(payload)?;
    let how = How {
        follow: true,
        beyond: request.beyond,
        parents: request.parents,
    };
    let place = root.resolve(&request.path, how)?;
    let present = request.check(&place)?;
    let mut draft = Draft::new(&place)?;
    draft.fill(stream, request.size)?;
    let kept = present.map_or(NEW_MODE, |stat| stat.st_mode & 0o7777);
    fchmod(
        &draft.file,
        Mode::from_raw_mode(request.mode.unwrap_or(kept) & 0o7777),
    )?;
    // Somebody may have written it while the content came.
    let present = request.check(&place)?;
    stream.check_cancelled()?;
    draft.publish(request.create)?;
    let mut entry = Entry::new(&fstat(&draft.file)?);
    entry.created = Some(present.is_none());
    entry.name = Some(ByteBuf::from(place.name.clone()));
    respond(stream, [], &entry);
    Ok(())
}

impl WriteRequest {
    /// What stands at the target, when the request may replace it.
    fn check(&self, place: &Place) -> Result<Option<Stat>, Failure> {
        let present = match place.stat() {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        if let Some(stat) = &present {
            check_regular(stat)?;
            if self.create {
                return Err(Errno::EXIST.into());
            }
        }
        match &self.expect {
            Some(expected) if present.is_none_or(|stat| version(&stat) != *expected) => {
                Err(Failure::new(Code::Changed, "the file is not what it was"))
            }
            _ => Ok(present),
        }
    }
}

/// Writes all of `bytes`.
pub fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(file, bytes))?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// A temporary file; gone again unless it is published.
struct Draft<'a> {
    place: &'a Place,
    name: Option<String>,
    file: OwnedFd,
}

impl<'a> Draft<'a> {
    fn new(place: &'a Place) -> Result<Self, Failure> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let name = random_name()?;
            match openat(&place.parent, &name, flags, Mode::from_raw_mode(0o600)) {
                Ok(file) => {
                    return Ok(Self {
                        place,
                        name: Some(name),
                        file,
                    });
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    fn fill(&mut self, stream: &Stream, expected: Option<u64>) -> Result<(), Failure> {
        let mut size = 0;
        while let Some(bytes) = stream.wait_for_input()? {
            write_all(&self.file, &bytes)?;
            size += bytes.len() as u64;
            if let Some(credit) = stream.consume(bytes.len()) {
                stream.outbox.send([credit]);
            }
        }
        match expected {
            Some(expected) if size != expected => Err(Failure {
                size: Some(size),
                ..Failure::new(Code::Short, format!("{size} bytes came, not {expected}"))
            }),
            _ => Ok(()),
        }
    }

    /// Takes the target's place; with `create`, only where nothing stands.
    fn publish(&mut self, create: bool) -> Result<(), Errno> {
        let Some(name) = &self.name else {
            return Ok(());
        };
        let parent = &self.place.parent;
        let target = self.place.name();
        if create {
            match renameat_with(parent, name, parent, target, RenameFlags::NOREPLACE) {
                // A file system without it: a second name, refused where one stands, then without the first.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    linkat(parent, name, parent, target, AtFlags::empty())?;
                    return Ok(());
                }
                other => other?,
            }
        } else {
            renameat(parent, name, parent, target)?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // Nobody is left to be told.
            let _ = unlinkat(&self.place.parent, OsStr::new(name), AtFlags::empty());
        }
    }
}

fn random_name() -> Result<String, Errno> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".b4-tmp-{:016x}", u64::from_be_bytes(bytes)))
}

//! Reading regular files, whole, in part, or by lines.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::{Errno, pread};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::files::entry::{size, version};
use crate::files::path::{How, Place, Root, kind};
use crate::files::respond;
use crate::frames::{DATA_HEADER, MAX_DATA, OUTPUT};
use crate::messages::{Code, Failure, decode};
use crate::stream::Stream;

const BLOCK: usize = 64 << 10;
/// The most text that one answer about lines holds.
const MAX_TEXT: u64 = 64 << 20;

#[derive(Deserialize)]
struct ReadRequest {
    path: ByteBuf,
    #[serde(default)]
    offset: u64,
    limit: Option<u64>,
    max_size: Option<u64>,
    #[serde(default)]
    beyond: bool,
}

#[derive(Serialize)]
struct ReadAnswer {
    size: u64,
    version: ByteBuf,
    length: u64,
}

#[derive(Deserialize)]
struct LinesRequest {
    path: ByteBuf,
    first: u64,
    last: Option<u64>,
    limit: u64,
    #[serde(default)]
    beyond: bool,
}

#[derive(Serialize)]
struct LinesAnswer {
    first: u64,
    last: u64,
    total: u64,
    size: u64,
    version: ByteBuf,
}

pub fn read(root: &Root, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    let request: ReadRequest = decode(payload)?;
    let place = root.resolve(
        &request.path,
        How {
            follow: true,
            beyond: request.beyond,
            ..How::default()
        },
    )?;
    let (file, stat) = open_regular(&place)?;
    let whole = size(&stat);
    let bound = request.max_size.unwrap_or(u64::MAX);
    if whole > bound {
        return Err(too_large(whole));
    }
    // A file that says it is empty may be one that the kernel makes up while it is read.
    let end = if whole == 0 {
        bound.saturating_add(1)
    } else {
        whole
    };
    let end = request
        .limit
        .map_or(end, |limit| end.min(request.offset.saturating_add(limit)));
    let mut at = request.offset;
    let mut held = None;
    while at < end {
        if !stream.outbox.wait_for_room() {
            return Err(crate::stream::cancelled());
        }
        let granted = stream.wait_for_credit(OUTPUT)?.min(MAX_DATA);
        let mut buffer = stream
            .outbox
            .buffer(granted.min(usize::try_from(end - at).unwrap_or(granted)));
        let wanted = granted.min(usize::try_from(end - at).unwrap_or(granted));
        buffer.resize(DATA_HEADER + wanted, 0);
        let got = rustix::io::retry_on_intr(|| pread(&file, &mut buffer[DATA_HEADER..], at))?;
        if got == 0 {
            break;
        }
        buffer.truncate(DATA_HEADER + got);
        at += got as u64;
        if whole == 0 && at > bound {
            return Err(too_large(at));
        }
        let frame = stream.data(OUTPUT, buffer);
        stream.outbox.send(held.replace(frame));
    }
    let length = at.saturating_sub(request.offset);
    respond(
        stream,
        held,
        &ReadAnswer {
            size: whole,
            version: version(&stat),
            length,
        },
    );
    Ok(())
}

pub fn lines(root: &Root, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    let request: LinesRequest = decode(payload)?;
    let last = request.last.unwrap_or(u64::MAX);
    if request.first == 0 || last < request.first {
        return Err(Failure::new(
            Code::BadRange,
            "lines count from 1, and the last is not before the first",
        ));
    }
    let place = root.resolve(
        &request.path,
        How {
            follow: true,
            beyond: request.beyond,
            ..How::default()
        },
    )?;
    let (file, stat) = open_regular(&place)?;
    let mut wanted = Lines {
        first: request.first,
        last,
        line: 1,
        open: false,
        text: Vec::new(),
        limit: request.limit.min(MAX_TEXT),
    };
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    loop {
        stream.check_cancelled()?;
        let got = rustix::io::retry_on_intr(|| pread(&file, &mut block, at))?;
        if got == 0 {
            break;
        }
        at += got as u64;
        if !wanted.take(&block[..got]) {
            return Err(too_large(size(&stat)));
        }
    }
    let total = wanted.total();
    if request.first > total {
        return Err(Failure {
            total: Some(total),
            ..Failure::new(Code::BadRange, format!("the file has {total} lines"))
        });
    }
    send_bytes(stream, &wanted.text)?;
    let answer = LinesAnswer {
        first: request.first,
        last: last.min(total),
        total,
        size: size(&stat),
        version: version(&stat),
    };
    respond(stream, [], &answer);
    Ok(())
}

/// Sends bytes as the host has room for them.
pub fn send_bytes(stream: &Stream, mut bytes: &[u8]) -> Result<(), Failure> {
    while !bytes.is_empty() {
        if !stream.outbox.wait_for_room() {
            return Err(crate::stream::cancelled());
        }
        let size = stream
            .wait_for_credit(OUTPUT)?
            .min(MAX_DATA)
            .min(bytes.len());
        let mut buffer = stream.outbox.buffer(size);
        buffer.extend_from_slice(&bytes[..size]);
        let frame = stream.data(OUTPUT, buffer);
        stream.outbox.send([frame]);
        bytes = &bytes[size..];
    }
    Ok(())
}

/// Picks lines out of blocks that may cut them anywhere.
struct Lines {
    first: u64,
    last: u64,
    /// The line that the next byte belongs to.
    line: u64,
    /// It has bytes already.
    open: bool,
    text: Vec<u8>,
    limit: u64,
}

impl Lines {
    /// False when the text grows over its limit.
    fn take(&mut self, mut block: &[u8]) -> bool {
        while !block.is_empty() && self.line <= self.last {
            let end = block.iter().position(|byte| *byte == b'\n');
            let (piece, rest) = block.split_at(end.map_or(block.len(), |end| end + 1));
            if self.line >= self.first {
                if (self.text.len() + piece.len()) as u64 > self.limit {
                    return false;
                }
                self.text.extend_from_slice(piece);
            }
            self.open = end.is_none();
            self.line += u64::from(end.is_some());
            block = rest;
        }
        if let Some(final_byte) = block.last() {
            self.line += block.iter().filter(|byte| **byte == b'\n').count() as u64;
            self.open = *final_byte != b'\n';
        }
        true
    }

    fn total(&self) -> u64 {
        self.line - 1 + u64::from(self.open)
    }
}

/// Opens what stands there when it is a regular file; nothing else is opened, and nothing blocks.
pub fn open_regular(place: &Place) -> Result<(OwnedFd, Stat), Failure> {
    check_regular(&place.stat()?)?;
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file =
        openat(&place.parent, place.name(), flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP => swapped(),
            other => other.into(),
        })?;
    let stat = fstat(&file)?;
    check_regular(&stat)?;
    Ok((file, stat))
}

pub fn check_regular(stat: &Stat) -> Result<(), Failure> {
    match kind(stat) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Errno::ISDIR.into()),
        FileType::Symlink => Err(swapped()),
        _ => Err(Failure::new(Code::NotRegular, "it is no regular file")),
    }
}

/// Links were followed before: one that stands here now came in between.
fn swapped() -> Failure {
    Failure::new(Code::Changed, "it was replaced by a link in this moment")
}

fn too_large(size: u64) -> Failure {
    Failure {
        size: Some(size),
        ..Failure::new(Code::TooLarge, "it is larger than asked for")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(text: &[u8], first: u64, last: u64, block: usize) -> (Vec<u8>, u64) {
        let mut lines = Lines {
            first,
            last,
            line: 1,
            open: false,
            text: Vec::new(),
            limit: u64::MAX,
        };
        for block in text.chunks(block) {
            assert!(lines.take(block));
        }
        let total = lines.total();
        (lines.text, total)
    }

    #[test]
    fn lines_are_the_same_however_they_are_cut() {
        let text = b"one\ntwo\r\n\nfour";
        for block in 1..=text.len() {
            assert_eq!(pick(text, 2, 3, block), (b"two\r\n\n".to_vec(), 4));
            assert_eq!(pick(text, 4, u64::MAX, block), (b"four".to_vec(), 4));
            assert_eq!(pick(text, 1, 1, block), (b"one\n".to_vec(), 4));
            assert_eq!(pick(b"a\nb\n", 9, 9, block), (Vec::new(), 2));
        }
        assert_eq!(pick(b"", 1, 1, 1), (Vec::new(), 0));
    }

    #[test]
    fn text_over_the_limit_is_refused() {
        let mut lines = Lines {
            first: 1,
            last: 9,
            line: 1,
            open: false,
            text: Vec::new(),
            limit: 4,
        };
        assert!(lines.take(b"ab\n"));
        assert!(!lines.take(b"cd\n"));
    }
}

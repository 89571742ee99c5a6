//! Whole trees: what is below a folder, and what its files hold, in one answer.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::{Errno, pread};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::files::entry::{Entry, version};
use crate::files::list::{OPEN_FOLDER, Pages, look_again, open_folder, sorted_names};
use crate::files::path::{How, Root, kind};
use crate::files::read::send_bytes;
use crate::files::respond;
use crate::messages::{Code, Failure, decode};
use crate::stream::Stream;

/// Each level of a walk holds a descriptor.
pub const MAX_DEPTH: usize = 900;
const MAX_WALKED: usize = 1_000_000;
/// Small files travel together up to this size.
const GATHERED: usize = 256 << 10;

#[derive(Deserialize)]
struct WalkRequest {
    path: ByteBuf,
    limit: usize,
    #[serde(default)]
    exclude: Vec<ByteBuf>,
    #[serde(default)]
    beyond: bool,
}

#[derive(Serialize)]
struct WalkAnswer {
    count: usize,
}

#[derive(Deserialize)]
struct TreeRequest {
    path: ByteBuf,
    limit: usize,
    /// Names in the start that are listed and not gone into.
    #[serde(default)]
    skip: Vec<ByteBuf>,
    max_file: u64,
    max_total: u64,
}

#[derive(Serialize)]
struct TreeAnswer {
    count: usize,
    length: u64,
}

/// Lists everything below a folder; what goes meanwhile is left out.
pub fn walk(root: &Root, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    let request: WalkRequest = decode(payload)?;
    let how = How {
        follow: true,
        beyond: request.beyond,
        ..How::default()
    };
    let start = open_folder(&root.resolve(&request.path, how)?)?;
    let mut pages = Pages::new(stream);
    let limit = request.limit.min(MAX_WALKED);
    let mut walk = Walk::new(start, stream, limit, false)?;
    walk.forget(&request.exclude);
    walk.run(|found| pages.add(found.entry).map(|()| true))?;
    let (count, held) = pages.finish();
    respond(stream, held, &WalkAnswer { count });
    Ok(())
}

/// Lists everything below a folder and sends what the regular files hold, in the same order. Anything that changes meanwhile is a failure.
pub fn tree(root: &Root, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    let request: TreeRequest = decode(payload)?;
    let how = How {
        follow: true,
        ..How::default()
    };
    let start = open_folder(&root.resolve(&request.path, how)?)?;
    let mut pages = Pages::new(stream);
    let mut contents = Contents {
        stream,
        gathered: Vec::new(),
        length: 0,
        max_file: request.max_file,
        max_total: request.max_total,
    };
    let limit = request.limit.min(MAX_WALKED);
    Walk::new(start, stream, limit, true)?.run(|found| {
        let skipped = found.at_start && request.skip.iter().any(|name| name == found.name);
        if found.entry.kind == "file" {
            contents
                .add(found.folder, found.name, &found.entry)
                .map_err(|failure| failure.about(&found.path))?;
        }
        pages.add(found.entry).map(|()| !skipped)
    })?;
    contents.send()?;
    let (count, held) = pages.finish();
    let length = contents.length;
    respond(stream, held, &TreeAnswer { count, length });
    Ok(())
}

/// A walk depth first, in byte order of the names, that follows no link.
struct Walk<'a> {
    stream: &'a Stream,
    limit: usize,
    /// What changes under the walk is a failure.
    strict: bool,
    levels: Vec<Level>,
}

/// A folder on the way down.
struct Level {
    folder: OwnedFd,
    /// What is still to be looked at, the next name last.
    names: Vec<Vec<u8>>,
    /// With a slash at its end, unless it is the start.
    path: Vec<u8>,
}

/// One entry of a walk.
struct Found<'a> {
    folder: &'a OwnedFd,
    name: &'a [u8],
    path: Vec<u8>,
    at_start: bool,
    entry: Entry,
}

impl<'a> Walk<'a> {
    fn new(
        start: OwnedFd,
        stream: &'a Stream,
        limit: usize,
        strict: bool,
    ) -> Result<Self, Failure> {
        let names = sorted_names(&start, stream, limit)?;
        let start = Level {
            folder: start,
            names,
            path: Vec::new(),
        };
        Ok(Self {
            stream,
            limit,
            strict,
            levels: vec![start],
        })
    }

    /// Leaves names in the start out.
    fn forget(&mut self, names: &[ByteBuf]) {
        self.levels[0]
            .names
            .retain(|name| !names.iter().any(|forgotten| forgotten == name));
    }

    /// Hands every entry to `visit`, which says whether to go into it if it is a folder.
    fn run(
        mut self,
        mut visit: impl FnMut(Found<'_>) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let mut count = 0;
        while let Some(level) = self.levels.last_mut() {
            let Some(name) = level.names.pop() else {
                self.levels.pop();
                continue;
            };
            let mut path = level.path.clone();
            path.extend_from_slice(&name);
            let Some(mut entry) = look_again(&level.folder, &name)? else {
                self.gone(&path)?;
                continue;
            };
            if count >= self.limit {
                return Err(Failure::new(
                    Code::TooMany,
                    format!("there are more than {} entries", self.limit),
                ));
            }
            count += 1;
            let is_folder = entry.kind == "directory";
            let seen = entry.version.clone();
            entry.path = Some(ByteBuf::from(path.clone()));
            let found = Found {
                folder: &level.folder,
                name: &name,
                path: path.clone(),
                at_start: level.path.is_empty(),
                entry,
            };
            if visit(found)? && is_folder {
                self.enter(&name, path, &seen)?;
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: &[u8], mut path: Vec<u8>, seen: &ByteBuf) -> Result<(), Failure> {
        if self.levels.len() >= MAX_DEPTH {
            return Err(Failure::new(
                Code::TooMany,
                format!("folders are nested more than {MAX_DEPTH} deep"),
            ));
        }
        // There is a level: the entry came from its names.
        let parent = &self.levels[self.levels.len() - 1].folder;
        let folder = match openat(parent, OsStr::from_bytes(name), OPEN_FOLDER, Mode::empty()) {
            Ok(folder) => folder,
            // It is no folder any more.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return self.gone(&path),
            Err(errno) => return Err(Failure::from(errno).about(&path)),
        };
        let names = sorted_names(&folder, self.stream, self.limit)?;
        if self.strict && version(&fstat(&folder)?) != *seen {
            return self.gone(&path);
        }
        path.push(b'/');
        self.levels.push(Level {
            folder,
            names,
            path,
        });
        Ok(())
    }

    fn gone(&self, path: &[u8]) -> Result<(), Failure> {
        if self.strict {
            return Err(changed().about(path));
        }
        Ok(())
    }
}

/// What the files hold, gathered on its way to the host.
struct Contents<'a> {
    stream: &'a Stream,
    gathered: Vec<u8>,
    length: u64,
    max_file: u64,
    max_total: u64,
}

impl Contents<'_> {
    fn add(&mut self, folder: &OwnedFd, name: &[u8], entry: &Entry) -> Result<(), Failure> {
        if entry.size > self.max_file || entry.size > self.max_total - self.length {
            return Err(Failure {
                size: Some(entry.size),
                ..Failure::new(Code::TooLarge, "it is larger than asked for")
            });
        }
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match openat(folder, OsStr::from_bytes(name), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Err(changed()),
            Err(errno) => return Err(errno.into()),
        };
        let same = || -> Result<bool, Errno> {
            let stat = fstat(&file)?;
            Ok(kind(&stat) == FileType::RegularFile && version(&stat) == entry.version)
        };
        if !same()? {
            return Err(changed());
        }
        let mut at = 0;
        while at < entry.size {
            let room = GATHERED - self.gathered.len();
            let wanted = room.min(usize::try_from(entry.size - at).unwrap_or(room));
            let start = self.gathered.len();
            self.gathered.resize(start + wanted, 0);
            let got = rustix::io::retry_on_intr(|| pread(&file, &mut self.gathered[start..], at))?;
            self.gathered.truncate(start + got);
            if got == 0 {
                return Err(changed());
            }
            at += got as u64;
            if self.gathered.len() == GATHERED {
                self.send()?;
            }
        }
        self.length += entry.size;
        if same()? { Ok(()) } else { Err(changed()) }
    }

    fn send(&mut self) -> Result<(), Failure> {
        send_bytes(self.stream, &self.gathered)?;
        self.gathered.clear();
        Ok(())
    }
}

fn changed() -> Failure {
    Failure::new(Code::Changed, "it changed while it was read")
}

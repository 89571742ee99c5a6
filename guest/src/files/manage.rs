//! Folders, removal, renaming.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, FileType, Mode, RenameFlags, chmodat, linkat, mkdirat, openat, renameat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::files::list::{OPEN_FOLDER, for_each_name};
use crate::files::path::{How, Root, kind};
use crate::files::respond;
use crate::files::tree::MAX_DEPTH;
use crate::messages::{Code, Failure, Nothing, decode};
use crate::stream::Stream;

const NEW_MODE: u32 = 0o755;

#[derive(Deserialize)]
struct MkdirRequest {
    path: ByteBuf,
    #[serde(default)]
    parents: bool,
    mode: Option<u32>,
}

#[derive(Serialize)]
struct MkdirAnswer {
    created: bool,
}

#[derive(Deserialize)]
struct RemoveRequest {
    path: ByteBuf,
    #[serde(default)]
    recursive: bool,
}

#[derive(Serialize)]
struct RemoveAnswer {
    removed: u64,
}

#[derive(Deserialize)]
struct RenameRequest {
    from: ByteBuf,
    to: ByteBuf,
    replace: Option<bool>,
}

pub fn mkdir(root: &Root, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    let request: MkdirRequest = decode(payload)?;
    let how = How {
        parents: request.parents,
        ..How::default()
    };
    let place = root.resolve(&request.path, how)?;
    let mode = Mode::from_raw_mode(request.mode.unwrap_or(NEW_MODE) & 0o7777);
    let created = match mkdirat(&place.parent, place.name(), mode) {
        Ok(()) => {
            chmodat(&place.parent, place.name(), mode, AtFlags::empty())?;
            true
        }
        Err(Errno::EXIST) if request.parents && leads_to_folder(root, &request.path)? => false,
        Err(errno) => return Err(errno.into()),
    };
    respond(stream, [], &MkdirAnswer { created });
    Ok(())
}

/// Whether a path is a directory, or a link to one within the workspace.
fn leads_to_folder(root: &Root, path: &[u8]) -> Result<bool, Failure> {
    let follow = How {
        follow: true,
        ..How::default()
    };
    match root.resolve(path, follow)?.stat() {
        Ok(stat) => Ok(kind(&stat) == FileType::Directory),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

pub fn remove(root: &Root, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    let request: RemoveRequest = decode(payload)?;
    let place = root.resolve(&request.path, How::default())?;
    if place.is_start() {
        return Err(Failure::new(Code::Invalid, "the workspace itself stays"));
    }
    let removed = if request.recursive {
        remove_any(&place.parent, place.name(), stream)?
    } else if kind(&place.stat()?) != FileType::Directory {
        unlinkat(&place.parent, place.name(), AtFlags::empty())?;
        1
    } else {
        unlinkat(&place.parent, place.name(), AtFlags::REMOVEDIR)?;
        1
    };
    respond(stream, [], &RemoveAnswer { removed });
    Ok(())
}

/// Removes what stands there, with everything beneath; returns how much that was.
pub fn remove_any(parent: &OwnedFd, name: &OsStr, stream: &Stream) -> Result<u64, Failure> {
    if kind(&statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?) == FileType::Directory {
        return remove_tree(parent, name, stream);
    }
    unlinkat(parent, name, AtFlags::empty())?;
    Ok(1)
}

/// A folder that is being emptied.
struct Emptying {
    folder: OwnedFd,
    name: Vec<u8>,
    left: Vec<Vec<u8>>,
}

fn remove_tree(parent: &OwnedFd, name: &OsStr, stream: &Stream) -> Result<u64, Failure> {
    let mut removed = 0;
    let mut levels = vec![enter(parent, name.as_bytes(), stream)?];
    loop {
        let depth = levels.len();
        let Some(level) = levels.last_mut() else {
            return Ok(removed);
        };
        if let Some(name) = level.left.pop() {
            stream.check_cancelled()?;
            let path = OsStr::from_bytes(&name);
            if kind(&statat(&level.folder, path, AtFlags::SYMLINK_NOFOLLOW)?) == FileType::Directory
            {
                if depth >= MAX_DEPTH {
                    return Err(Failure::new(
                        Code::TooMany,
                        format!("folders are nested more than {MAX_DEPTH} deep"),
                    ));
                }
                let deeper = enter(&level.folder, &name, stream)?;
                levels.push(deeper);
            } else {
                unlinkat(&level.folder, path, AtFlags::empty())?;
                removed += 1;
            }
        } else if let Some(empty) = levels.pop() {
            let above = levels
                .last()
                .map_or(parent.as_fd(), |level| level.folder.as_fd());
            unlinkat(above, OsStr::from_bytes(&empty.name), AtFlags::REMOVEDIR)?;
            removed += 1;
        }
    }
}

fn enter(parent: &OwnedFd, name: &[u8], stream: &Stream) -> Result<Emptying, Failure> {
    let path = OsStr::from_bytes(name);
    let folder = match openat(parent, path, OPEN_FOLDER, Mode::empty()) {
        // Its owner may open it up first.
        Err(Errno::ACCESS) => {
            chmodat(parent, path, Mode::RWXU, AtFlags::empty())?;
            openat(parent, path, OPEN_FOLDER, Mode::empty())?
        }
        other => other?,
    };
    let mut left = Vec::new();
    for_each_name(&folder, stream, |name| {
        left.push(name.to_vec());
        Ok(())
    })?;
    if !left.is_empty() {
        // Best effort: a folder that may not be written to is told by the first removal.
        let _ = rustix::fs::fchmod(&folder, Mode::RWXU);
    }
    Ok(Emptying {
        folder,
        name: name.to_vec(),
        left,
    })
}

pub fn rename(root: &Root, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    let request: RenameRequest = decode(payload)?;
    let from = root.resolve(&request.from, How::default())?;
    let to = root.resolve(&request.to, How::default())?;
    if from.is_start() || to.is_start() {
        return Err(Failure::new(Code::Invalid, "the workspace itself stays"));
    }
    if request.replace.unwrap_or(true) {
        renameat(&from.parent, from.name(), &to.parent, to.name())?;
    } else {
        match renameat_with(
            &from.parent,
            from.name(),
            &to.parent,
            to.name(),
            RenameFlags::NOREPLACE,
        ) {
            // A file system without it: a second name, refused where one stands, then without the first.
            Err(Errno::INVAL | Errno::NOSYS) if kind(&from.stat()?) != FileType::Directory => {
                linkat(
                    &from.parent,
                    from.name(),
                    &to.parent,
                    to.name(),
                    AtFlags::empty(),
                )?;
                unlinkat(&from.parent, from.name(), AtFlags::empty())?;
            }
            other => other?,
        }
    }
    respond(stream, [], &Nothing {});
    Ok(())
}

//! A resolution segment by segment, without following links on its own: each is read and resolved here.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::OFlags;
use rustix::fs::{AtFlags, CWD, FileType, Mode, mkdirat, openat, readlinkat, statat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::files::path::{FOLDER, HERE, How, MAX_TRIES, Place, Root, kind};
use crate::messages::{Code, Failure};

const MAX_LINKS: usize = 40;

/// A resolution segment by segment.
pub struct Walk<'a> {
    /// The workspace that must not be left; nothing for the whole file system.
    confine: Option<&'a Root>,
    how: How,
    /// Symlinks are followed although the walk is not confined.
    pub any_link: bool,
    /// What does not exist is taken as it stands.
    pub tolerant: bool,
    start: OwnedFd,
    /// The folders entered so far, with their names.
    entered: Vec<(Vec<u8>, OwnedFd)>,
    /// Segments to come, the next one last.
    todo: Vec<Vec<u8>>,
    links: usize,
    tries: usize,
}

enum Step {
    Entered,
    Arrived(Vec<u8>),
}

impl<'a> Walk<'a> {
    pub fn new(path: &[u8], confine: Option<&'a Root>, how: How) -> Result<Self, Errno> {
        let start = match confine {
            Some(root) => fcntl_dupfd_cloexec(&root.fd, 3)?,
            None => openat(CWD, "/", FOLDER, Mode::empty())?,
        };
        let todo = segments(path);
        Ok(Self {
            confine,
            how,
            any_link: false,
            tolerant: false,
            start,
            entered: Vec::new(),
            todo,
            links: 0,
            tries: 0,
        })
    }

    pub fn run(mut self) -> Result<Place, Failure> {
        while let Some(segment) = self.todo.pop() {
            if let Step::Arrived(name) = self.step(segment)? {
                let parent = self.entered.pop().map_or(self.start, |(_, fd)| fd);
                return Ok(Place { parent, name });
            }
        }
        // The path names a folder that was entered: act on it by its parent, where it has one.
        match self.entered.pop() {
            Some((name, _)) => Ok(Place {
                parent: self.entered.pop().map_or(self.start, |(_, fd)| fd),
                name,
            }),
            None => Ok(Place {
                parent: self.start,
                name: HERE.to_vec(),
            }),
        }
    }

    /// The canonical path, and whether something is there.
    pub fn real(mut self) -> Result<(Vec<u8>, bool), Failure> {
        let mut rest = Vec::new();
        let mut exists = true;
        while let Some(segment) = self.todo.pop() {
            if let Step::Arrived(name) = self.step(segment)? {
                exists = statat(
                    self.folder(),
                    OsStr::from_bytes(&name),
                    AtFlags::SYMLINK_NOFOLLOW,
                )
                .is_ok();
                rest.push(name);
                for segment in self.todo.drain(..).rev() {
                    match segment.as_slice() {
                        b"." => {}
                        b".." => drop(rest.pop()),
                        _ => rest.push(segment),
                    }
                }
            }
        }
        let names = self.entered.into_iter().map(|(name, _)| name).chain(rest);
        let path = names
            .flat_map(|name| [&b"/"[..], &name].concat())
            .collect::<Vec<u8>>();
        Ok((if path.is_empty() { b"/".to_vec() } else { path }, exists))
    }

    fn folder(&self) -> BorrowedFd<'_> {
        self.entered
            .last()
            .map_or(self.start.as_fd(), |(_, fd)| fd.as_fd())
    }

    fn step(&mut self, segment: Vec<u8>) -> Result<Step, Failure> {
        match segment.as_slice() {
            b"." => return Ok(Step::Entered),
            b".." => {
                if self.entered.pop().is_none() && self.confine.is_some() {
                    return Err(Failure::new(Code::Outside, "the path leaves the workspace"));
                }
                return Ok(Step::Entered);
            }
            _ => {}
        }
        let last = self.todo.is_empty();
        let name = OsStr::from_bytes(&segment);
        let found = match statat(self.folder(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => kind(&stat),
            Err(Errno::NOENT) if last || self.tolerant => return Ok(Step::Arrived(segment)),
            Err(Errno::NOENT) if self.how.parents => {
                match mkdirat(self.folder(), name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => FileType::Directory,
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(errno) => return Err(errno.into()),
        };
        match found {
            FileType::Symlink if last && !self.how.follow => Ok(Step::Arrived(segment)),
            FileType::Symlink => self.follow(&segment).map(|()| Step::Entered),
            FileType::Directory => self.enter(segment).map(|()| Step::Entered),
            _ if last || self.tolerant => Ok(Step::Arrived(segment)),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    fn enter(&mut self, segment: Vec<u8>) -> Result<(), Failure> {
        match openat(
            self.folder(),
            OsStr::from_bytes(&segment),
            FOLDER | OFlags::NOFOLLOW,
            Mode::empty(),
        ) {
            Ok(fd) => self.entered.push((segment, fd)),
            // It was swapped between the look and the opening: look again.
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT) if self.tries < MAX_TRIES => {
                self.tries += 1;
                self.todo.push(segment);
            }
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    fn follow(&mut self, segment: &[u8]) -> Result<(), Failure> {
        self.links += 1;
        if self.links > MAX_LINKS || (self.confine.is_none() && !self.any_link) {
            return Err(Errno::LOOP.into());
        }
        let target =
            readlinkat(self.folder(), OsStr::from_bytes(segment), Vec::new())?.into_bytes();
        let mut path = target.as_slice();
        if target.starts_with(b"/") {
            if let Some(root) = self.confine {
                path = root
                    .relative(&target)
                    .ok_or_else(|| Failure::new(Code::Outside, "the path leaves the workspace"))?;
            }
            self.entered.clear();
        }
        self.todo.append(&mut segments(path));
        Ok(())
    }
}

/// The segments of a path, the first one last.
fn segments(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|segment| !segment.is_empty())
        .rev()
        .map(<[u8]>::to_vec)
        .collect()
}

//! From a path to a folder descriptor and a name in it, never leaving the workspace.
//!
//! The kernel resolves most paths (`openat2`, `RESOLVE_BENEATH`). What it refuses without need, such as an absolute symlink that
//! points back inside, and everything where it has no `openat2`, is walked here: one segment at a time, each opened without
//! following links, links read and resolved by this code. Either way the result is a descriptor, so that nothing swapped
//! afterwards can lead elsewhere.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, statat,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use serde_bytes::ByteBuf;

use crate::files::walk::Walk;
use crate::messages::{Code, Failure};
use crate::sys::Stage;

const MAX_PATH: usize = 4096;
/// How often a resolution that raced with a rename is tried again.
pub const MAX_TRIES: usize = 32;
pub const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
pub const HERE: &[u8] = b".";

/// The workspace.
pub struct Root {
    pub fd: OwnedFd,
    /// Canonical and absolute.
    pub path: Vec<u8>,
    openat2: bool,
}

/// How a path is to be understood.
#[derive(Clone, Copy, Default)]
pub struct How {
    /// A final symlink is followed.
    pub follow: bool,
    /// The path lies anywhere in the sandbox and holds no symlink.
    pub beyond: bool,
    /// Missing parents are made.
    pub parents: bool,
}

/// An entry by its parent: what every operation acts on.
#[derive(Debug)]
pub struct Place {
    pub parent: OwnedFd,
    /// One segment; `.` where the path names the folder that `parent` is.
    pub name: Vec<u8>,
}

impl Place {
    /// What stands there now, a symlink itself included.
    pub fn stat(&self) -> Result<Stat, Errno> {
        statat(
            &self.parent,
            OsStr::from_bytes(&self.name),
            AtFlags::SYMLINK_NOFOLLOW,
        )
    }

    pub fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.name)
    }

    /// It is the start of the resolution, which cannot be replaced or removed.
    pub fn is_start(&self) -> bool {
        self.name == HERE
    }
}

/// Where a path leads.
pub struct Real {
    pub path: Vec<u8>,
    pub exists: bool,
    pub inside: bool,
}

impl Root {
    pub fn open(path: &OsStr, without_openat2: bool) -> Result<Self, Errno> {
        let fd = openat(CWD, path, FOLDER, Mode::empty())?;
        let fd = fcntl_dupfd_cloexec(fd, 3)?;
        let path = std::fs::canonicalize(path)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let openat2 = !without_openat2 && beneath(&fd, HERE, FOLDER).is_ok();
        Ok(Self {
            fd,
            path: path.as_os_str().as_bytes().to_vec(),
            openat2,
        })
    }

    pub fn has_openat2(&self) -> bool {
        self.openat2
    }

    /// The folder at `path`, as the working directory of a command.
    pub fn directory(&self, path: &[u8]) -> Result<OwnedFd, Failure> {
        let cannot = |failure: Failure| match failure.errno {
            Some(errno) if failure.code != Code::Outside => Failure::not_started(Stage::Cwd, errno),
            _ => failure,
        };
        let place = self
            .resolve(
                path,
                How {
                    follow: true,
                    ..How::default()
                },
            )
            .map_err(cannot)?;
        let fd = openat(
            &place.parent,
            place.name(),
            FOLDER | OFlags::NOFOLLOW,
            Mode::empty(),
        )
        .map_err(|errno| cannot(errno.into()))?;
        Ok(fcntl_dupfd_cloexec(fd, 3)?)
    }

    /// Finds the place of `path`. Its parent exists; whether it does itself is for the caller to see.
    pub fn resolve(&self, path: &[u8], how: How) -> Result<Place, Failure> {
        check(path)?;
        if how.beyond {
            let absolute = self.absolute(path);
            let place = Walk::new(&absolute, None, how)?.run()?;
            return as_folder(place, path);
        }
        let Some(relative) = self.relative(path) else {
            return Err(self.outside(path));
        };
        if self.openat2
            && let Some(place) = self.resolve_in_kernel(relative, how)
        {
            return as_folder(place, path);
        }
        match Walk::new(relative, Some(self), how)?.run() {
            Err(failure) if failure.code == Code::Outside => Err(self.outside(path)),
            place => as_folder(place?, path),
        }
    }

    /// The common case: the kernel opens the parent, and the last segment is a plain name that is no symlink to follow.
    fn resolve_in_kernel(&self, relative: &[u8], how: How) -> Option<Place> {
        let trimmed = trim(relative);
        let (parent, name) = match trimmed.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&trimmed[..at], &trimmed[at + 1..]),
            None => (HERE, trimmed),
        };
        if matches!(name, b"" | b"." | b"..") {
            return None;
        }
        let place = Place {
            parent: beneath(&self.fd, parent, FOLDER).ok()?,
            name: name.to_vec(),
        };
        let follow = how.follow || trimmed.len() < relative.len();
        let link = follow
            && place
                .stat()
                .is_ok_and(|stat| kind(&stat) == FileType::Symlink);
        (!link).then_some(place)
    }

    /// Where `path` leads in the sandbox's own file system.
    pub fn real(&self, path: &[u8]) -> Result<Real, Failure> {
        check(path)?;
        let absolute = self.absolute(path);
        let mut walk = Walk::new(
            &absolute,
            None,
            How {
                follow: true,
                ..How::default()
            },
        )?;
        walk.tolerant = true;
        walk.any_link = true;
        let (path, exists) = walk.real()?;
        let inside = self.relative(&path).is_some();
        Ok(Real {
            path,
            exists,
            inside,
        })
    }

    fn absolute(&self, path: &[u8]) -> Vec<u8> {
        if path.starts_with(b"/") {
            path.to_vec()
        } else {
            [&self.path, &b"/"[..], path].concat()
        }
    }

    /// The part of `path` below the workspace; nothing for an absolute path elsewhere.
    pub fn relative<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        if !path.starts_with(b"/") {
            return Some(path);
        }
        let mut segments = path
            .split(|byte| *byte == b'/')
            .filter(|segment| !matches!(*segment, b"" | b"."));
        for wanted in self
            .path
            .split(|byte| *byte == b'/')
            .filter(|segment| !segment.is_empty())
        {
            if segments.next() != Some(wanted) {
                return None;
            }
        }
        let rest = segments.next().map_or(path.len(), |segment| {
            segment.as_ptr().addr() - path.as_ptr().addr()
        });
        Some(if rest == path.len() {
            HERE
        } else {
            &path[rest..]
        })
    }

    fn outside(&self, path: &[u8]) -> Failure {
        let real = self.real(path).ok().map(|real| ByteBuf::from(real.path));
        Failure {
            real,
            ..Failure::new(Code::Outside, "the path leaves the workspace")
        }
    }
}

/// Opens `path` below `fd` by the kernel's own rules.
fn beneath(fd: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let rules = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let path = if path.is_empty() { HERE } else { path };
    for _ in 0..MAX_TRIES {
        match openat2(fd, OsStr::from_bytes(path), flags, Mode::empty(), rules) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

fn check(path: &[u8]) -> Result<(), Failure> {
    if path.is_empty() || path.len() > MAX_PATH || path.contains(&0) {
        return Err(Failure::new(
            Code::Invalid,
            "a path is 1 to 4,096 bytes without NUL",
        ));
    }
    Ok(())
}

fn trim(mut path: &[u8]) -> &[u8] {
    while let Some(rest) = path.strip_suffix(b"/") {
        path = rest;
    }
    path
}

/// A path that ends with a slash names a folder or nothing.
fn as_folder(place: Place, path: &[u8]) -> Result<Place, Failure> {
    if path.ends_with(b"/")
        && place
            .stat()
            .is_ok_and(|stat| kind(&stat) != FileType::Directory)
    {
        return Err(Errno::NOTDIR.into());
    }
    Ok(place)
}

pub fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

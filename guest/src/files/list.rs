//! Looking: one entry, one folder.

use std::collections::BinaryHeap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::files::entry::Entry;
use crate::files::path::{How, Place, Root};
use crate::files::respond;
use crate::messages::{Code, Failure, decode};
use crate::stream::Stream;

pub const OPEN_FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const MAX_PAGE: usize = 480 << 10;
const DEFAULT_LISTED: usize = 10_000;
const MAX_LISTED: usize = 100_000;
/// Names looked at between two looks whether the request was cancelled.
const BREATH: usize = 1_024;

#[derive(Deserialize)]
struct StatRequest {
    path: ByteBuf,
    follow: Option<bool>,
    #[serde(default)]
    beyond: bool,
}

#[derive(Deserialize)]
struct RealRequest {
    path: ByteBuf,
}

#[derive(Serialize)]
struct RealAnswer {
    real: ByteBuf,
    exists: bool,
    inside: bool,
}

#[derive(Deserialize)]
struct ListRequest {
    path: ByteBuf,
    after: Option<ByteBuf>,
    limit: Option<usize>,
    #[serde(default)]
    names: bool,
    #[serde(default)]
    beyond: bool,
}

#[derive(Serialize)]
struct ListAnswer {
    count: usize,
    more: bool,
}

pub fn stat(root: &Root, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    let request: StatRequest = decode(payload)?;
    let how = How {
        follow: request.follow.unwrap_or(true),
        beyond: request.beyond,
        ..How::default()
    };
    let place = root.resolve(&request.path, how)?;
    let mut entry = Entry::look(&place.parent, place.name())?;
    entry.name = Some(ByteBuf::from(place.name));
    respond(stream, [], &entry);
    Ok(())
}

pub fn real(root: &Root, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    let request: RealRequest = decode(payload)?;
    let real = root.real(&request.path)?;
    respond(
        stream,
        [],
        &RealAnswer {
            real: ByteBuf::from(real.path),
            exists: real.exists,
            inside: real.inside,
        },
    );
    Ok(())
}

pub fn list(root: &Root, payload: &[u8], stream: &Stream) -> Result<(), Failure> {
    let request: ListRequest = decode(payload)?;
    let limit = request.limit.unwrap_or(DEFAULT_LISTED);
    if !(1..=MAX_LISTED).contains(&limit) {
        return Err(Failure::new(Code::Protocol, "limit is 1 to 100,000"));
    }
    let place = root.resolve(
        &request.path,
        How {
            follow: true,
            beyond: request.beyond,
            ..How::default()
        },
    )?;
    let folder = open_folder(&place)?;
    // The smallest names behind `after`; what is held is bounded by the limit, not by the folder.
    let mut smallest = BinaryHeap::new();
    let mut more = false;
    for_each_name(&folder, stream, |name| {
        if request
            .after
            .as_ref()
            .is_none_or(|after| name > after.as_slice())
        {
            smallest.push(name.to_vec());
            if smallest.len() > limit {
                smallest.pop();
                more = true;
            }
        }
        Ok(())
    })?;
    let mut pages = Pages::new(stream);
    for name in smallest.into_sorted_vec() {
        if request.names {
            pages.add_name(name)?;
        } else if let Some(mut entry) = look_again(&folder, &name)? {
            entry.name = Some(ByteBuf::from(name));
            pages.add(entry)?;
        }
    }
    let (count, held) = pages.finish();
    respond(stream, held, &ListAnswer { count, more });
    Ok(())
}

pub fn open_folder(place: &Place) -> Result<OwnedFd, Errno> {
    openat(&place.parent, place.name(), OPEN_FOLDER, Mode::empty())
}

/// An entry whose name was just read; nothing when it has gone since.
pub fn look_again(folder: &OwnedFd, name: &[u8]) -> Result<Option<Entry>, Failure> {
    match Entry::look(folder, OsStr::from_bytes(name)) {
        Ok(entry) => Ok(Some(entry)),
        Err(Errno::NOENT | Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Calls `take` with each name but `.` and `..`, in the file system's order.
pub fn for_each_name(
    folder: impl AsFd,
    stream: &Stream,
    mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let entries = Dir::read_from(folder)?;
    for (index, entry) in entries.enumerate() {
        if index % BREATH == 0 {
            stream.check_cancelled()?;
        }
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            take(name)?;
        }
    }
    Ok(())
}

/// All names in reverse byte order.
pub fn sorted_names(
    folder: &OwnedFd,
    stream: &Stream,
    limit: usize,
) -> Result<Vec<Vec<u8>>, Failure> {
    let mut names = Vec::new();
    for_each_name(folder, stream, |name| {
        if names.len() > limit {
            return Err(Failure::new(
                Code::TooMany,
                format!("there are more than {limit} entries"),
            ));
        }
        names.push(name.to_vec());
        Ok(())
    })?;
    names.sort_unstable_by(|one, other| other.cmp(one));
    Ok(names)
}

#[derive(Serialize)]
#[serde(untagged)]
enum Item {
    Entry(Entry),
    Name { name: ByteBuf },
}

#[derive(Serialize)]
struct Page<'a> {
    event: &'static str,
    entries: &'a [Item],
}

/// Gathers entries into events of a bounded size.
pub struct Pages<'a> {
    stream: &'a Stream,
    items: Vec<Item>,
    weight: usize,
    pub count: usize,
}

impl<'a> Pages<'a> {
    pub fn new(stream: &'a Stream) -> Self {
        Self {
            stream,
            items: Vec::new(),
            weight: 0,
            count: 0,
        }
    }

    pub fn add(&mut self, entry: Entry) -> Result<(), Failure> {
        let weight = entry.weight();
        self.push(Item::Entry(entry), weight)
    }

    fn add_name(&mut self, name: Vec<u8>) -> Result<(), Failure> {
        let weight = 16 + name.len();
        self.push(
            Item::Name {
                name: ByteBuf::from(name),
            },
            weight,
        )
    }

    fn push(&mut self, item: Item, weight: usize) -> Result<(), Failure> {
        if self.weight + weight > MAX_PAGE {
            self.stream.check_cancelled()?;
            if !self.stream.outbox.wait_for_room() {
                return Err(crate::stream::cancelled());
            }
            let page = self.page();
            self.stream.outbox.send(page);
        }
        self.items.push(item);
        self.weight += weight;
        self.count += 1;
        Ok(())
    }

    fn page(&mut self) -> Option<Vec<u8>> {
        let items = std::mem::take(&mut self.items);
        self.weight = 0;
        (!items.is_empty()).then(|| {
            self.stream.event_frame(&Page {
                event: "entries",
                entries: &items,
            })
        })
    }

    /// How many there were, and the last page.
    pub fn finish(mut self) -> (usize, Option<Vec<u8>>) {
        (self.count, self.page())
    }
}

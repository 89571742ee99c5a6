//! One file as the host sees it.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Stat, readlinkat, statat};
use rustix::io::Errno;
use serde::Serialize;
use serde_bytes::ByteBuf;

use crate::files::path::kind;

#[derive(Serialize)]
pub struct Entry {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<ByteBuf>,
    /// Relative to the start of a walk; stands in place of the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<ByteBuf>,
    pub kind: &'static str,
    pub mode: u32,
    pub size: u64,
    pub mtime_ns: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<ByteBuf>,
    pub version: ByteBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<bool>,
}

impl Entry {
    /// What `stat` says of it; the names are left for the caller to fill in.
    pub fn new(stat: &Stat) -> Self {
        Self {
            name: None,
            path: None,
            kind: kind_name(kind(stat)),
            mode: stat.st_mode & 0o7777,
            size: size(stat),
            mtime_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
            target: None,
            version: version(stat),
            created: None,
        }
    }

    /// Looks at `name` below `parent`, itself even when it is a symlink.
    pub fn look(parent: impl AsFd, name: &OsStr) -> Result<Self, Errno> {
        let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mut entry = Self::new(&stat);
        if kind(&stat) == FileType::Symlink {
            entry.target = Some(ByteBuf::from(
                readlinkat(&parent, name, Vec::new())?.into_bytes(),
            ));
        }
        Ok(entry)
    }

    /// About how many bytes it takes in a message.
    pub fn weight(&self) -> usize {
        let bytes = |field: &Option<ByteBuf>| field.as_ref().map_or(0, |bytes| bytes.len());
        160 + bytes(&self.name) + bytes(&self.path) + bytes(&self.target)
    }
}

pub fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Equal as long as nobody wrote the file.
pub fn version(stat: &Stat) -> ByteBuf {
    let changed = nanoseconds(stat.st_ctime, stat.st_ctime_nsec);
    let modified = nanoseconds(stat.st_mtime, stat.st_mtime_nsec);
    let fields = [
        stat.st_dev,
        stat.st_ino,
        size(stat),
        modified.cast_unsigned(),
        changed.cast_unsigned(),
    ];
    ByteBuf::from(
        fields
            .iter()
            .flat_map(|field| field.to_be_bytes())
            .collect::<Vec<u8>>(),
    )
}

#[allow(clippy::unnecessary_fallible_conversions, clippy::useless_conversion)] // the fields' types differ by architecture
fn nanoseconds(seconds: i64, rest: impl TryInto<i64>) -> i64 {
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(rest.try_into().unwrap_or(0))
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::BlockDevice => "block",
        FileType::CharacterDevice => "char",
        _ => "file",
    }
}

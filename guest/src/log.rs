//! The bounded log of one output stream: its beginning and its end, and a count of all of it.

/// Keeps the first `head` and the last `tail` bytes of what is appended.
pub struct Log {
    head: Vec<u8>,
    head_bound: usize,
    /// A ring once it is full; `start` is its oldest byte.
    tail: Vec<u8>,
    tail_bound: usize,
    start: usize,
    total: u64,
}

/// A contiguous piece of a log.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where the piece begins; at or behind what was asked for.
    pub offset: u64,
    /// Bytes between the offset asked for and `offset` that are no longer kept.
    pub gap: u64,
    pub bytes: Vec<u8>,
}

impl Log {
    pub fn new(head: usize, tail: usize) -> Self {
        Self {
            head: Vec::new(),
            head_bound: head,
            tail: Vec::new(),
            tail_bound: tail,
            start: 0,
            total: 0,
        }
    }

    /// All bytes appended so far.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Kept bytes of the beginning.
    pub fn head(&self) -> usize {
        self.head.len()
    }

    /// Kept bytes of the end.
    pub fn tail(&self) -> usize {
        self.tail.len()
    }

    /// Memory in use.
    pub fn kept(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    pub fn append(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(self.head_bound - self.head.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(self.tail_bound)..];
        let (grown, wrapped) = rest.split_at(rest.len().min(self.tail_bound - self.tail.len()));
        self.tail.extend_from_slice(grown);
        self.overwrite(wrapped);
    }

    /// Replaces the oldest bytes of the full ring.
    fn overwrite(&mut self, bytes: &[u8]) {
        let (first, second) = bytes.split_at(bytes.len().min(self.tail.len() - self.start));
        self.tail[self.start..self.start + first.len()].copy_from_slice(first);
        self.tail[..second.len()].copy_from_slice(second);
        if !bytes.is_empty() {
            self.start = (self.start + bytes.len()) % self.tail.len();
        }
    }

    /// The contiguous kept bytes nearest behind `offset`, at most `limit`. Before the end of the log at least one when `limit` is.
    pub fn read(&self, offset: u64, limit: usize) -> Piece {
        let head_end = self.head.len() as u64;
        let offset_asked = offset.min(self.total);
        if offset_asked < head_end {
            let bytes = cut(&self.head, offset_asked, limit).to_vec();
            return Piece {
                offset: offset_asked,
                gap: 0,
                bytes,
            };
        }
        let tail_begin = self.total - self.tail.len() as u64;
        let offset = offset_asked.max(tail_begin);
        let (newer, older) = self.tail.split_at(self.start);
        let skip = offset - tail_begin;
        let mut bytes = cut(older, skip, limit).to_vec();
        let rest = limit - bytes.len();
        bytes.extend_from_slice(cut(newer, skip.saturating_sub(older.len() as u64), rest));
        Piece {
            offset,
            gap: offset - offset_asked,
            bytes,
        }
    }
}

fn cut(bytes: &[u8], skip: u64, limit: usize) -> &[u8] {
    let begin = usize::try_from(skip).map_or(bytes.len(), |skip| skip.min(bytes.len()));
    let rest = &bytes[begin..];
    &rest[..limit.min(rest.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keeps_head_and_tail_and_counts_all() {
        let mut log = Log::new(3, 4);
        log.append(b"abcdefghij");
        assert_eq!((log.total(), log.head(), log.tail()), (10, 3, 4));
        assert_eq!(
            log.read(0, 99),
            Piece {
                offset: 0,
                gap: 0,
                bytes: b"abc".to_vec()
            }
        );
        assert_eq!(
            log.read(3, 99),
            Piece {
                offset: 6,
                gap: 3,
                bytes: b"ghij".to_vec()
            }
        );
        assert_eq!(
            log.read(8, 1),
            Piece {
                offset: 8,
                gap: 0,
                bytes: b"i".to_vec()
            }
        );
        assert_eq!(
            log.read(99, 5),
            Piece {
                offset: 10,
                gap: 0,
                bytes: vec![]
            }
        );
    }

    proptest! {
        #[test]
        fn reads_back_what_it_keeps(head in 0usize..20, tail in 0usize..20, chunks: Vec<Vec<u8>>, from in 0u64..200) {
            let mut log = Log::new(head, tail);
            let all: Vec<u8> = chunks.concat();
            for chunk in &chunks {
                log.append(chunk);
            }
            prop_assert_eq!(log.total(), all.len() as u64);
            prop_assert_eq!(log.kept(), all.len().min(head + tail));
            let piece = log.read(from, 1000);
            let begin = usize::try_from(piece.offset).unwrap();
            prop_assert_eq!(&all[begin..begin + piece.bytes.len()], &piece.bytes[..]);
            prop_assert!(!piece.bytes.is_empty() || begin == all.len());
        }
    }
}

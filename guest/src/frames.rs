//! The frames that host and guest exchange over any duplex byte stream; all integers are big-endian.
//!
//! ```text
//! length: u32    bytes that follow, 5 + payload; 5 to 5 + 1,048,576
//! type: u8       HELLO 1, REQUEST 2, RESPONSE 3, ERROR 4, EVENT 5, DATA 6, END 7, CREDIT 8, CANCEL 9, PING 10, PONG 11
//! stream: u32    0 for the connection itself, else the request that the frame belongs to
//! payload
//! ```
//!
//! The payload of `HELLO`, `REQUEST`, `RESPONSE`, `ERROR`, `EVENT` and `CANCEL` is one `MessagePack` map. `DATA` is a channel byte and
//! 1 to 262,144 bytes, `END` a channel byte, `CREDIT` a channel byte and a u32 of 1 to 67,108,864; `PING` and `PONG` carry up to
//! 64 bytes. `HELLO`, `PING` and `PONG` belong to stream 0, `ERROR` to any, the others to a request.
//!
//! A malformed frame is refused as soon as its header shows the fault, before its payload is buffered. The meaning of the
//! messages is in `docs/reference/guest-protocol.md`; encodings to test against are in `tests/vectors/frames.json`.

/// Bytes before the payload.
pub const HEADER: usize = 9;
/// Bytes before the content of a `DATA` frame.
pub const DATA_HEADER: usize = HEADER + 1;
pub const MAX_PAYLOAD: usize = 1 << 20;
pub const MAX_DATA: usize = 1 << 18;
pub const MAX_CREDIT: u32 = 1 << 26;
/// What each channel of a stream may carry in each direction before the first `CREDIT`.
pub const INITIAL_CREDIT: usize = 1 << 20;
const MAX_PING: usize = 64;

pub const INPUT: u8 = 0;
pub const OUTPUT: u8 = 1;
pub const ERRORS: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Hello = 1,
    Request,
    Response,
    Error,
    Event,
    Data,
    End,
    Credit,
    Cancel,
    Ping,
    Pong,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Hello,
        Self::Request,
        Self::Response,
        Self::Error,
        Self::Event,
        Self::Data,
        Self::End,
        Self::Credit,
        Self::Cancel,
        Self::Ping,
        Self::Pong,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).checked_sub(1)?).copied()
    }
}

/// A frame as it stands in the receive buffer.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: Kind,
    pub stream: u32,
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Channel and content of `DATA`, `END` and `CREDIT`.
    pub fn channel(&self) -> (u8, &'a [u8]) {
        self.payload
            .split_first()
            .map_or((INPUT, &[]), |(channel, rest)| (*channel, rest))
    }
}

/// Why bytes are not a frame.
pub type Malformed = &'static str;

/// Takes the first frame of `buffer`: the frame and its size, or nothing while it is not whole.
pub fn decode(buffer: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let Some((length, rest)) = buffer.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if !(HEADER - 4..=HEADER - 4 + MAX_PAYLOAD).contains(&length) {
        return Err("the length of the frame is out of bounds");
    }
    let Some((&kind, rest)) = rest.split_first() else {
        return Ok(None);
    };
    let kind = Kind::from_byte(kind).ok_or("unknown frame type")?;
    let size = length - 5;
    check_size(kind, size)?;
    let Some((stream, rest)) = rest.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let stream = u32::from_be_bytes(*stream);
    check_stream(kind, stream)?;
    if let (Kind::Data | Kind::End | Kind::Credit, Some(channel)) = (kind, rest.first().copied())
        && channel > ERRORS
    {
        return Err("unknown channel");
    }
    let Some(payload) = rest.get(..size) else {
        return Ok(None);
    };
    if kind == Kind::Credit && !(1..=MAX_CREDIT).contains(&credit(&payload[1..])) {
        return Err("credit out of bounds");
    }
    Ok(Some((
        Frame {
            kind,
            stream,
            payload,
        },
        HEADER + size,
    )))
}

fn check_size(kind: Kind, size: usize) -> Result<(), Malformed> {
    let fits = match kind {
        Kind::Data => (2..=1 + MAX_DATA).contains(&size),
        Kind::End => size == 1,
        Kind::Credit => size == 5,
        Kind::Ping | Kind::Pong => size <= MAX_PING,
        _ => size > 0,
    };
    if fits {
        Ok(())
    } else {
        Err("the payload has the wrong size for its type")
    }
}

fn check_stream(kind: Kind, stream: u32) -> Result<(), Malformed> {
    let fits = match kind {
        Kind::Hello | Kind::Ping | Kind::Pong => stream == 0,
        Kind::Error => true,
        _ => stream != 0,
    };
    if fits {
        Ok(())
    } else {
        Err("the frame type does not belong to this stream")
    }
}

/// The amount of a `CREDIT` frame, behind its channel.
pub fn credit(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Encodes a frame. The payload is at most `MAX_PAYLOAD` by the callers' bounds.
pub fn encode(kind: Kind, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend_from_slice(&header(kind, stream, payload.len()));
    frame.extend_from_slice(payload);
    frame
}

/// Encodes a `CREDIT` frame.
pub fn encode_credit(stream: u32, channel: u8, amount: u32) -> Vec<u8> {
    let [a, b, c, d] = amount.to_be_bytes();
    encode(Kind::Credit, stream, &[channel, a, b, c, d])
}

/// The header of a `DATA` frame of `size` bytes, to be put before content that was read into place.
pub fn data_header(stream: u32, channel: u8, size: usize) -> [u8; DATA_HEADER] {
    let mut bytes = [channel; DATA_HEADER];
    bytes[..HEADER].copy_from_slice(&header(Kind::Data, stream, 1 + size));
    bytes
}

fn header(kind: Kind, stream: u32, payload: usize) -> [u8; HEADER] {
    debug_assert!(payload <= MAX_PAYLOAD);
    let mut bytes = [kind as u8; HEADER];
    bytes[..4].copy_from_slice(&u32::try_from(5 + payload).unwrap_or(u32::MAX).to_be_bytes());
    bytes[5..].copy_from_slice(&stream.to_be_bytes());
    bytes
}

//! Frames: the encodings that both ends share, and a decoder that no bytes upset.

use b4_guest::frames::{self, Frame, Kind};
use b4_guest::messages::{Exec, decode};
use proptest::prelude::*;
use serde_json::Value;

fn section(name: &str) -> Vec<Value> {
    let file = include_str!("../../tests/vectors/frames.json");
    let vectors: Value = serde_json::from_str(file).unwrap();
    vectors[name].as_array().unwrap().clone()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn raw(spec: &Value) -> Vec<u8> {
    match spec {
        Value::String(text) => unhex(text),
        Value::Array(parts) => parts
            .iter()
            .flat_map(|part| match part {
                Value::String(text) => unhex(text),
                other => {
                    let times = usize::try_from(other["repeat"][1].as_u64().unwrap()).unwrap();
                    unhex(other["repeat"][0].as_str().unwrap()).repeat(times)
                }
            })
            .collect(),
        other => panic!("no bytes: {other}"),
    }
}

type Owned = (Kind, u32, Vec<u8>);

/// Feeds `bytes` in pieces that end at `splits`, as they could come from a socket, and returns the frames or the fault.
fn feed(bytes: &[u8], splits: &[usize]) -> Result<Vec<Owned>, (usize, &'static str)> {
    let mut buffer = Vec::new();
    let mut found = Vec::new();
    let mut ends: Vec<usize> = splits.iter().map(|at| at % (bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let mut fed = 0;
    for end in ends {
        buffer.extend_from_slice(&bytes[fed..end]);
        fed = end;
        loop {
            match frames::decode(&buffer) {
                Ok(Some((frame, size))) => {
                    found.push((frame.kind, frame.stream, frame.payload.to_vec()));
                    buffer.drain(..size);
                }
                Ok(None) => break,
                Err(fault) => return Err((fed, fault)),
            }
        }
    }
    assert!(buffer.is_empty(), "bytes are left: no whole frame");
    Ok(found)
}

#[test]
fn every_vector_is_encoded_and_decoded() {
    let vectors = section("frames");
    assert!(vectors.len() > 20);
    for vector in vectors {
        let (bytes, name) = (raw(&vector["hex"]), &vector["name"]);
        let payload = raw(&vector["payload_hex"]);
        let stream = u32::try_from(vector["stream"].as_u64().unwrap()).unwrap();
        let (frame, size) = frames::decode(&bytes).unwrap().unwrap();
        assert_eq!(size, bytes.len(), "{name}");
        assert_eq!(
            frame.kind as u64,
            vector["type"].as_u64().unwrap(),
            "{name}"
        );
        assert_eq!(
            (frame.stream, frame.payload),
            (stream, &payload[..]),
            "{name}"
        );
        assert_eq!(
            frames::encode(frame.kind, stream, &payload),
            bytes,
            "{name}"
        );
        for end in (0..bytes.len()).take(40) {
            assert_eq!(frames::decode(&bytes[..end]), Ok(None), "{name} at {end}");
        }
    }
}

#[test]
fn every_fault_is_seen_as_soon_as_it_shows() {
    let vectors = section("invalid");
    assert!(vectors.len() > 20);
    for vector in vectors {
        let (bytes, name) = (raw(&vector["hex"]), &vector["name"]);
        let mut found = None;
        for end in 0..=bytes.len() {
            let mut rest = &bytes[..end];
            while let Ok(Some((_, size))) = frames::decode(rest) {
                rest = &rest[size..];
            }
            if frames::decode(rest).is_err() {
                found = Some(end);
                break;
            }
        }
        assert!(found.is_some(), "{name} was taken");
    }
}

#[test]
fn requests_of_the_vectors_are_understood() {
    let mut seen = 0;
    for vector in section("messages") {
        if vector["value"]["op"] == "exec" {
            let exec: Exec = decode(&raw(&vector["hex"])).unwrap();
            assert_eq!(exec.shell.is_some(), vector["value"].get("shell").is_some());
            assert_eq!(exec.deadline_ms, vector["value"]["deadline_ms"].as_u64());
            seen += 1;
        }
    }
    assert!(seen > 0);
}

fn any_frame() -> impl Strategy<Value = Owned> {
    let bytes = |low: usize, high: usize| proptest::collection::vec(any::<u8>(), low..high);
    prop_oneof![
        bytes(1, 200).prop_map(|payload| (Kind::Hello, 0, payload)),
        (1..u32::MAX, bytes(1, 200)).prop_map(|(stream, payload)| (Kind::Request, stream, payload)),
        (1..u32::MAX, 0..3u8, bytes(1, 300)).prop_map(|(stream, channel, data)| (
            Kind::Data,
            stream,
            [vec![channel], data].concat()
        )),
        (1..u32::MAX, 0..3u8).prop_map(|(stream, channel)| (Kind::End, stream, vec![channel])),
        (1..u32::MAX, 0..3u8, 1..=frames::MAX_CREDIT).prop_map(|(stream, channel, amount)| {
            (
                Kind::Credit,
                stream,
                [&[channel], &amount.to_be_bytes()[..]].concat(),
            )
        }),
        bytes(0, 65).prop_map(|payload| (Kind::Ping, 0, payload)),
    ]
}

proptest! {
    #[test]
    fn any_split_gives_the_same_frames(
        sent in proptest::collection::vec(any_frame(), 1..6),
        splits in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        let bytes: Vec<u8> = sent.iter().flat_map(|(kind, stream, payload)| frames::encode(*kind, *stream, payload)).collect();
        prop_assert_eq!(feed(&bytes, &splits), Ok(sent));
    }

    #[test]
    fn one_byte_at_a_time_gives_the_same_frames(sent in any_frame()) {
        let bytes = frames::encode(sent.0, sent.1, &sent.2);
        let splits: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(feed(&bytes, &splits), Ok(vec![sent]));
    }

    #[test]
    fn no_bytes_upset_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(Some((Frame { payload, .. }, size))) = frames::decode(&bytes) {
            prop_assert_eq!(size, frames::HEADER + payload.len());
            prop_assert!(size <= bytes.len());
        }
    }

    #[test]
    fn no_bytes_upset_the_reading_of_a_request(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode::<Exec>(&bytes);
    }
}

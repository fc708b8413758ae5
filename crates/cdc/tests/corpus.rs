//! Bytes that are almost messages: what the fuzzer found worth keeping, and recorded messages with something
//! cut off or changed. They are read or refused, and nothing else.

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;
use tenure_cdc::assembler::{Assembler, SpillSettings};
use tenure_cdc::pgoutput::{Decoder, Message};

use crate::golden;

/// What the fuzz target does, see `fuzz/fuzz_targets/pgoutput.rs`: the input is cut into messages, each with
/// its length in front, and read one after another.
fn read_all(mut input: &[u8]) {
    let mut decoder = Decoder::default();
    let settings = SpillSettings { directory: std::env::temp_dir(), bytes_max: 1 << 20 };
    let mut assembler = Assembler::new(settings);
    while let Some((length, rest)) = input.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        input = rest;
        if let Ok(Message::Insert { new, .. } | Message::Update { new, .. }) = decoder.decode(bytes) {
            assert_eq!(new.values().count(), new.len());
        }
        let _ = assembler.push(Default::default(), bytes);
        while assembler.is_replaying() && assembler.replay().is_ok() {}
    }
}

#[test]
fn what_the_fuzzer_kept_is_read_or_refused() {
    let corpus = Path::new("fuzz/corpus/pgoutput");
    let mut count = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        read_all(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= 20, "{count} files");
}

/// Every recorded message, with whether it came in a chunk.
fn recorded() -> Vec<(bool, Vec<u8>)> {
    let mut all = Vec::new();
    for golden in golden::all() {
        let mut in_chunk = false;
        for (_, bytes) in golden.messages {
            in_chunk &= bytes[0] != b'S';
            let ends = bytes[0] == b'E';
            let starts = bytes[0] == b'S';
            // The end of a chunk is read inside it, its beginning outside.
            all.push((in_chunk, bytes));
            in_chunk = starts || (in_chunk && !ends);
        }
    }
    all
}

fn decoder(in_chunk: bool) -> Decoder {
    let mut decoder = Decoder::default();
    if in_chunk {
        decoder.decode(&[b'S', 0, 0, 0, 1, 1]).unwrap();
    }
    decoder
}

#[test]
fn no_part_of_a_message_is_a_message() {
    for (in_chunk, bytes) in recorded() {
        decoder(in_chunk).decode(&bytes).unwrap();
        // A rollback is complete without where and when, which only some protocols add.
        let complete = |end| bytes[0] == b'A' && end == 9;
        for end in (0..bytes.len()).filter(|end| !complete(*end)) {
            let refused = decoder(in_chunk).decode(&bytes[..end]).expect_err("it ends too early");
            assert!(refused.offset <= end);
        }
        let longer = [bytes, vec![0]].concat();
        decoder(in_chunk).decode(&longer).expect_err("it goes on");
    }
}

proptest! {
    #[test]
    fn a_message_with_a_few_bytes_changed_is_read_or_refused(
        which in any::<Index>(),
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..6),
    ) {
        thread_local! {
            static RECORDED: Vec<(bool, Vec<u8>)> = recorded();
        }
        let (in_chunk, mut bytes) = RECORDED.with(|recorded| which.get(recorded).clone());
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(Message::Insert { new, .. } | Message::Update { new, .. }) = decoder(in_chunk).decode(&bytes) {
            prop_assert_eq!(new.values().count(), new.len());
        }
    }
}

#[ignore = "writes the corpus from which fuzzing begins"]
#[test]
fn seed_the_corpus() {
    let corpus = Path::new("fuzz/corpus/pgoutput");
    std::fs::create_dir_all(corpus).unwrap();
    for golden in golden::all() {
        let mut input = Vec::new();
        // Enough for every kind of message; long values teach a fuzzer nothing.
        for (_, bytes) in golden.messages.iter().filter(|(_, bytes)| bytes.len() < 300) {
            input.extend(u16::try_from(bytes.len()).unwrap().to_be_bytes());
            input.extend(bytes);
        }
        std::fs::write(corpus.join(golden.name), input).unwrap();
    }
}

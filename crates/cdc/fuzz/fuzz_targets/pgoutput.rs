//! Whatever a server sends is read or refused. The input is cut into messages, each with its length (two bytes)
//! in front; they go through the decoder and the assembler one after another.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_cdc::assembler::{Assembled, Assembler, SpillSettings};
use tenure_cdc::pgoutput::{Decoder, Message, Old, Tuple};

fuzz_target!(|input: &[u8]| {
    let mut decoder = Decoder::default();
    let settings = SpillSettings { directory: std::env::temp_dir(), bytes_max: 1 << 20 };
    let mut assembler = Assembler::new(settings);
    let mut input = input;
    while let Some((length, rest)) = input.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        input = rest;
        match decoder.decode(bytes) {
            Ok(message) => walk(&message),
            Err(refused) => assert!(refused.offset <= bytes.len()),
        }
        let _ = assembler.push(Default::default(), bytes);
        while assembler.is_replaying() {
            match assembler.replay() {
                Ok(Assembled::Change { message, .. }) => walk(&message),
                Ok(Assembled::Commit { .. }) => assert!(!assembler.is_replaying()),
                other => panic!("what was taken in is given out: {other:?}"),
            }
        }
    }
});

fn walk(message: &Message<'_>) {
    match message {
        Message::Insert { new, .. } => whole(new),
        Message::Update { new, old, .. } => {
            whole(new);
            if let Some(Old::Key(old) | Old::Full(old)) = old {
                whole(old);
            }
        }
        Message::Delete { old: Old::Key(old) | Old::Full(old), .. } => whole(old),
        Message::Truncate { relations, .. } => {
            relations.oids().for_each(drop);
        }
        _ => {}
    }
}

fn whole(tuple: &Tuple<'_>) {
    assert_eq!(tuple.values().count(), tuple.len());
}

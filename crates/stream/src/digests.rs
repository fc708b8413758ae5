//! MD5 of many messages at once.
//!
//! Each step of MD5 waits for the one before, so a processor that hashes one message is idle most of the time.
//! Several messages do not wait for each other: here one instruction does a step of four of them, or eight, and
//! whoever has read many aggregated records checks them in a fraction of the time.
//!
//! ```text
//!   lane 0   ████████████│ next message ██████
//!   lane 1   ███│ next ██████████████████████
//!        ⋮      └ a lane that is done takes the next
//! ```
//!
//! Only instructions that every machine of its kind has are used, unless the compiler is told of others.

use std::array::from_fn;

use bytemuck::cast;
use md5::{Digest as _, Md5};
use wide::{f32x4, u32x8};

const BLOCK_BYTES: usize = 64;

// Words are taken as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"));
/// Messages side by side: their state fits in the registers, and some instructions need not wait for others.
const LANES: usize = 8;

/// The MD5 of each message.
pub(crate) fn digests(messages: &[&[u8]]) -> Vec<[u8; 16]> {
    if let [message] = messages {
        return vec![Md5::digest(message).into()];
    }
    let mut digests = vec![[0; 16]; messages.len()];
    let mut waiting = messages.iter().enumerate();
    let mut lanes: Vec<Lane<'_>> = Vec::with_capacity(LANES);
    loop {
        lanes.extend(
            waiting.by_ref().take(LANES - lanes.len()).map(|(index, message)| Lane::new(index, message)),
        );
        let Some(blocks) = lanes.iter().map(Lane::blocks_ready).min() else { return digests };
        advance(&mut lanes, blocks);
        lanes.retain(|lane| {
            let is_done = lane.blocks_ready() == 0;
            if is_done {
                digests[lane.index] = lane.digest();
            }
            !is_done
        });
    }
}

/// A message on its way: first its whole blocks, then what is left with the padding.
struct Lane<'a> {
    index: usize,
    whole: &'a [u8],
    end: [u8; 2 * BLOCK_BYTES],
    /// Where in `end` it stands, and where that ends.
    end_at: usize,
    end_bytes: usize,
    state: [u32; 4],
}

impl<'a> Lane<'a> {
    fn new(index: usize, message: &'a [u8]) -> Self {
        let (whole, rest) = message.split_at(message.len() / BLOCK_BYTES * BLOCK_BYTES);
        let mut end = [0; 2 * BLOCK_BYTES];
        end[..rest.len()].copy_from_slice(rest);
        end[rest.len()] = 0x80;
        // The length in bits takes eight bytes at the very end.
        let end_bytes = if rest.len() + 9 <= BLOCK_BYTES { BLOCK_BYTES } else { 2 * BLOCK_BYTES };
        let bits = (message.len() as u64).wrapping_mul(8);
        end[end_bytes - 8..end_bytes].copy_from_slice(&bits.to_le_bytes());
        Self {
            index,
            whole,
            end,
            end_at: 0,
            end_bytes,
            state: [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476],
        }
    }

    /// What can be hashed without looking elsewhere.
    fn ready(&self) -> &[u8] {
        if self.whole.is_empty() { &self.end[self.end_at..self.end_bytes] } else { self.whole }
    }

    fn blocks_ready(&self) -> usize {
        self.ready().len() / BLOCK_BYTES
    }

    fn pass(&mut self, blocks: usize) {
        let bytes = blocks * BLOCK_BYTES;
        if self.whole.is_empty() {
            self.end_at += bytes;
        } else {
            self.whole = &self.whole[bytes..];
        }
    }

    fn digest(&self) -> [u8; 16] {
        from_fn(|index| self.state[index / 4].to_le_bytes()[index % 4])
    }
}

/// Hashes so many blocks of each lane. Lanes that are missing repeat the first.
fn advance(lanes: &mut [Lane<'_>], blocks: usize) {
    let of = |index: usize| if index < lanes.len() { &lanes[index] } else { &lanes[0] };
    let mut state: [u32x8; 4] = from_fn(|word| u32x8::from(from_fn(|lane| of(lane).state[word])));
    let mut ready: [&[u8]; LANES] = from_fn(|lane| &of(lane).ready()[..blocks * BLOCK_BYTES]);
    for _ in 0..blocks {
        let heads: [&[u8; BLOCK_BYTES]; LANES] = from_fn(|lane| {
            let (head, rest) = ready[lane].split_first_chunk().unwrap_or((&[0; BLOCK_BYTES], &[]));
            ready[lane] = rest;
            head
        });
        compress(&mut state, &transposed(&heads));
    }
    let state = state.map(u32x8::to_array);
    for (index, lane) in lanes.iter_mut().enumerate() {
        lane.state = from_fn(|word| state[word][index]);
        lane.pass(blocks);
    }
}

/// Word by word, each with its lanes side by side.
#[inline(always)]
fn transposed(blocks: &[&[u8; BLOCK_BYTES]; LANES]) -> [u32x8; 16] {
    let mut words = [u32x8::ZERO; 16];
    for (quarter, words) in words.chunks_exact_mut(4).enumerate() {
        // Only moved about: that they are called fractions makes no difference to the bits.
        let [first, second] = [0, 4].map(|lane| {
            f32x4::transpose(from_fn(|index| {
                let block = blocks[lane + index];
                cast::<[u8; 16], f32x4>(from_fn(|byte| block[16 * quarter + byte]))
            }))
        });
        for (index, word) in words.iter_mut().enumerate() {
            *word = cast([first[index], second[index]]);
        }
    }
    words
}

/// The constants of MD5: the sines of 1 to 64.
const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];

/// One step for all lanes.
macro_rules! step {
    ($mix:ident, $a:ident, $b:ident, $c:ident, $d:ident, $block:ident, $word:literal, $turn:literal, $step:expr) => {
        let sum = $a + $block[$word] + u32x8::splat(SINES[$step]) + $mix($b, $c, $d);
        $a = ((sum << $turn) | (sum >> (32 - $turn))) + $b;
    };
}

/// Four steps, after which the words of the state are in their places again.
macro_rules! steps {
    ($mix:ident, $a:ident, $b:ident, $c:ident, $d:ident, $block:ident, $step:expr, [$w0:literal, $w1:literal, $w2:literal, $w3:literal],
        [$t0:literal, $t1:literal, $t2:literal, $t3:literal]) => {
        step!($mix, $a, $b, $c, $d, $block, $w0, $t0, $step);
        step!($mix, $d, $a, $b, $c, $block, $w1, $t1, $step + 1);
        step!($mix, $c, $d, $a, $b, $block, $w2, $t2, $step + 2);
        step!($mix, $b, $c, $d, $a, $block, $w3, $t3, $step + 3);
    };
}

#[inline(always)]
fn choose(b: u32x8, c: u32x8, d: u32x8) -> u32x8 {
    d ^ (b & (c ^ d))
}

#[inline(always)]
fn choose_by_last(b: u32x8, c: u32x8, d: u32x8) -> u32x8 {
    c ^ (d & (b ^ c))
}

#[inline(always)]
fn parity(b: u32x8, c: u32x8, d: u32x8) -> u32x8 {
    b ^ c ^ d
}

#[inline(always)]
fn twist(b: u32x8, c: u32x8, d: u32x8) -> u32x8 {
    c ^ (b | !d)
}

/// Takes one block of every lane into its state: RFC 1321.
#[inline(always)]
fn compress(state: &mut [u32x8; 4], block: &[u32x8; 16]) {
    let [mut a, mut b, mut c, mut d] = *state;
    steps!(choose, a, b, c, d, block, 0, [0, 1, 2, 3], [7, 12, 17, 22]);
    steps!(choose, a, b, c, d, block, 4, [4, 5, 6, 7], [7, 12, 17, 22]);
    steps!(choose, a, b, c, d, block, 8, [8, 9, 10, 11], [7, 12, 17, 22]);
    steps!(choose, a, b, c, d, block, 12, [12, 13, 14, 15], [7, 12, 17, 22]);
    steps!(choose_by_last, a, b, c, d, block, 16, [1, 6, 11, 0], [5, 9, 14, 20]);
    steps!(choose_by_last, a, b, c, d, block, 20, [5, 10, 15, 4], [5, 9, 14, 20]);
    steps!(choose_by_last, a, b, c, d, block, 24, [9, 14, 3, 8], [5, 9, 14, 20]);
    steps!(choose_by_last, a, b, c, d, block, 28, [13, 2, 7, 12], [5, 9, 14, 20]);
    steps!(parity, a, b, c, d, block, 32, [5, 8, 11, 14], [4, 11, 16, 23]);
    steps!(parity, a, b, c, d, block, 36, [1, 4, 7, 10], [4, 11, 16, 23]);
    steps!(parity, a, b, c, d, block, 40, [13, 0, 3, 6], [4, 11, 16, 23]);
    steps!(parity, a, b, c, d, block, 44, [9, 12, 15, 2], [4, 11, 16, 23]);
    steps!(twist, a, b, c, d, block, 48, [0, 7, 14, 5], [6, 10, 15, 21]);
    steps!(twist, a, b, c, d, block, 52, [12, 3, 10, 1], [6, 10, 15, 21]);
    steps!(twist, a, b, c, d, block, 56, [8, 15, 6, 13], [6, 10, 15, 21]);
    steps!(twist, a, b, c, d, block, 60, [4, 11, 2, 9], [6, 10, 15, 21]);
    for (word, added) in state.iter_mut().zip([a, b, c, d]) {
        *word += added;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one_by_one(messages: &[&[u8]]) -> Vec<[u8; 16]> {
        messages.iter().map(|message| Md5::digest(message).into()).collect()
    }

    #[test]
    fn every_length_around_a_block_and_every_number_of_messages() {
        let bytes: Vec<u8> = (0..=255).collect();
        let messages: Vec<&[u8]> = (0..=200).map(|length| &bytes[..length]).collect();
        assert_eq!(digests(&messages), one_by_one(&messages));
        for count in 0..20 {
            assert_eq!(digests(&messages[50..50 + count]), one_by_one(&messages[50..50 + count]));
        }
    }

    proptest! {
        #[test]
        fn messages_of_any_lengths_side_by_side(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..700), 0..30),
        ) {
            let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(digests(&messages), one_by_one(&messages));
        }
    }
}

//! `tenure stream put`: records from the command line, or a record per line of standard input.

use std::io::{BufRead, BufReader, Read};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::json;
use serde_json::value::RawValue;
use tenure_backend::{Retry, retry_policy};
use tenure_clock::Monotonic;
use tenure_stream::{HashKey, Limits, Put, Record, Stream};
use tokio::sync::mpsc;

use super::shards::hash_key;
use crate::context::Context;
use crate::failure::{FAILED, misuse, misuse_if_invalid};
use crate::output::counted;
use crate::shutdown;

/// The first pause before throttled records are sent again; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause: a shard's allowance is renewed every second.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a long command says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Bytes of lines that are read ahead in one batch.
const BATCH_BYTES: usize = 1 << 20;
/// Batches that are read ahead.
const BATCHES_MAX: usize = 2;

#[derive(clap::Args)]
#[command(after_help = "\
Records that a shard throttles are sent again until --timeout has passed for their batch; a record that is sent again
may land after later ones of its batch. What could not be stored is reported, with exit status 1.

Examples:
  tenure stream put --key order-7 '{\"total\":12}'
  seq 1000 | tenure stream put --lines
  tenure stream put --lines --key-field id < orders.jsonl")]
pub(super) struct Args {
    /// The records' contents
    #[arg(required_unless_present = "lines", conflicts_with = "lines")]
    data: Vec<String>,

    /// Put every line of standard input as a record
    #[arg(long)]
    lines: bool,

    /// The partition key of all records [default: a random one for each]
    #[arg(long)]
    key: Option<String>,

    /// Take each record's partition key from this field of its JSON
    #[arg(long, value_name = "FIELD", conflicts_with = "key")]
    key_field: Option<String>,

    /// Choose the shard by this hash key in place of the partition key
    #[arg(long, value_name = "HASH", value_parser = hash_key)]
    hash_key: Option<HashKey>,
}

impl Args {
    /// Whether it stays as long as lines come.
    pub(super) const fn reads_lines(&self) -> bool {
        self.lines
    }
}

pub(super) async fn run(args: Args, context: &Context, stream: &dyn Stream) -> anyhow::Result<ExitCode> {
    let limits = context
        .look(async |by| stream.limits(by).await)
        .await
        .map_err(misuse_if_invalid)
        .context("put records")?;
    let Args { data, lines, key, key_field, hash_key } = args;
    let keys = Keys { key, key_field, hash_key };
    let mut putting = Putting {
        context,
        stream,
        limits,
        each: !lines,
        tally: Tally::default(),
        said: context.env.clock.monotonic(),
    };
    let interrupted = if lines {
        let ended = putting.all_lines(&keys).await;
        ended.with_context(|| format!("after {} stored", counted(putting.tally.stored, "record")))?
    } else {
        let records: Result<Vec<_>, _> = data
            .into_iter()
            .enumerate()
            .map(|(index, data)| keys.record(data.into_bytes(), index + 1, context))
            .collect();
        putting.batch(&records?).await?;
        false
    };
    putting.finish(interrupted)
}

/// How a record gets its key.
struct Keys {
    key: Option<String>,
    key_field: Option<String>,
    hash_key: Option<HashKey>,
}

impl Keys {
    fn record(&self, data: Vec<u8>, number: usize, context: &Context) -> anyhow::Result<Record> {
        let key = match (&self.key, &self.key_field) {
            (Some(key), _) => key.clone(),
            (None, Some(field)) => {
                field_of(&data, field).map_err(|why| misuse(format!("record {number}: {why}")))?
            }
            (None, None) => context.env.entropy.nonce(),
        };
        let record = Record::new(key, data);
        Ok(match self.hash_key {
            Some(hash_key) => record.at_hash_key(hash_key),
            None => record,
        })
    }
}

/// The text of a field, if it is a text or a number.
fn field_of(data: &[u8], field: &str) -> Result<String, String> {
    let fields: std::collections::BTreeMap<String, &RawValue> =
        serde_json::from_slice(data).map_err(|error| format!("not a JSON object: {error}"))?;
    let raw = fields.get(field).ok_or_else(|| {
        let hint = tenure_backend::nearest(field, fields.keys().map(String::as_str))
            .map(|name| format!(": did you mean `{name}`?"))
            .unwrap_or_default();
        format!("has no field `{field}`{hint}")
    })?;
    match raw.get().as_bytes().first() {
        Some(b'"') => serde_json::from_str(raw.get()).map_err(|error| error.to_string()),
        Some(b'-' | b'0'..=b'9') => Ok(raw.get().to_owned()),
        _ => Err(format!("field `{field}` is neither text nor a number and cannot be a key")),
    }
}

#[derive(Debug, Default)]
struct Tally {
    stored: u64,
    failed: u64,
}

struct Putting<'a> {
    context: &'a Context,
    stream: &'a dyn Stream,
    limits: Limits,
    /// Whether each record's place is shown.
    each: bool,
    tally: Tally,
    /// When progress was last told.
    said: Monotonic,
}

impl Putting<'_> {
    /// Puts lines until they end, or until somebody says stop; whether the latter.
    async fn all_lines(&mut self, keys: &Keys) -> anyhow::Result<bool> {
        let asked_to_end = shutdown::on_signal()?;
        let (sender, mut batches) = mpsc::channel(BATCHES_MAX);
        let limits = self.limits;
        // A thread of its own: standard input has no other way to be waited for.
        std::thread::spawn(move || read_lines(&limits, &sender));
        let mut number = 0;
        loop {
            let lines = tokio::select! {
                lines = batches.recv() => lines,
                () = asked_to_end.cancelled() => return Ok(true),
            };
            let Some(lines) = lines else { return Ok(false) };
            let mut records = Vec::new();
            for line in lines? {
                number += 1;
                records.push(keys.record(line, number, self.context)?);
            }
            self.batch(&records).await?;
            self.context.out.flush()?;
            self.say_progress();
        }
    }

    /// Puts records in as many calls as they need.
    async fn batch(&mut self, records: &[Record]) -> anyhow::Result<()> {
        let mut rest = records;
        while !rest.is_empty() {
            let (call, later) = rest.split_at(self.limits.fitting(rest));
            self.call(call).await?;
            rest = later;
        }
        Ok(())
    }

    /// Puts the records of one call, and those that were throttled again and again.
    async fn call(&mut self, records: &[Record]) -> anyhow::Result<()> {
        let first = self.tally.stored + self.tally.failed + 1;
        let number_of = |index: usize| first + index as u64;
        let by = self.context.by();
        let mut open: Vec<usize> = (0..records.len()).collect();
        let mut pause = PAUSE;
        loop {
            let sending: Vec<Record> = open.iter().map(|&index| records[index].clone()).collect();
            let mut why = "throttled".to_owned();
            match self.stream.put(by, &sending).await {
                Ok(puts) => {
                    let mut throttled = Vec::new();
                    for (index, put) in open.into_iter().zip(puts) {
                        match put {
                            Put::Throttled => throttled.push(index),
                            put => self.say_put(number_of(index), put)?,
                        }
                    }
                    open = throttled;
                }
                Err(error) if matches!(retry_policy(error.kind()), Retry::Soon | Retry::AfterBackoff) => {
                    why = error.chain();
                }
                Err(error) => {
                    let last = first + records.len() as u64 - 1;
                    return Err(misuse_if_invalid(error))
                        .with_context(|| format!("put records {first} to {last}"));
                }
            }
            if open.is_empty() {
                return Ok(());
            }
            let wait = pause / 2 + self.context.env.entropy.up_to(pause / 2);
            if self.context.env.clock.monotonic() + wait >= by {
                for index in open {
                    self.say_failed(number_of(index), &format!("{why} until --timeout"))?;
                }
                return Ok(());
            }
            self.context.env.clock.sleep(wait).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn say_put(&mut self, number: u64, put: Put) -> anyhow::Result<()> {
        match put {
            Put::Stored { shard, sequence } => {
                self.tally.stored += 1;
                let shown =
                    || json!({ "record": number, "shard": shard.as_str(), "sequence": sequence.to_string() });
                if self.each || self.context.out.is_json() {
                    self.context.out.say(shown, || format!("{shard}  {sequence}"))?;
                }
                Ok(())
            }
            Put::Refused { reason } => self.say_failed(number, &reason),
            Put::Throttled => Ok(()),
        }
    }

    fn say_failed(&mut self, number: u64, reason: &str) -> anyhow::Result<()> {
        self.tally.failed += 1;
        eprintln!("record {number} was not stored: {reason}");
        match self.context.out.is_json() {
            true => self.context.out.json_line(&json!({ "record": number, "error": reason })),
            false => Ok(()),
        }
    }

    fn say_progress(&mut self) {
        let now = self.context.env.clock.monotonic();
        if now.since(self.said) >= PROGRESS_INTERVAL {
            self.said = now;
            eprintln!("{} stored so far", counted(self.tally.stored, "record"));
        }
    }

    fn finish(self, interrupted: bool) -> anyhow::Result<ExitCode> {
        let Tally { stored, failed } = self.tally;
        if self.context.out.is_json() {
            self.context
                .out
                .json_line(&json!({ "stored": stored, "failed": failed, "interrupted": interrupted }))?;
        } else if !self.each {
            self.context.out.line(&format!("{} stored", counted(stored, "record")))?;
        }
        self.context.out.flush()?;
        if interrupted {
            return Err(anyhow!("stopped by a signal: later lines were not put"));
        }
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
    }
}

/// Hands on lines in batches: when enough have come, and whenever the input falls silent.
fn read_lines(limits: &Limits, batches: &mpsc::Sender<anyhow::Result<Vec<Vec<u8>>>>) {
    let mut input = BufReader::new(std::io::stdin());
    let (mut lines, mut bytes, mut number) = (Vec::new(), 0, 0);
    loop {
        number += 1;
        let line = match read_line(&mut input, limits.bytes_per_record_max) {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(error) => {
                let _ = batches.blocking_send(Ok(lines));
                let _ = batches.blocking_send(Err(error.context(format!("line {number}"))));
                return;
            }
        };
        bytes += line.len();
        lines.push(line);
        let full = lines.len() >= limits.records_per_put_max || bytes >= BATCH_BYTES;
        if full || input.buffer().is_empty() {
            bytes = 0;
            // Nobody listens any more after an error or a signal.
            if batches.blocking_send(Ok(std::mem::take(&mut lines))).is_err() {
                return;
            }
        }
    }
    let _ = batches.blocking_send(Ok(lines));
}

/// A line without its end, or `None` at the end of the input.
fn read_line(input: &mut impl BufRead, bytes_max: usize) -> anyhow::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    input.take(bytes_max as u64 + 1).read_until(b'\n', &mut line).context("read standard input")?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    } else if line.len() > bytes_max {
        return Err(misuse(format!(
            "has more than {bytes_max} bytes, the most that the stream allows in a record: store the content elsewhere \
             and send a reference"
        )));
    }
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded() {
        let mut input = "one\r\n\ntwo".as_bytes();
        let mut next = || read_line(&mut input, 5).unwrap();
        assert_eq!(next().as_deref(), Some(&b"one"[..]));
        assert_eq!(next().as_deref(), Some(&b""[..]));
        assert_eq!(next().as_deref(), Some(&b"two"[..]));
        assert_eq!(next(), None);
        assert!(
            read_line(&mut "seventh".as_bytes(), 5).unwrap_err().to_string().contains("more than 5 bytes")
        );
    }

    #[test]
    fn keys_come_from_fields() {
        let data = br#"{"id":12345678901234567890,"name":"a\"b","on":true}"#;
        assert_eq!(field_of(data, "id").as_deref(), Ok("12345678901234567890"));
        assert_eq!(field_of(data, "name").as_deref(), Ok("a\"b"));
        assert!(field_of(data, "on").unwrap_err().contains("neither"));
        assert!(field_of(data, "nam").unwrap_err().contains("did you mean `name`"));
        assert!(field_of(b"x", "id").unwrap_err().contains("not a JSON object"));
    }
}

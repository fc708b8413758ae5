//! From an address to a stream.
//!
//! ```text
//!   memory:NAME                      the stream NAME of this process
//!   sqlite:PATH?name=NAME            the stream NAME (default `main`) in the file PATH-stream
//!   kinesis:NAME?region=eu-west-1    Kinesis
//!   faulty+sqlite:PATH?seed=7        any of them, misbehaving by that seed
//! ```

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Address, Env, Error, Faults, Result};

use crate::{Faulty, Memory, Stream};

const SCHEMES: [&str; 6] =
    ["memory", "sqlite", "kinesis", "faulty+memory", "faulty+sqlite", "faulty+kinesis"];

/// Opens the stream at an address. It need not exist yet: [`Stream::create`] makes it.
///
/// Options: `sqlite:` and `memory:` take `retention_hours` and `retention_bytes` (what a stream created
/// here keeps), `sqlite:` also `name`; `kinesis:` takes `region`, `profile` and `endpoint`; `faulty+`
/// takes `seed`, `throttled`, `failed`, `lost`, `late`, `duplicated`, `latency_ms`, `late_by_ms`.
///
/// # Errors
/// `Invalid` if the address, an option or a name is, naming it and the nearest that would do; and
/// what the backend answers when it is opened.
pub async fn open(address: &str, env: &Env) -> Result<Arc<dyn Stream>> {
    let address = Address::parse(address)?;
    if let Some(mut inner) = address.clone().unwrapped("faulty") {
        let faults = Faults::from_address(&mut inner)?;
        let stream = open_plain(inner, env).await?;
        return Ok(Arc::new(Faulty::new(stream, Arc::new(faults), env.clock.clone())));
    }
    open_plain(address, env).await
}

async fn open_plain(mut address: Address, env: &Env) -> Result<Arc<dyn Stream>> {
    match address.scheme() {
        "memory" => {
            let (age, bytes) = retention(&mut address)?;
            let stream = Memory::shared(address.place(), env.clock.clone())?.with_retention(age, bytes)?;
            address.finish()?;
            Ok(Arc::new(stream))
        }
        "sqlite" => open_sqlite(address, env),
        "kinesis" => open_kinesis(address, env).await,
        _ => Err(address.unknown_scheme("stream", &SCHEMES)),
    }
}

fn retention(address: &mut Address) -> Result<(Option<Duration>, Option<u64>)> {
    let hours = address.take::<f64>("retention_hours", "a number of hours above 0")?;
    let age = match hours {
        None => None,
        // A year of hours: what Kinesis keeps at most.
        Some(hours) if hours > 0.0 && hours <= 8784.0 => Some(Duration::from_secs_f64(hours * 3600.0)),
        Some(hours) => {
            return Err(Error::invalid(format!(
                "`retention_hours={hours}`: keep records for up to 8784 hours"
            )));
        }
    };
    Ok((age, address.take("retention_bytes", "a number of bytes above 0")?))
}

#[cfg(feature = "sqlite")]
fn open_sqlite(mut address: Address, env: &Env) -> Result<Arc<dyn Stream>> {
    let name = address.take_text("name").unwrap_or_else(|| "main".to_owned());
    let (age, bytes) = retention(&mut address)?;
    if address.place().is_empty() {
        return Err(Error::invalid("`sqlite:` names no file: write sqlite:./tenure.db"));
    }
    let path = std::path::PathBuf::from(format!("{}-stream", address.place()));
    address.finish()?;
    Ok(Arc::new(crate::Sqlite::open(&path, &name, env)?.with_retention(age, bytes)?))
}

#[cfg(not(feature = "sqlite"))]
fn open_sqlite(_address: Address, _env: &Env) -> Result<Arc<dyn Stream>> {
    Err(Error::invalid("this build has no SQLite support: build with --features sqlite"))
}

#[cfg(feature = "kinesis")]
async fn open_kinesis(mut address: Address, env: &Env) -> Result<Arc<dyn Stream>> {
    let place = crate::KinesisPlace {
        region: address.take_text("region"),
        profile: address.take_text("profile"),
        endpoint: address.take_text("endpoint"),
    };
    let name = address.place().to_owned();
    address.finish()?;
    Ok(Arc::new(crate::Kinesis::open(&name, place, env).await?))
}

#[cfg(not(feature = "kinesis"))]
async fn open_kinesis(_address: Address, _env: &Env) -> Result<Arc<dyn Stream>> {
    Err(Error::invalid("this build of Tenure leaves Kinesis out: build it with `--features aws`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused(address: &str) -> String {
        open(address, &Env::system()).await.expect_err("refused").chain()
    }

    #[tokio::test]
    async fn mistakes_are_named() {
        assert!(refused("main").await.contains("has no scheme"));
        assert!(refused("sqlit:x").await.contains("did you mean `sqlite:`"));
        assert!(refused("faulty+sqlit:x").await.contains("unknown scheme"));
        assert!(refused("memory:a b").await.contains("stream name `a b`"));
        assert!(refused("memory:a?retention_hour=1").await.contains("did you mean `retention_hours`"));
        assert!(refused("memory:a?retention_hours=-1").await.contains("retention_hours=-1"));
        assert!(refused("faulty+memory:a?lost=2").await.contains("lost=2"));
        #[cfg(feature = "sqlite")]
        {
            assert!(refused("sqlite:").await.contains("names no file"));
            assert!(refused("sqlite:/nowhere/at/all").await.contains("does its directory exist"));
            assert!(refused("sqlite:/tmp/x?name=a/b").await.contains("stream name `a/b`"));
        }
        #[cfg(not(feature = "kinesis"))]
        assert!(refused("kinesis:orders").await.contains("--features aws"));
    }

    #[tokio::test]
    async fn one_name_in_memory_is_one_stream() {
        let env = Env::system();
        let by = env.clock.deadline(Duration::from_secs(5));
        let one = open("memory:opening-test", &env).await.unwrap();
        let two = open("memory:opening-test", &env).await.unwrap();
        one.create(by, &crate::StreamSpec::default()).await.unwrap();
        assert_eq!(two.describe(by).await.unwrap().open_shards, 1);
    }
}

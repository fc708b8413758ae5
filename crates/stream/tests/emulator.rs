//! A fresh stream at an emulator of Kinesis, over the real SDK.

use std::sync::Arc;

use tenure_backend::Env;
use tenure_stream::conformance::{Capabilities, Fixture};
use tenure_stream::{Kinesis, KinesisPlace, Stream};

/// The emulator's address, which `cargo xtask` puts in this variable.
pub(crate) fn address(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: run cargo xtask services up, then eval \"$(cargo xtask services env)\", \
             or use cargo xtask test"
        )
    })
}

/// A stream of a name that nobody else uses, through this address.
pub(crate) async fn fresh_stream(endpoint: &str) -> (Arc<dyn Stream>, Arc<dyn Stream>) {
    let env = Env::system();
    let name = format!("suite-{}", env.entropy.nonce());
    let open = async || {
        let place = KinesisPlace { endpoint: Some(endpoint.to_owned()), ..KinesisPlace::default() };
        Arc::new(Kinesis::open(&name, place, &env).await.unwrap()) as Arc<dyn Stream>
    };
    (open().await, open().await)
}

pub(crate) async fn fixture(variable: &str, can: Capabilities) -> Fixture {
    let (stream, other) = fresh_stream(&address(variable)).await;
    Fixture { stream, other, clock: Env::system().clock, can, keep: None }
}

/// What the proxy does to calls on their way, and what the caller is told.
pub(crate) mod through_the_proxy {
    use std::time::Duration;

    use tenure_clock::{Clock, SystemClock};
    use tenure_fault_proxy::{FaultProxy, Script};
    use tenure_stream::{Kind, Position, Put, Record, ShardId, Stream, StreamSpec};

    use super::{Arc, address, fresh_stream};
    use crate::{everything, soon};

    const LIMIT: Duration = Duration::from_millis(400);

    struct World {
        proxy: FaultProxy,
        stream: Arc<dyn Stream>,
    }

    /// A stream of one shard behind a proxy that does nothing yet.
    async fn world(variable: &str) -> World {
        let proxy =
            FaultProxy::start(&address(variable), Script::parse(42, [] as [&str; 0]).unwrap()).await.unwrap();
        let (stream, _) = fresh_stream(&proxy.url()).await;
        stream.create(soon(), &StreamSpec::with_shards(1)).await.unwrap();
        World { proxy, stream }
    }

    impl World {
        fn script(&self, rule: &str) {
            self.proxy.set_script(Script::parse(42, [rule]).unwrap());
        }

        async fn put(&self, text: &str, by: Option<Duration>) -> Result<Vec<Put>, Kind> {
            let by = by.map_or_else(soon, |limit| SystemClock.deadline(limit));
            self.stream.put(by, &[Record::new("k", text.to_owned())]).await.map_err(|error| error.kind())
        }

        async fn texts(&self) -> Vec<String> {
            self.script("PutItem=throttle");
            let found = everything(&*self.stream, soon()).await;
            found.iter().map(|record| String::from_utf8_lossy(&record.data).into_owned()).collect()
        }
    }

    /// Some records of a call fail: those are throttled, the others stored, each answered in its place.
    pub(crate) async fn single_records_fail(variable: &str) {
        let world = world(variable).await;
        world.script("PutRecords=partial(0.4, at_least_one)#1");
        let records: Vec<_> = (0..40).map(|number| Record::new("k", number.to_string())).collect();
        let puts = world.stream.put(soon(), &records).await.unwrap();
        let stored: Vec<_> = (0..40)
            .filter(|number| puts[*number].stored().is_some())
            .map(|number| number.to_string())
            .collect();
        assert!((1..40).contains(&stored.len()));
        assert!(puts.iter().all(|put| put.stored().is_some() || *put == Put::Throttled));
        assert_eq!(world.texts().await, stored);
    }

    /// Applied, and the reply was lost: unknown, and there once, because nothing was sent again.
    pub(crate) async fn a_lost_reply_is_unknown(variable: &str) {
        let world = world(variable).await;
        world.script("PutRecords=lose_reply#1");
        assert_eq!(world.put("lost", None).await, Err(Kind::Unknown));
        world.script("PutRecords=server_error_applied(503)#1");
        assert_eq!(world.put("failed", None).await, Err(Kind::Unknown));
        world.script("PutRecords=hang_applied#1");
        assert_eq!(world.put("hung", Some(LIMIT)).await, Err(Kind::Unknown));
        assert_eq!(world.texts().await, ["lost", "failed", "hung"]);
    }

    /// Not applied: what is known is told, what is not is unknown.
    pub(crate) async fn what_did_not_land_is_told(variable: &str) {
        let world = world(variable).await;
        for (rule, kind) in [
            ("PutRecords=throttle#1", Kind::Throttled),
            ("PutRecords=throttle(LimitExceededException)#1", Kind::Throttled),
            ("PutRecords=server_error(500)#1", Kind::Unknown),
            ("PutRecords=reset#1", Kind::Unknown),
            ("PutRecords=hang#1", Kind::Unknown),
        ] {
            world.script(rule);
            assert_eq!(world.put("x", Some(LIMIT)).await, Err(kind), "{rule}");
        }
        assert!(world.put("stored", None).await.unwrap()[0].stored().is_some());
        assert_eq!(world.texts().await, ["stored"]);
    }

    /// A read that fails changes nothing, and ends at its deadline.
    pub(crate) async fn reads_are_unavailable(variable: &str) {
        let world = world(variable).await;
        let cursor =
            world.stream.cursor(soon(), &ShardId::numbered(0), &Position::TrimHorizon).await.unwrap();
        for (rule, kind) in [
            ("GetRecords=throttle#1", Kind::Throttled),
            ("GetRecords=server_error(503)#1", Kind::Unavailable),
            ("GetRecords=lose_reply#1", Kind::Unavailable),
            ("GetRecords=hang#1", Kind::Unavailable),
        ] {
            world.script(rule);
            let begun = SystemClock.monotonic();
            let failed = world.stream.read(SystemClock.deadline(LIMIT), &cursor, 10).await.unwrap_err();
            assert_eq!(failed.kind(), kind, "{rule}: {failed:?}");
            assert!(SystemClock.monotonic().since(begun) < Duration::from_secs(10));
        }
    }

    /// A stream is made by two calls. Whatever becomes of their replies, it has what was asked for at
    /// the end: at once, or, if the caller's time was over, once it is created again.
    pub(crate) async fn a_create_with_lost_replies_converges(variable: &str) {
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        let spec = |age| StreamSpec { retention_age: Some(age), ..StreamSpec::with_shards(1) };
        let proxy =
            FaultProxy::start(&address(variable), Script::parse(42, [] as [&str; 0]).unwrap()).await.unwrap();
        for rule in [
            "CreateStream=lose_reply#1",
            "CreateStream=server_error_applied(500)#1",
            "CreateStream=server_error(500)#1",
            "CreateStream=reset#2",
            "IncreaseStreamRetentionPeriod=lose_reply#1",
            "IncreaseStreamRetentionPeriod=server_error(500)#1",
            "IncreaseStreamRetentionPeriod=throttle#1",
        ] {
            let (stream, _) = fresh_stream(&proxy.url()).await;
            proxy.set_script(Script::parse(42, [rule]).unwrap());
            let created = stream.create(soon(), &spec(days(3))).await;
            assert_eq!(
                created.map(|found| found.retention_age).map_err(|e| e.chain()),
                Ok(days(3)),
                "{rule}"
            );
        }
        for rule in ["CreateStream=hang_applied#1", "IncreaseStreamRetentionPeriod=hang#1"] {
            let (stream, other) = fresh_stream(&proxy.url()).await;
            proxy.set_script(Script::parse(42, [rule]).unwrap());
            // The second step is only reached after some looks at the first.
            let by = SystemClock.deadline(5 * LIMIT);
            assert_eq!(
                stream.create(by, &spec(days(3))).await.map_err(|e| e.kind()),
                Err(Kind::Unknown),
                "{rule}"
            );
            // As another process would.
            assert_eq!(other.create(soon(), &spec(days(3))).await.unwrap().retention_age, days(3), "{rule}");
            // What is no longer as it was born is left as it is.
            assert_eq!(other.create(soon(), &spec(days(4))).await.unwrap().retention_age, days(3), "{rule}");
            assert_eq!(other.create(soon(), &spec(days(1))).await.unwrap().retention_age, days(3), "{rule}");
        }
    }

    /// Makes a test of each.
    macro_rules! proxy_tests {
        ($variable:expr; $($name:ident),*) => {
            mod through_the_proxy {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::emulator::through_the_proxy::$name($variable).await;
                })*
            }
        };
    }
    pub(crate) use proxy_tests;
}

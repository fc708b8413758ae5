//! Memory, SQLite and the wrappers around them pass the suite.

use std::sync::Arc;

use tempfile::TempDir;
use tenure_backend::{Env, FaultRates, Faults};
use tenure_clock::Entropy;
use tenure_stream::conformance::{Capabilities, Fixture};
use tenure_stream::{Faulty, Instrumented, Memory, Sqlite, Stream};

fn fixture(stream: Arc<dyn Stream>, other: Arc<dyn Stream>, keep: Option<TempDir>) -> Fixture {
    let clock = Env::system().clock;
    let keep = keep.map(|dir| Box::new(dir) as Box<_>);
    Fixture { stream, other, clock, can: Capabilities::ALL, keep }
}

async fn memory_fixture() -> Fixture {
    let stream = Arc::new(Memory::new("suite", Env::system().clock).unwrap());
    fixture(stream.clone(), stream, None)
}

/// Two engines on one file, as two processes have them.
async fn sqlite_fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let open = || Arc::new(Sqlite::open(&dir.path().join("suite-stream"), "suite", &Env::system()).unwrap());
    let (stream, other) = (open(), open());
    fixture(stream, other, Some(dir))
}

async fn faulty_fixture() -> Fixture {
    let mut fixture = memory_fixture().await;
    let faults = Arc::new(Faults::new(FaultRates::default(), Entropy::seeded(1)).unwrap());
    let wrap = |inner| Arc::new(Faulty::new(inner, faults.clone(), Env::system().clock));
    fixture.stream = wrap(fixture.stream);
    fixture.other = wrap(fixture.other);
    fixture
}

async fn instrumented_fixture() -> Fixture {
    let mut fixture = sqlite_fixture().await;
    let wrap = |inner| Arc::new(Instrumented::new(inner, Env::system().clock));
    fixture.stream = wrap(fixture.stream);
    fixture.other = wrap(fixture.other);
    fixture
}

mod memory {
    tenure_stream::stream_conformance!(crate::embedded::memory_fixture());
}

mod sqlite {
    tenure_stream::stream_conformance!(crate::embedded::sqlite_fixture());
}

mod faulty_at_zero_rates {
    tenure_stream::stream_conformance!(crate::embedded::faulty_fixture());
}

mod instrumented_sqlite {
    tenure_stream::stream_conformance!(crate::embedded::instrumented_fixture());
}

use std::sync::Arc;

use tenure_clock::SystemClock;
use tenure_store::conformance::Subject;
use tenure_store::testing::env;
use tenure_store::{Instrumented, Memory};

async fn open() -> Subject {
    Subject::new(Instrumented::new(Memory::new(&env(0)), Arc::new(SystemClock)))
}

tenure_store::store_conformance!(open);

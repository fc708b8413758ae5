use tenure_store::Memory;
use tenure_store::conformance::Subject;
use tenure_store::testing::env;

async fn open() -> Subject {
    Subject::new(Memory::new(&env(0)))
}

tenure_store::store_conformance!(open);

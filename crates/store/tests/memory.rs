use tenure_store::Memory;
use tenure_store::conformance::Subject;
use tenure_store::testing::env;

async fn open() -> Subject {
    Subject::new(Memory::new(&env(0)))
}

tenure_store::store_conformance!(open);

#[tokio::test]
async fn tables_whose_names_differ_in_case_are_two() {
    tenure_store::conformance::tables_whose_names_differ_in_case_are_two(open().await).await;
}

//! DynamoDB over the real SDK: the suite on two emulators that others wrote, agreement of rendered
//! expressions with their pure meaning, faults on the way, and answers that no emulator gives.

mod agreement;
mod answers;
mod faults;
mod responder;
mod tidy;

use tenure_store::testing::env;
use tenure_store::{Address, DynamoDb, Env};

/// Amazon's own emulator: the reference.
mod dynamodb_local {
    super::on_emulator!("TENURE_TEST_DYNAMODB_LOCAL");
}

/// Another's emulator: it is wrong in other places.
mod dynoxide {
    super::on_emulator!("TENURE_TEST_DYNOXIDE");
}

const HOW_TO_RUN: &str =
    "run `cargo xtask services up` and `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`";

fn endpoint(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: {HOW_TO_RUN}"))
}

async fn opened(endpoint: &str) -> DynamoDb {
    opened_with(endpoint, &env(7)).await
}

async fn opened_with(endpoint: &str, env: &Env) -> DynamoDb {
    // Without them the SDK would look for a machine's role, slowly.
    assert!(std::env::var_os("AWS_ACCESS_KEY_ID").is_some(), "AWS_ACCESS_KEY_ID is not set: {HOW_TO_RUN}");
    let mut address = Address::parse(&format!("dynamodb:?region=eu-west-1&endpoint={endpoint}")).unwrap();
    DynamoDb::from_address(&mut address, env).await.unwrap()
}

/// Everything that an emulator is needed for.
macro_rules! on_emulator {
    ($variable:literal) => {
        use tenure_store::conformance::Subject;

        use crate::dynamodb::tidy::Tidy;
        use crate::dynamodb::{agreement, endpoint, faults, opened};

        async fn open() -> Subject {
            let endpoint = endpoint($variable);
            Subject::new(Tidy::new(opened(&endpoint).await, &endpoint))
        }

        tenure_store::store_conformance!(open);

        crate::dynamodb::on_emulator! { @cases $variable agreement:
            rendered_conditions_and_updates_agree_with_their_meaning
        }

        crate::dynamodb::on_emulator! { @cases $variable faults:
            a_lost_reply_is_unknown_and_the_row_is_there
            a_hang_is_unknown_by_the_deadline
            a_throttled_write_did_not_land
            a_server_error_is_unknown_whether_it_landed_or_not
            a_reset_is_unknown
            a_read_is_tried_again
            a_read_that_hangs_is_unavailable
            a_transaction_resent_with_its_nonce_happens_once
            a_table_is_made_in_spite_of_faults
        }
    };
    (@cases $variable:literal $module:ident: $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $module::$case(&endpoint($variable)).await;
            }
        )*
    };
}
use on_emulator;

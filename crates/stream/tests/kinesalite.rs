//! Kinesis over its SDK, against the quicker emulator, which cannot change the number of shards.

use tenure_stream::conformance::Capabilities;

const CAN: Capabilities = Capabilities { rescale: false, retention_bytes: false, page_sizes: false };

tenure_stream::stream_conformance!(crate::emulator::fixture("TENURE_TEST_KINESALITE", CAN));

crate::emulator::through_the_proxy::proxy_tests!("TENURE_TEST_KINESALITE";
    single_records_fail, a_lost_reply_is_unknown, what_did_not_land_is_told, reads_are_unavailable,
    a_create_with_lost_replies_converges);

//! Kinesis over its SDK, against the emulator that reshards.

use tenure_stream::conformance::Capabilities;

const CAN: Capabilities = Capabilities { rescale: true, retention_bytes: false, page_sizes: true };

tenure_stream::stream_conformance!(crate::emulator::fixture("TENURE_TEST_KINESIS_LOCAL", CAN));

crate::emulator::through_the_proxy::proxy_tests!("TENURE_TEST_KINESIS_LOCAL";
    single_records_fail, a_lost_reply_is_unknown, what_did_not_land_is_told, reads_are_unavailable,
    a_create_with_lost_replies_converges);

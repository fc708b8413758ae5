//! Reads the shards that a worker holds and hands their records to your code.

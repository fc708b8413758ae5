//! The consumer.

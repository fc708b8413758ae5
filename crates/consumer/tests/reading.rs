//! What is read, where it begins, and what is not delivered.

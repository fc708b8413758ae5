//! The handler, on a simulated cloud and cluster; and the template that it is deployed by.

mod handler;

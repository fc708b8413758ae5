//! From an address to a store.

use std::sync::Arc;

use tenure_backend::{Address, Env, Faults, Result};

use crate::{Faulty, Memory, Store};

/// The schemes that name a store, for messages.
const SCHEMES: [&str; 5] = ["sqlite", "memory", "dynamodb", "postgres", "faulty+sqlite"];

/// Opens the store that `address` names.
///
/// | address | store |
/// |---|---|
/// | `sqlite:PATH` | a file, shared by several processes; `?sweep_seconds=N` |
/// | `memory:` | this process alone, gone with it |
/// | `dynamodb:` | DynamoDB; `?region=`, `?profile=`, `?endpoint=`, `?pinned_region=` |
/// | `postgres://user@host/database` | a table per table; `?schema=`, `?sslmode=`, `?sslrootcert=` |
/// | `faulty+…` | any of them, going wrong as its seed says; `?seed=`, `?lost=`, … |
///
/// # Errors
/// `Invalid` for an unknown scheme or option, and for a backend that this build leaves out; otherwise
/// what the backend says.
pub async fn open(address: &str, env: &Env) -> Result<Arc<dyn Store>> {
    open_parsed(Address::parse(address)?, env).await
}

async fn open_parsed(mut address: Address, env: &Env) -> Result<Arc<dyn Store>> {
    if let Some(mut inner) = address.clone().unwrapped("faulty") {
        let faults = Arc::new(Faults::from_address(&mut inner)?);
        let inside = Box::pin(open_parsed(inner, env)).await?;
        return Ok(Arc::new(Faulty::new(inside, faults, env.clock.clone())));
    }
    match address.scheme() {
        "memory" => {
            address.finish()?;
            Ok(Arc::new(Memory::new(env)))
        }
        "sqlite" => sqlite(&mut address, env),
        "dynamodb" => dynamodb(&mut address, env).await,
        "postgres" | "postgresql" => postgres(&mut address, env).await,
        _ => Err(address.unknown_scheme("store", &SCHEMES)),
    }
}

#[cfg(feature = "sqlite")]
fn sqlite(address: &mut Address, env: &Env) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(crate::Sqlite::from_address(address, env)?))
}

#[cfg(feature = "dynamodb")]
async fn dynamodb(address: &mut Address, env: &Env) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(crate::DynamoDb::from_address(address, env).await?))
}

#[cfg(feature = "postgres")]
async fn postgres(address: &mut Address, env: &Env) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(crate::Postgres::from_address(address, env).await?))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_address: &mut Address, _env: &Env) -> Result<Arc<dyn Store>> {
    Err(left_out("SQLite", "sqlite"))
}

#[cfg(not(feature = "dynamodb"))]
#[allow(clippy::unused_async, reason = "stands in for the one that awaits")]
async fn dynamodb(_address: &mut Address, _env: &Env) -> Result<Arc<dyn Store>> {
    Err(left_out("DynamoDB", "aws"))
}

#[cfg(not(feature = "postgres"))]
#[allow(clippy::unused_async, reason = "stands in for the one that awaits")]
async fn postgres(_address: &mut Address, _env: &Env) -> Result<Arc<dyn Store>> {
    Err(left_out("Postgres", "postgres"))
}

#[cfg(not(all(feature = "sqlite", feature = "dynamodb", feature = "postgres")))]
fn left_out(what: &str, feature: &str) -> tenure_backend::Error {
    tenure_backend::Error::invalid(format!(
        "this build of Tenure leaves {what} out: build it with `--features {feature}`"
    ))
}

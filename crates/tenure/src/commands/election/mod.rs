//! Elections: `tenure elect`, `tenure leaders`, `tenure resign`.
//!
//! `elect` runs a command while it leads, by three processes of this binary:
//!
//! ```text
//!   tenure elect          stands for election, renews
//!     └ elect-guard       knows the deadline; ends the command at it, whatever becomes of the process above
//!         └ elect-exec    asks to die with the guard, then becomes the command
//! ```
//!
//! - `elect.rs` is the first, and `guarded.rs` its hold on the second; `guard.rs` is the other two.
//! - `message.rs` is what they say to each other; `descendants.rs` finds and ends whatever a command started.

mod descendants;
pub(crate) mod elect;
pub(crate) mod guard;
mod guarded;
pub(crate) mod leaders;
mod message;
pub(crate) mod resign;

use anyhow::Context as _;
use tenure_election::table_spec;
use tenure_store::Store;

use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};

/// Which table the rows of elections are in.
#[derive(clap::Args)]
pub(crate) struct Table {
    /// The table of the elections [default: election.table of the settings, tenure_coordination]
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
}

impl Table {
    /// The name, given or set.
    fn name(&self, context: &Context) -> String {
        self.table.clone().unwrap_or_else(|| context.settings.election.table.clone())
    }

    /// The name of a table that is there and has the right key.
    ///
    /// # Errors
    /// A misuse otherwise.
    async fn existing(&self, context: &Context, store: &dyn Store) -> anyhow::Result<String> {
        let name = self.name(context);
        let found = context.look(async |by| store.describe_table(by, &name).await).await;
        let found = found.map_err(misuse_if_invalid).with_context(|| format!("look at table `{name}`"))?;
        let Some(found) = found else {
            return Err(misuse(format!(
                "table `{name}` does not exist in {}: nobody stood for election there yet, or --table or --store is \
                 wrong",
                context.settings.store.url
            )));
        };
        table_spec(&name).check_same_key(&found).map_err(misuse_if_invalid)?;
        Ok(name)
    }
}

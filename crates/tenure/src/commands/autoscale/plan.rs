//! `tenure autoscale plan`: what a tick would do, and why; nothing is changed.

use std::process::ExitCode;

use serde_json::json;
use tenure_autoscaler::Planned;

use super::write_text;
use crate::context::Context;
use crate::failure::misuse_if_invalid;
use crate::output::one_line;

pub(super) async fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let executor = super::edges::onlooker(context).await?;
    let plan = executor.plan().await.map_err(misuse_if_invalid)?;
    let out = &context.out;
    if out.is_json() {
        let effects: Vec<_> = plan
            .effects
            .iter()
            .map(|effect| match effect {
                Planned::Write(change, write) => {
                    json!({ "write": change.name().row().title, "as": write_text::as_json(write) })
                }
                Planned::Call(call) => json!({ "call": call.what() }),
            })
            .collect();
        out.json_line(&json!({
            "decision": plan.decision(),
            "rev": plan.state.rev,
            "action": plan.state.action_id().map(|id| id.as_str()),
            "reasons": plan.reasons,
            "blockers": plan.blockers,
            "effects": effects,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    out.line(&format!("decision: {}", one_line(&plan.decision())))?;
    for reason in plan.reasons.iter().filter(|reason| !plan.blockers.contains(reason)) {
        out.line(&format!("because: {}", one_line(reason)))?;
    }
    for blocker in &plan.blockers {
        out.line(&format!("but: {}", one_line(blocker)))?;
    }
    for effect in &plan.effects {
        match effect {
            Planned::Write(change, write) => {
                out.line(&format!("would write `{}`:", change.name().row().title))?;
                for line in write_text::lines(write) {
                    out.line(&format!("  {line}"))?;
                }
            }
            Planned::Call(call) => out.line(&format!("would {}", one_line(&call.what())))?,
        }
    }
    if plan.effects.is_empty() {
        out.line("a tick would do nothing now")?;
    }
    Ok(ExitCode::SUCCESS)
}

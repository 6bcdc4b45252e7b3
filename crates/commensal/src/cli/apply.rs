//! The commands `plan` and `apply`.

use super::args::Groups;
use crate::context::Context;
use commensal_core::plan::{Action, Step};
use commensal_core::reach::text;
use commensal_core::text::{count, shell};
use commensal_host::Host;
use commensal_reconcile::{
    Outcome, PlanRequest, Planned, adopt, forget_settled, groups_file, journal, reach,
};
use serde_json::json;
use std::path::Path;

/// Shows the plan. Status 1 when there are steps to do or a setting is unmet.
pub fn plan(context: &mut Context, options: &Groups) -> anyhow::Result<u8> {
    let settings = context.compiled(&options.config)?;
    context.ask_engines(&settings.groups)?;
    let _lock = context.lock_to_look()?;
    let survey = context.survey()?;
    let planned = context.plan_on(&survey, PlanRequest::all(&settings.groups))?;
    let reach = reach(&mut context.host, &planned, &survey.machine, &settings);
    if options.json {
        let mut value = as_json(&planned, None);
        value["agent"] = json!(reach);
        println!("{}", commensal_core::text::json_pretty(&value)?);
    } else {
        print!("{}{}", planned.plan.describe(&planned.actual), text(&reach));
    }
    Ok(u8::from(!planned.plan.is_empty() || !planned.plan.unmet.is_empty()))
}

/// Executes the plan. Status 1 when a setting is unmet or a process could not be moved and stays in its cgroup, 2 when a
/// step was refused.
pub fn apply<H: Host>(context: &mut Context<H>, options: &Groups) -> anyhow::Result<u8> {
    context.without_agent("edit its groups file instead: the agent reads the file again when it changes")?;
    let texts = groups_file::texts(&context.host, &options.config)?;
    let specs = groups_file::compile(&texts)?.groups;
    context.can_record()?;
    let _master = context.as_master()?;
    context.ask_engines(&specs)?;
    let _lock = context.lock()?;
    // Damage in either journal must be noticed before anything is written.
    context.journal(journal::RUN)?;
    let mut journal = context.journal(journal::MACHINE)?;
    let (planned, outcome) = context.enforce(PlanRequest::all(&specs), &mut journal)?;
    if options.json {
        println!("{}", commensal_core::text::json_pretty(&as_json(&planned, Some(&outcome)))?);
    } else {
        print!("{}", planned.plan.describe(&planned.actual));
    }
    if outcome.failure.is_none() {
        adopt(&context.instance(), &mut context.host, &planned, &mut journal)?;
        forget_settled(&mut context.host, &planned.plan.settled, &planned.actual, &mut journal)?;
    }
    if let Some(failure) = &outcome.failure {
        eprintln!("{}", refused(&planned, &outcome, failure));
        return Ok(2);
    }
    for line in outcome.stayed.iter().chain(&outcome.told) {
        eprintln!("commensal: {line}");
    }
    let base = &planned.actual.tenancy.base;
    if base.unit().as_ref() == Some(base)
        && planned.plan.steps.iter().any(|step| step.action == Action::Create)
    {
        eprintln!(
            "commensal: the new groups are inside the unit {base} and are removed with it when its last process exits: \
             start their commands with `commensal run` in the same unit"
        );
    }
    if let Err(error) = groups_file::save(&mut context.host, &context.state_dir, &texts) {
        eprintln!("commensal: `status` will not know which groups were applied: {error}");
    }
    if !options.json {
        println!("done     {} of {} steps", outcome.done, planned.plan.steps.len());
        println!("{}", in_force(context, &planned, &outcome, &options.config));
    }
    Ok(u8::from(!planned.plan.unmet.is_empty() || !outcome.stayed.is_empty()))
}

/// The last line of `apply`: what is in force now, what is not, how to undo it, and how to keep it.
fn in_force<H: Host>(context: &Context<H>, planned: &Planned, outcome: &Outcome, config: &Path) -> String {
    let groups = count(planned.desired.groups.len() as u64, "group");
    let missing = planned.plan.unmet.len() + outcome.stayed.len();
    let state = match missing {
        0 => format!("{groups}, everything requested"),
        missing => format!("{groups}, but {missing} of what they request is not (see above)"),
    };
    format!(
        "in force {state}; `{}` undoes it. New members are not followed: `{} -c {}` does that",
        context.command("restore"),
        context.command("agent"),
        shell(&config.to_string_lossy())
    )
}

/// Returns the message after a refused step: the step, the reason, and whether the steps before it were reverted.
pub fn refused(planned: &Planned, outcome: &Outcome, failure: &commensal_reconcile::Failure) -> String {
    let total = planned.plan.steps.len();
    let state = match (outcome.done, failure.left.as_slice()) {
        (0, []) => "nothing was changed".to_owned(),
        (done, []) => format!("{done} of {total} steps had been done and were reverted"),
        (done, left) => {
            format!("{done} of {total} steps had been done; these could not be reverted: {}", left.join("; "))
        }
    };
    let source =
        std::error::Error::source(&failure.refusal).map(|source| format!(": {source}")).unwrap_or_default();
    format!(
        "commensal: step {} of {total} was refused: {}\n  {}{source}\n  state: {state}",
        failure.step + 1,
        failure.description,
        failure.refusal
    )
}

fn as_json(planned: &Planned, outcome: Option<&Outcome>) -> serde_json::Value {
    let step = |step: &Step| {
        let (action, knob, device, from, to) = match &step.action {
            Action::Create => ("create", None, None, None, None),
            Action::Remove => ("remove", None, None, None, None),
            Action::Enable(controller) => ("enable", Some(controller.to_string()), None, None, None),
            Action::Disable(controller) => ("disable", Some(controller.to_string()), None, None, None),
            Action::Irreversible { knob, from, to } => (
                "write-irreversible",
                Some(knob.to_string()),
                None,
                Some(from.to_string()),
                Some(to.to_string()),
            ),
            Action::Recreate { knob, from, to } => {
                ("recreate", Some(knob.to_string()), None, Some(from.to_string()), Some(to.to_string()))
            }
            Action::Switch { switch, from, to } => {
                ("switch", Some(switch.to_string()), None, Some(from.to_string()), Some(to.to_string()))
            }
            Action::Move(movement) => {
                let path = movement.from.values().next().map(|path| path.as_str().to_owned());
                ("move", None, None, path, Some(movement.name.clone()))
            }
            Action::Order { from, to } => ("order", None, None, Some(from.describe()), Some(to.describe())),
            Action::Cookie { give } => {
                let word = |given: bool| Some(if given { "one" } else { "none" }.to_owned());
                ("cookie", None, None, word(!give), word(*give))
            }
            Action::Write { knob, device, from, to } => {
                let device = device.map(|device| device.to_string());
                ("write", Some(knob.to_string()), device, Some(from.to_string()), Some(to.to_string()))
            }
        };
        json!({
            "action": action, "cgroup": planned.actual.name(&step.place), "knob": knob, "device": device,
            "from": from, "to": to, "why": step.why,
        })
    };
    let unmet = |unmet: &commensal_core::plan::Unmet| json!({ "group": unmet.group.as_str(), "what": unmet.what, "because": unmet.because, "try": unmet.try_this });
    let mut value = json!({
        "steps": planned.plan.steps.iter().map(step).collect::<Vec<_>>(),
        "unmet": planned.plan.unmet.iter().map(unmet).collect::<Vec<_>>(),
        "notes": planned.plan.notes,
    });
    if let Some(outcome) = outcome {
        let failure = outcome.failure.as_ref().map(|failure| {
            json!({ "step": failure.step + 1, "what": failure.description, "because": failure.refusal.to_string(), "left": failure.left })
        });
        value["done"] = json!(outcome.done);
        value["stayed"] = json!(outcome.stayed);
        value["told"] = json!(outcome.told);
        value["failure"] = json!(failure);
    }
    value
}

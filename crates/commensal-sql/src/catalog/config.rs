//! `ADMIN SET FRONTEND CONFIG`: the settings of Doris' front end that have an effect here.

use super::outcome::{CatalogError, refuse};
use crate::statement::Properties;

/// The configuration. Unlike in Doris, it persists across restarts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Whether CPU hard limits are enforced. In Doris 2.1 and 3.x this setting switches all groups between hard limits
    /// and soft shares. Here soft shares always apply, and `false` only disables the hard limits.
    pub enable_cpu_hard_limit: bool,
    /// Maximum number of groups in a compute group.
    pub workload_group_max_num: usize,
    /// Maximum number of policies.
    pub workload_max_policy_num: usize,
    /// Maximum number of conditions of a policy.
    pub workload_max_condition_num_in_policy: usize,
    /// Maximum number of actions of a policy.
    pub workload_max_action_num_in_policy: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            enable_cpu_hard_limit: true,
            workload_group_max_num: 15,
            workload_max_policy_num: 25,
            workload_max_condition_num_in_policy: 5,
            workload_max_action_num_in_policy: 5,
        }
    }
}

/// Keys of Doris' configuration that scripts set and that have no effect here, each with the reason.
const WITHOUT_EFFECT: [(&str, &str); 4] = [
    ("enable_workload_group", "workload groups are always on"),
    ("query_queue_update_interval_ms", "a change of a group takes effect on its queue at once"),
    ("workload_sched_policy_interval_ms", "policies are evaluated every 100 ms"),
    (
        "workload_runtime_status_thread_interval_ms",
        "usage is measured continuously, and rates are averages over one second",
    ),
];

impl Config {
    /// Returns every key with its value.
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        vec![
            ("enable_cpu_hard_limit", self.enable_cpu_hard_limit.to_string()),
            ("workload_group_max_num", self.workload_group_max_num.to_string()),
            ("workload_max_action_num_in_policy", self.workload_max_action_num_in_policy.to_string()),
            ("workload_max_condition_num_in_policy", self.workload_max_condition_num_in_policy.to_string()),
            ("workload_max_policy_num", self.workload_max_policy_num.to_string()),
        ]
    }

    /// Returns the configuration with some keys changed, and warnings about keys that have no effect.
    pub(super) fn altered(&self, given: &Properties) -> Result<(Config, Vec<String>), CatalogError> {
        let (mut new, mut warnings) = (self.clone(), Vec::new());
        if given.is_empty() {
            return refuse(
                "ADMIN SET FRONTEND CONFIG needs at least one key, such as (\"enable_cpu_hard_limit\" = \"true\")",
            );
        }
        for (key, value) in given {
            if let Some((_, reason)) = WITHOUT_EFFECT.iter().find(|(known, _)| known == key) {
                if key == "enable_workload_group" && !value.eq_ignore_ascii_case("true") {
                    return refuse("enable_workload_group cannot be false: workload groups are always on");
                }
                warnings.push(format!("{key} has no effect: {reason}"));
                continue;
            }
            let number = || {
                let number =
                    value.trim().parse::<usize>().ok().filter(|number| (1..=10_000).contains(number));
                number.ok_or_else(|| {
                    CatalogError::Refused(format!(
                        "{key} must be a number from 1 to 10000, but input value is {value}"
                    ))
                })
            };
            match key.as_str() {
                "enable_cpu_hard_limit" => {
                    new.enable_cpu_hard_limit = value.trim().to_lowercase().parse().map_err(|_| {
                        CatalogError::Refused(format!(
                            "{key} must be true or false, but input value is {value}"
                        ))
                    })?;
                }
                "workload_group_max_num" => new.workload_group_max_num = number()?,
                "workload_max_policy_num" => new.workload_max_policy_num = number()?,
                "workload_max_condition_num_in_policy" => {
                    new.workload_max_condition_num_in_policy = number()?
                }
                "workload_max_action_num_in_policy" => new.workload_max_action_num_in_policy = number()?,
                _ => {
                    let known: Vec<&str> = self.entries().iter().map(|(key, _)| *key).collect();
                    let known = known.join(", ");
                    return refuse(format!(
                        "Config '{key}' does not exist or is not mutable; supported are {known}"
                    ));
                }
            }
        }
        Ok((new, warnings))
    }
}

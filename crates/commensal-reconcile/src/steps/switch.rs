//! Machine-wide switches of vendors' kernels, on which settings of groups depend.

use super::kind::{Facts, Kind, Rank};
use crate::drivers::apply::{Refusal, Work, host_error};
use crate::journal::{Mounts, Record, Switching};
use crate::restore::{Left, Undo, Undone, not_taken, shared};
use commensal_core::actual::{ActualState, Ours};
use commensal_core::text;
use commensal_core::vendor::Switch;
use commensal_host::Host;
use std::path::Path;

/// Returns the record of a switch that has this value.
pub(super) fn record(switch: Switch, value: i64) -> Record {
    Record::Switching(Switching { switch: switch.to_string(), value: value.to_string() })
}

impl Work<'_> {
    pub(super) fn switch(&mut self, switch: Switch, to: i64) -> Result<(), Refusal> {
        let (path, place, want) = (Path::new(switch.path()), "the machine's".to_owned(), to.to_string());
        let file = switch.name();
        let written = self.host.write_setting(path, &want);
        match (written, self.host.read_file(path)) {
            (_, Ok(read)) if read.trim() == want => Ok(()),
            (Err(error), _) => Err(host_error(error, Some(switch.knob()))),
            (Ok(()), Ok(read)) => Err(Refusal::ReadBack { place, file, want, read: read.trim().to_owned() }),
            (Ok(()), Err(error)) => Err(Refusal::Unread { place, file, because: error.to_string() }),
        }
    }
}

impl Kind for Switching {
    fn facts(&self) -> Facts<'_> {
        // Turning a switch clears the knobs that it governs, so their original values are written after it.
        Facts { rank: Rank::First, group: None, proof: false }
    }

    fn words(&self) -> String {
        format!("{} was {}", text::visible(&self.switch), text::visible(self.value.trim()))
    }

    fn objection(&self, _: &Mounts) -> Option<String> {
        let Switching { switch, value } = self;
        match Switch::from_name(switch) {
            None => Some(format!("commensal never changes a switch {switch:?}")),
            Some(_) if !["0", "1"].contains(&value.trim()) => Some(format!("{switch} cannot be {value:?}")),
            Some(_) => None,
        }
    }

    fn subject(&self) -> Option<Record> {
        Some(Record::Switching(Switching { switch: self.switch.clone(), value: String::new() }))
    }

    fn claim(&self, _: &ActualState, ours: &mut Ours) {
        ours.switches.extend(Switch::from_name(&self.switch).zip(self.value.trim().parse().ok()));
    }

    /// Restores the switch, unless that would clear a value of a group without a record.
    fn undo(&self, host: &mut dyn Host, undo: &mut Undo<'_>) -> Undone {
        let (Some(switch), value) = (Switch::from_name(&self.switch), &self.value) else { return Ok(None) };
        let path = Path::new(switch.path());
        match host.read_file(path) {
            Ok(now) if now.trim() != value => {
                if let Some(user) = shared::user(host, switch.knob(), &|path| undo.has_within(path)) {
                    let (now, user) = (now.trim(), text::visible(&user));
                    return Err(Left::Busy(format!("{switch} stays {now}: group {user} uses it")));
                }
                host.write_setting(path, value)?;
                let now = host.read_file(path)?;
                if now.trim() != value.trim() {
                    return Err(Left::Failed(not_taken(path.display().to_string(), value)));
                }
                Ok(Some(format!("{switch} is {value} again")))
            }
            _ => Ok(None),
        }
    }
}

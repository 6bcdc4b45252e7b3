//! Reads what starts work by the clock: crontabs and systemd's timers.

/// A job of cron.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronJob {
    /// `file:line`.
    pub at: String,
    /// The command.
    pub command: String,
}

/// Returns the jobs in a crontab (crontab(5)) that are not the machine's own. `has_user`: whether a line names the user
/// before the command, as in `/etc/crontab` and `/etc/cron.d`.
#[must_use]
pub fn cron_jobs(file: &str, text: &str, has_user: bool) -> Vec<CronJob> {
    // Files of the distributions' packages: their jobs are short, or belong to the machine.
    const OF_PACKAGES: &[&str] = &[
        "e2scrub_all",
        "sysstat",
        "popularity-contest",
        "anacron",
        "mdadm",
        "zfsutils-linux",
        "certbot",
        "php",
        "raid-check",
        "0hourly",
        "john",
        "rkhunter",
    ];
    if OF_PACKAGES.contains(&file.rsplit('/').next().unwrap_or(file)) {
        return Vec::new();
    }
    let job = |(index, line): (usize, &str)| {
        let line = line.trim();
        let first = line.split_whitespace().next()?;
        let is_setting = first.contains('=')
            || line.split_once('=').is_some_and(|(name, _)| !name.trim().contains(char::is_whitespace));
        if first.starts_with('#') || (is_setting && !first.starts_with(['@', '*'])) {
            return None;
        }
        let fields = if first.starts_with('@') { 1 } else { 5 } + usize::from(has_user);
        let command = after(line, fields)?;
        // Debian's daily, weekly and monthly folders.
        let own = command.is_empty() || command.contains("run-parts");
        (!own).then(|| CronJob { at: format!("{file}:{}", index + 1), command: command.to_owned() })
    };
    text.lines().enumerate().filter_map(job).collect()
}

/// The rest of a line after some fields.
fn after(line: &str, fields: usize) -> Option<&str> {
    let mut rest = line;
    for _ in 0..fields {
        rest = rest.split_once(char::is_whitespace)?.1.trim_start();
    }
    Some(rest)
}

/// The unit that a timer starts: the value of `Unit=` in its file, by default the service with the timer's name
/// (systemd.timer(5)). `None` if that is not a service.
#[must_use]
pub fn timer_unit(timer: &str, file: &str) -> Option<String> {
    let set = file.lines().filter_map(|line| line.trim().strip_prefix("Unit=")).map(str::trim).next_back();
    let unit = match set.filter(|unit| !unit.is_empty()) {
        Some(unit) => unit.to_owned(),
        None => format!("{}.service", timer.strip_suffix(".timer")?),
    };
    // A template is not a unit.
    (unit.ends_with(".service") && !unit.ends_with("@.service")).then_some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_crontabs() {
        let check = |text: &str, has_user: bool, want: &[&str]| {
            let jobs: Vec<String> =
                cron_jobs("/etc/crontab", text, has_user).into_iter().map(|job| job.command).collect();
            assert_eq!(jobs, want, "{text:?}");
        };
        check("", true, &[]);
        check("# 0 2 * * * root /a", true, &[]);
        check("SHELL=/bin/sh\nPATH = /bin:/usr/bin\n", true, &[]);
        check("0 2 * * * root /opt/backup --all\n", true, &["/opt/backup --all"]);
        check("0 2 * * * /opt/backup --to=x", false, &["/opt/backup --to=x"]);
        check("*/5\t*\t*\t*\t*\troot\t  a  b ", true, &["a  b"]);
        check("@daily root /opt/etl", true, &["/opt/etl"]);
        check("@reboot /opt/x", false, &["/opt/x"]);
        check("17 * * * * root cd / && run-parts --report /etc/cron.hourly", true, &[]);
        check("0 2 * *", true, &[]);
        check("0 2 * * * root", true, &[]);
        assert_eq!(cron_jobs("/etc/cron.d/e2scrub_all", "0 2 * * * root /a", true), []);
        assert_eq!(cron_jobs("/c", "\n\n0 0 * * * x y\n", true)[0].at, "/c:3");
    }

    #[test]
    fn units_of_timers() {
        for (timer, file, want) in [
            ("backup.timer", "[Timer]\nOnCalendar=daily\n", Some("backup.service")),
            ("a.timer", "[Timer]\n Unit= b.service \n", Some("b.service")),
            ("a.timer", "Unit=b.target", None),
            ("a@.timer", "", None),
            ("a@x.timer", "", Some("a@x.service")),
            ("a.timer", "Unit=\n", Some("a.service")),
            ("a", "", None),
        ] {
            assert_eq!(timer_unit(timer, file).as_deref(), want, "{timer} {file:?}");
        }
    }
}

#!/bin/sh
# After the files are in place. dpkg: `configure OLD-VERSION`; rpm: the number of versions that are installed now.
set -e

if command -v systemd-sysusers >/dev/null 2>&1; then
    systemd-sysusers commensal-sql.conf || echo "commensal-sql: the user commensal-sql was not created, so the unit cannot start" >&2
fi

# Without systemd, or in an image that is being built, nothing runs.
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # An upgrade replaces what runs. What does not run stays off.
    systemctl try-restart commensal-sql.service ||
        echo "commensal-sql: the server could not be restarted: systemctl status commensal-sql" >&2
fi

#!/bin/sh
# Before the program is removed. dpkg: `remove` or `upgrade NEW-VERSION`; rpm: the number of versions that stay.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
    systemctl disable --now commensal-sql.service || :
fi

#!/bin/sh
# After the files are removed.
set -e

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
fi

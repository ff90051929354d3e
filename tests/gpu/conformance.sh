#!/usr/bin/env bash
# conformance.sh PROGRAM DEVICE OPTION...: the conformance suite; its last line sums up.
# Status 77 where no case has the names asked for.
set -euo pipefail

program=$1 device=$2
shift 2
only='' previous=''
for word in "$@"; do
    if [ "$previous" = --only ]; then only=$word; fi
    previous=$word
done
if [ -n "$only" ] && [ -z "$("$program" --device "$device" --list --only "$only")" ]; then
    echo "the suite has no case $only"
    exit 77
fi
exec "$program" --device "$device" "$@"

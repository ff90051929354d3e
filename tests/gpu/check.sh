#!/bin/sh
# Proves and measures the library on a GPU: check.py says how (check.sh --help). Python is $PYTHON, else python3.
exec "${PYTHON:-python3}" "$(dirname "$0")/check.py" "$@"

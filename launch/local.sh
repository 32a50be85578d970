#!/usr/bin/env bash
# Train or evaluate on this machine: launch/local.sh --config=configs/tiny.py --workdir=runs/tiny
#
# Makes the virtual environment .venv and installs into it when that is missing or out of date,
# then runs `python -m bertjax.main` with the same arguments, in the caller's directory: paths are
# the caller's, except that configs/... is this repository's where the caller has no such file.
# See environment.sh for PYTHON= and EXTRAS=.
set -euo pipefail
# shellcheck source=launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

prepare_environment
arguments=()
for argument in "$@"; do
    if [[ $argument == --config=configs/* ]]; then
        file=${argument#--config=}
        file=${file%%:*}
        [[ -e $file || ! -e $root/$file ]] || argument=--config=$root/${argument#--config=}
    fi
    arguments+=("$argument")
done
# exec: signals reach Python itself, and its exit code is this command's.
exec "$python" -m bertjax.main ${arguments[@]+"${arguments[@]}"}

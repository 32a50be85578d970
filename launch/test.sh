#!/usr/bin/env bash
# Run the tests: launch/test.sh [--all] [pytest's arguments]
#
# --all adds the tests that take minutes. Everything else goes to pytest, in the repository's root.
# The virtual environment is local.sh's; see environment.sh for PYTHON= and EXTRAS=.
set -euo pipefail
# shellcheck source=launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

prepare_environment
cd "$root"
exec "$python" -m pytest "$@"

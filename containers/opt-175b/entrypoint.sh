#!/bin/sh
# Loads the environment, with the variables that depend on what is there, and becomes the command.
set -eu
. /opt/envbuild/current/opt-175b/.envbuild/activate.sh
exec "$@"

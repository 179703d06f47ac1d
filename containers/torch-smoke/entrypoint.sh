#!/bin/sh
# Loads the environment, with the variables that depend on what is there, and becomes the command.
set -eu
# These stay as the container was given them: `-e NAME=VALUE`, else the image.
set -- env \
    ${OMP_NUM_THREADS+"OMP_NUM_THREADS=$OMP_NUM_THREADS"} \
    ${PYTHONHASHSEED+"PYTHONHASHSEED=$PYTHONHASHSEED"} \
    ${PYTHONNOUSERSITE+"PYTHONNOUSERSITE=$PYTHONNOUSERSITE"} "$@"
. /opt/envbuild/current/torch-smoke/.envbuild/activate.sh
exec "$@"

#!/bin/sh
# Loads the environment, with the variables that depend on what is there, and becomes the command.
set -eu
# A user whom the image does not know has no home and no name in it.
[ -n "${HOME-}" ] && [ -w "$HOME" ] || export HOME=/home/envbuild
id -un > /dev/null 2>&1 || export USER=envbuild
# These stay as the container was given them: `-e NAME=VALUE`, else the image.
set -- env \
    ${CUDA_DEVICE_MAX_CONNECTIONS+"CUDA_DEVICE_MAX_CONNECTIONS=$CUDA_DEVICE_MAX_CONNECTIONS"} \
    ${WANDB_MODE+"WANDB_MODE=$WANDB_MODE"} \
    ${http_proxy+"http_proxy=$http_proxy"} \
    ${https_proxy+"https_proxy=$https_proxy"} "$@"
. /opt/envbuild/current/megatron-deepspeed-alcf/.envbuild/activate.sh
exec "$@"

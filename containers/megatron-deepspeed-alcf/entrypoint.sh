#!/bin/sh
# Loads the environment, with the variables that depend on what is there, and becomes the command.
set -eu
# These stay as the container was given them: `-e NAME=VALUE`, else the image.
set -- env \
    ${CUDA_DEVICE_MAX_CONNECTIONS+"CUDA_DEVICE_MAX_CONNECTIONS=$CUDA_DEVICE_MAX_CONNECTIONS"} \
    ${WANDB_MODE+"WANDB_MODE=$WANDB_MODE"} \
    ${http_proxy+"http_proxy=$http_proxy"} \
    ${https_proxy+"https_proxy=$https_proxy"} "$@"
. /opt/envbuild/current/megatron-deepspeed-alcf/.envbuild/activate.sh
exec "$@"

#!/bin/sh
# Loads the environment, with the variables that depend on what is there, and becomes the command.
set -eu
# A user whom the image does not know has no home and no name in it.
[ -n "${HOME-}" ] && [ -w "$HOME" ] || export HOME=/home/envbuild
id -un > /dev/null 2>&1 || export USER=envbuild
# These stay as the container was given them: `-e NAME=VALUE`, else the image.
set -- env \
    ${CUDA_DEVICE_ORDER+"CUDA_DEVICE_ORDER=$CUDA_DEVICE_ORDER"} \
    ${NCCL_IB_PCI_RELAXED_ORDERING+"NCCL_IB_PCI_RELAXED_ORDERING=$NCCL_IB_PCI_RELAXED_ORDERING"} \
    ${NCCL_SOCKET_IFNAME+"NCCL_SOCKET_IFNAME=$NCCL_SOCKET_IFNAME"} \
    ${OMPI_MCA_coll_hcoll_enable+"OMPI_MCA_coll_hcoll_enable=$OMPI_MCA_coll_hcoll_enable"} \
    ${UCX_IB_PCI_RELAXED_ORDERING+"UCX_IB_PCI_RELAXED_ORDERING=$UCX_IB_PCI_RELAXED_ORDERING"} \
    ${UCX_NET_DEVICES+"UCX_NET_DEVICES=$UCX_NET_DEVICES"} "$@"
. /opt/envbuild/current/opt-175b/.envbuild/activate.sh
exec "$@"

"""Conda on this machine: addresses of channels, and the solver's answer for a profile. py-rattler does the work.

In: the conda section of a profile and the virtual packages of a target. Out: archives by name and sha256. Never
installs; no other room of the controller imports rattler, and these modules only when they need it.
"""

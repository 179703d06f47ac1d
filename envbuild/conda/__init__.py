"""Conda on this machine: where channels lie, what their solver says of a profile. py-rattler does the work.

In: what a profile asks of conda and the virtual packages of a target. Out: archives by name and sha256. Never installs;
nothing else of the controller imports rattler, and these modules when they need it.
"""

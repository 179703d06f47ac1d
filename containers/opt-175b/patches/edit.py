import json
import sys

from envbuild.node.patch.apply import apply

with open(sys.argv[1]) as file:
    for patch in json.load(file):
        apply(".", patch)

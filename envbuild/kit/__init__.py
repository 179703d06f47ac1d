"""The reviewer's kit: one folder or tar with a report, its lock and a README of claims and commands; and its check.

In: a report. Out: files whose digests are in `kit.json`; findings. README follows from the report and `kit.json`, and
is made again to check it. Never imports `provision`.
"""

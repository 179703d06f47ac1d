"""The reviewer's kit: one folder or tar with a report and all that a reviewer needs beside it, and the check of one.

In: a report, its stack's document, the authors' names. Out: files whose digests stand in `kit.json`; findings.
Everything but the annotated document follows from the report and `kit.json`, and is made again to check it.
Never imports `provision`.
"""

"""MegatronAPP's text traces: read, measured, and shown as a Chrome trace, a picture and a sheet.

In: the lines that its training prints. Out: files that do not depend on when or where they are made.
Never starts a run.
"""

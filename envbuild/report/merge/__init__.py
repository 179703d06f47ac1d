"""Reports of parts of one run, nodes or jobs, as one: evidence that follows from theirs, which lie beside it untouched.

In: reports that hold. Out: evidence, and the files of the parts by digest. Never changes a part.
"""

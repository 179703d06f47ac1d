"""Several nodes: waves, who builds for whom, how an environment gets round, the joint smoke test.

In: a plan. Out: what each node answered.
Never imports `jobs` or `images`.
"""

"""The report for other programs: JUnit XML, CycloneDX, CSV. In: Evidence. Out: the same text for the same run.

Never looks at a clock, a node or the network.
"""

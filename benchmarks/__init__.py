"""What envbuild costs against what users do today: ratios, measured in one run. Never part of the tests."""

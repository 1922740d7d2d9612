"""The suites: one file each, which declares what is measured."""

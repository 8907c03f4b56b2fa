"""The commands, one file a group; each is thin over :mod:`kvrm.api`."""

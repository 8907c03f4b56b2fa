"""A run as a timeline in the trace event format."""

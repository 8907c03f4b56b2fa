"""kvrm_analysis: tables, figures and studies of runs. Reads what a run wrote; decides nothing."""

"""Where many runs are carried out: processes of this machine or a Ray cluster; cells, and replicas that run apart."""

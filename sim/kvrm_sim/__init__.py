"""kvrm_sim: the simulator — pager, scheduler, transport, cost, engine — and its configuration.

Never imports torch; only the engine (and the cluster built on it) imports simpy.
"""

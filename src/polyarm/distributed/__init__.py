"""Jobs of several processes: which share of the envs, and which GPU, is whose."""

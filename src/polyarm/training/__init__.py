"""Training: for now a minimal loop that checks the pipeline from envs to gradients."""

"""Executions instead of samples: what counts follow, and an estimate from the order of branches."""

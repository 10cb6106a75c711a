"""AgentFlow: trees of agent trajectories in sandboxes that fork."""

"""From a spec to a plan that can be started: cluster, profile, forecast and limits."""

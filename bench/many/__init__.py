"""Many tenants on one pool: what Ease.ml's rules for who is served next are worth."""

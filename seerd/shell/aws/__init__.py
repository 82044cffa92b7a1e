"""What AWS is asked for: clients, errors in plain words, EC2, prices, quotas. Knows no run and no trial; providers and stores are made of it."""

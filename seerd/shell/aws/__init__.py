"""What AWS is asked for, and how: clients, errors in plain words, EC2, prices, quotas.

The one rule: it knows no run and no trial; providers and stores are made of it.
"""

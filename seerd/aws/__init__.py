"""What AWS is asked for, and how: clients, errors in plain words, EC2, prices, quotas.

The one rule: nothing here knows runs or trials; providers and stores are built on it.
"""

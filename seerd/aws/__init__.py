"""What AWS is asked for, and how. Nothing here knows runs or trials."""

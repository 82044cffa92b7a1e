"""Violence on the real thing: real runs, and a hand that hurts them at random: see README.md.

The one rule: what is judged is what can be seen from outside (processes, files, the rig's account);
seerd's own words are judged, not believed.
"""

"""What `seerd image build` does on an instance, as scripts that can be read: `provision.sh`,
`check.sh`, `clean.sh`. See README.md.
"""

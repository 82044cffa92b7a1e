"""The asyncio shell around the core: it carries out the core's commands and reports their
outcomes. It makes no decisions.
"""

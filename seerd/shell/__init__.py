"""The asyncio shell around the core: it carries out the core's commands and tells the core of their
outcomes. It makes no decisions.
"""

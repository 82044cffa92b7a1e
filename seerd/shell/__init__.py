"""The asyncio shell around the core: it carries out commands and tells the core what came of them.
No decision is made here.
"""

"""The asyncio runtime."""

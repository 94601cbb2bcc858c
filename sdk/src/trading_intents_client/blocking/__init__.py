"""The client without asyncio: the asynchronous one, run by an event loop in a thread of its own."""

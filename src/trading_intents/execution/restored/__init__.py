"""Restored data, or data of which committed work was lost: what they would send may have been
sent."""

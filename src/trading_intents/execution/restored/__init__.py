"""Marks data that were restored, or of which committed work was lost: what they would send may have
been sent."""

"""Texts that Hypothesis makes up."""

from hypothesis import strategies as st

# From code points, lone surrogates included: st.text() first builds a table, for seconds on a fresh
# machine.
ANY_TEXT = st.lists(st.integers(0, 0x10FFFF).map(chr)).map("".join)

"""The state that a batch is decided by: the rules, and what is read under the locks of its
accounts."""

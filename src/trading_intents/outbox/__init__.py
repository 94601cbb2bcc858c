"""The transactional outbox: rows put in the transaction that they speak of, handled once that has committed."""

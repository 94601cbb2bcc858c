"""The transactional outbox: rows are put in the transaction of a change, and handled once it has
committed."""

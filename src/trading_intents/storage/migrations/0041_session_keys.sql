-- A session key is made for a user (user_subject) by a token (token_digest), and ends with it. `member_trading`: members of the
-- organization may have one, not only its admins.
-- squawk-ignore-file require-lock-timeout, require-statement-timeout
ALTER TABLE api_keys
    ADD COLUMN user_subject text,
    ADD COLUMN token_digest bytea CHECK (octet_length(token_digest) = 32);
ALTER TABLE organizations ADD COLUMN member_trading boolean NOT NULL DEFAULT false;

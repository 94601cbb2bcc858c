"""The answers of the API as frozen structs: amounts are Decimal, times are datetime, unknown fields
are ignored."""

"""The files that `make dist` makes of the API's description, checked by the programs that read them."""

"""The suite that every broker integration must pass, the platform's own and others'."""

"""The trader's commands, as a trader types them."""

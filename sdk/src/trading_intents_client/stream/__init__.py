"""The event stream: typed events, resumed by cursor after every break, over HTTP or gRPC."""

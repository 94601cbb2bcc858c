"""`watch`: a live blotter in the terminal."""

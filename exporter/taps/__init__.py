"""Where the bytes of streams come from, and what is made of them."""

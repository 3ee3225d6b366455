"""What was learnt, and the families of q it may be kept as."""

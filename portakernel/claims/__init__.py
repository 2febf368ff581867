"""What a call asks, what a kernel claims, and the reasons why one cannot serve the other."""

"""Table segments: hash and fixed-key layouts over a container (design §7, wire §8)."""

"""`make bench`: what the guarantee costs, as ratios measured in one run. Not a test; asserts no time."""

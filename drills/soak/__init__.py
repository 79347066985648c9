"""The soak: one deployment that lives through a seeded schedule of faults and then must settle."""

"""Market worlds: a bidding problem discovered from data, simulated in many different worlds at once.

- sample: exports drawn from hidden parameters, the data of a first run and the oracle of the tests
- discovery: from a GA4 export and an advertiser's reports to `Patterns`, every number with interval and provenance
- worlds: from patterns to `World`s, no two alike, no number typed in
- simulation: `MarketWorlds`, W worlds stepped as one
"""

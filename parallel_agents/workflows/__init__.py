"""Network defence in a chosen order of repair, and the search for the best order.

- network: the game, CAGE Challenge 2 batched over worlds
- defence, foreign, wrapper: the game as an environment of the engine, of Gymnasium and PettingZoo, and as arrays
- recordings, replay: recorded episodes of the reference simulator, reproduced exactly
- policies: scripted defenders
- orders: the 120 workflows and their features
- compliance: whether fixes keep an order, and the reward for it
- landscape: what every order is worth, by brute force
- gaussian_process, search: which order to try next
- conditioned, training, trainer: a defender that is told an order, its training, and the whole search
"""

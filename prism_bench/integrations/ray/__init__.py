"""The suite on Ray: a round's clients in actors (`executor`), a grid's runs as tasks (`grid`), and how both get to a
cluster (`cluster`). None of them imports ray before it is needed.
"""

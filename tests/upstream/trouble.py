"""What happens to regions and stores of an embedded upstream under a client, by chance."""


def shake(upstream, chance, keys):
    """One random thing, or nothing: a split, a merge, a leader that moves, a store that goes and comes back."""
    regions = upstream.regions()
    match chance.randrange(8):
        case 0 | 1:
            upstream.split(chance.choice(keys) + bytes([chance.randrange(256)]))
        case 2 | 3 if len(regions) > 1:
            at = chance.randrange(len(regions) - 1)
            pair = regions[at : at + 2]
            chance.shuffle(pair)
            upstream.merge(pair[0].id, pair[1].id)
        case 4 | 5:
            upstream.transfer_leader(chance.choice(regions).id, chance.randint(1, 3))
        case 6:
            store = chance.randint(1, 3)
            upstream.stop_store(store)
            upstream.start_store(store, elsewhere=chance.random() < 0.5)

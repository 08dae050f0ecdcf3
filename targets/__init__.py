"""Systems under test: the vocabulary, the models, our batched decoder, planted faults, real engines.

The lowest floor: `targets` imports none of `oracle`, `fuzz`, `stress`. Everybody may import `targets.protocol`;
`oracle` imports nothing else of this package, because a judge must not share the defendant's code.
"""

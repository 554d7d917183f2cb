"""One trial process, from outside: started, guarded, measured and ended.

Entry point: `runner`, implemented by `process`. Each trial runs in a `workspace` under a `guard`, on
`devices` that it holds alone; `result` turns what it reports into a measurement or a failure.
"""

"""Launch of one trial process: start, guard, measurement and end.

Entry point: `runner`, implemented by `process`. Each trial runs in a `workspace` under a `guard`, on
`devices` that it holds alone. `result` turns its reports into a measurement or a failure.
"""
